"""One pass of a module over named inputs, recorded: what every room without tokens does.

Leaves out where the module and its inputs come from: encoder.py and own.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.want import EnoughError, patterns_of
from firstbad.want import chosen as chosen_by

from .recorder import Recorder, Sink


def capture(prepared: Prepared, writer: Sink, options: CaptureOptions, recording: Any = Recorder) -> RunOutput:
    """Runs the module once, in the step that `prepared` names; its outputs are values like any other."""
    started = time.perf_counter()
    module = prepared.model_object
    weight = next(module.parameters(), None)
    device = torch.device("cpu") if weight is None else weight.device
    with torch.inference_mode():
        recorder = recording(module, writer, chosen_by(patterns_of(options)), chosen_by(options.stop))
        with recorder:
            recorder.begin(prepared.first_step)
            given = {name: recorder.input(name, torch.from_numpy(a)).to(device) for name, a in prepared.inputs.items()}
            if weight is not None and weight.dtype in (
                torch.bfloat16,
                torch.float16,
            ):  # else PyTorch refuses to multiply
                given = {k: t.to(weight.dtype) if t.is_floating_point() else t for k, t in given.items()}
            try:
                if all(name.startswith("arr_") for name in given):
                    module(*given.values())
                else:
                    module(**given)
            except EnoughError:
                pass
    seconds = {"run": time.perf_counter() - started - recorder.write_seconds, "write": recorder.write_seconds}
    return RunOutput(tokens=(), text="", seconds=seconds)


def prepared_of(
    family: str,
    step: str,
    model: Any,
    name: str,
    source: str,
    inputs: Mapping[str, np.ndarray],
    spec: ModelSpec,
    notes: tuple[str, ...] = (),
) -> Prepared:
    """What both engines are given, for a model that chooses no tokens."""
    config = getattr(model, "config", None)
    named = [*model.named_parameters(), *model.named_buffers()]
    return Prepared(
        family=family,
        model=name,
        source=source,
        config={} if config is None else plain_config(config.to_dict()),
        inputs={name: np.ascontiguousarray(array) for name, array in inputs.items()},
        prompt=(),
        eos=-1,
        suppress=(),
        begin_suppress=(),
        weights={name: t.detach().numpy() for name, t in named if t.dtype != torch.bfloat16},
        text=lambda ids: " ".join(str(i) for i in ids),
        notes=notes,
        spec=spec,
        model_object=model,
        first_step=step,
    )


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says in plain words and numbers."""
    return {k: v for k, v in config.items() if isinstance(v, bool | int | float | str)}


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """The inputs of --inputs FILE.npz by name, in the order of the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files} if hasattr(file, "files") else {"arr_0": file}
    except FileNotFoundError:
        raise UsageError(f"no file `{path}`: give the inputs as NumPy's savez writes them") from None
    except Exception as error:  # a zip of something else, pickled objects, half a file
        line = str(error).strip().partition("\n")[0]
        raise UsageError(f"cannot read the inputs in `{path}`: {line}: give what NumPy's savez writes") from None
    if not arrays:
        raise UsageError(f"no array in `{path}`: give the inputs by name, as numpy.savez(file, input_ids=...)")
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise UsageError(f"`{name}` in `{path}` is {array.dtype}: numbers are meant")
    return {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in arrays.items()}
