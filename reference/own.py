"""Your own PyTorch module as the reference: --model FILE.py:factory --inputs FILE.npz.

`factory()` returns the module; the arrays of the file are the arguments of its forward by name (or in order, where
NumPy named them arr_0, arr_1). One step, `forward`. A file with functions `prepare` and `capture` is a room of its own:
--model FILE.py. Leaves out steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.rooms import file_module
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput

from . import onepass
from .checkpoint import first_line, plain
from .executor import Executor
from .piecewise import Piecewise
from .recorder import Recorder, Sink

STEP = "forward"


def prepare(spec: ModelSpec) -> Prepared:
    """The module that the factory makes, in float32, and its inputs."""
    file, _, name = spec.model.removeprefix("own:").rpartition(":")
    if not file.endswith(".py"):
        raise UsageError(f"`{spec.model}` is no FILE.py:factory")
    module = file_module(file)
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]
        hint = did_you_mean(name, functions) or f"it has {', '.join(functions) or 'none'}"
        raise UsageError(f"no function `{name}` in `{file}`: {hint}")
    try:
        made = factory()
    except Exception as error:  # whatever a user's function may raise
        raise UsageError(f"`{spec.model}` raised {type(error).__name__}: {first_line(error)}") from None
    if not isinstance(made, torch.nn.Module):
        raise UsageError(f"`{spec.model}` returned a {type(made).__name__}: return the module, a torch.nn.Module")
    inputs = {} if spec.inputs is None else onepass.arrays_of(spec.inputs)
    return onepass.prepared_of("own", STEP, plain(made), spec.model, f"file {file}", inputs, spec)


def capture(
    prepared: Prepared,
    writer: Sink,
    *,
    tokens: Sequence[int] | None = None,  # noqa: ARG001  # the face of a room: there are none here
    options: CaptureOptions,
    recording: Any = Recorder,
) -> RunOutput:
    """Runs and records the one pass."""
    if not prepared.inputs:
        raise UsageError("no inputs for your module: give them with --inputs FILE.npz")
    try:
        return onepass.capture(prepared, writer, options, recording)
    except TypeError as error:  # another argument, one too many
        if "argument" not in str(error):
            raise
        raise UsageError(f"`{prepared.model}` does not take these inputs: {first_line(error)}") from None
    except RuntimeError as error:  # most often another shape
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in prepared.inputs.items())
        raise UsageError(f"`{prepared.model}` cannot run on {shapes}: {first_line(error)}") from None


def executor(prepared: Prepared) -> Executor:
    return (Piecewise if prepared.spec.offload else Executor)(prepared.weights)
