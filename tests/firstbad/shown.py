"""A module whose candidate shows a single value: what the explainer makes of it where it is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from firstbad.comparison import compare
from firstbad.graph import Value
from firstbad.reference.function import executor, record
from firstbad.result import FaultResult
from firstbad.trace import TraceWriter, open_trace


def fault(module: nn.Module, wrong: Tensor, given: Tensor | dict[str, Tensor], folder: Path) -> FaultResult:
    """The one fault of a candidate that gives `wrong` for the module's output, and shows nothing else."""
    inputs = given if isinstance(given, dict) else {"x": given}
    with TraceWriter(folder / "r.h5", "reference", "torch") as writer:
        record(module, [*inputs.items()], writer)
    with open_trace(folder / "r.h5") as trace:
        name = trace.graph.values[-1].name
    with TraceWriter(folder / "c.h5", "candidate", "py") as writer:
        for n, (word, x) in enumerate(inputs.items()):
            writer.value(Value(n, "call", word, "input", tuple(x.shape), "float32"), x.numpy())
        writer.value(
            Value(len(inputs), "call", name, "value", tuple(wrong.shape), str(wrong.numpy().dtype)),
            np.ascontiguousarray(wrong),
        )
    with open_trace(folder / "r.h5") as ours, open_trace(folder / "c.h5") as theirs:
        weights = {n: t.numpy() for n, t in module.state_dict().items()}
        (found,) = compare(ours, theirs, executor(weights)).result.faults
    return found
