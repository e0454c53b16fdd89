"""A function or a module as the reference: called once under the recorder, its outputs among the values by name.

Tensors that a function has from elsewhere (a closure's weights) are constants of the recording. Leaves out models with
steps: whisper.py and its like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from firstbad.errors import UsageError
from firstbad.graph import Op, Value

from .executor import Executor
from .recorder import Recorder, Sink

STEP = "call"


class _Function(nn.Module):
    """A function as a module without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class _Keeping:
    """Stores the copy of an output although it is bit-equal to what it was copied from."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.kept: torch.Tensor | None = None

    def value(self, v: Value, array: np.ndarray | None) -> Value:
        if self.kept is not None and v.kind == "value":
            with _disable_current_modes():
                held = self.kept.detach().contiguous()
                array = held.view(torch.uint16).numpy() if held.dtype == torch.bfloat16 else held.numpy()
            v = replace(v, same_as=-1, reason="")
        return self.sink.value(v, array)

    def op(self, op: Op) -> None:
        self.sink.op(op)


def record(
    function: Callable[..., Any], inputs: Sequence[tuple[str, Any]], writer: Sink
) -> tuple[list[str], list[torch.Tensor], dict[str, np.ndarray]]:
    """Calls `function` with the inputs in order: (names of its outputs, the outputs, its weights).

    An output that is a view or an input itself is copied, so that it is a value with a name of its own.
    """
    module = function if isinstance(function, nn.Module) else _Function(function)
    sink = _Keeping(writer)
    with torch.inference_mode(), Recorder(module, sink) as recorder:
        recorder.begin(STEP)
        given = [recorder.input(name, x) if isinstance(x, torch.Tensor) else x for name, x in inputs]
        outputs = list(tensors(module(*given)))
        if not outputs:
            raise UsageError("the reference returns no tensor: return one, or several in a tuple, list or dict")
        kept = []
        for t in outputs:
            own = recorder.values[recorder.id_of(t)]
            sink.kept = None if own.kind == "value" and own.dataset else t
            kept.append(t if sink.kept is None else t.clone())
            sink.kept = None
        names = [recorder.values[recorder.id_of(t)].name for t in kept]
    weights = {name: t.detach().numpy() for name, t in [*module.named_parameters(), *module.named_buffers()]}
    return names, outputs, weights


def executor(weights: Mapping[str, np.ndarray]) -> Executor:
    return Executor(weights)


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a call returned, in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, Mapping):
        for item in result.values():
            yield from tensors(item)
    elif isinstance(result, list | tuple):
        for item in result:
            yield from tensors(item)
