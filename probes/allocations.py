"""A second allocation: the C engine again with poisoned and with never-reused buffers.

What an engine computes must not depend on where its values lie. Where a value changes, two ops share memory that they
should not: both are named, the one that read and the one that wrote, from the reads of the first run. Leaves out other
candidates: their buffers are not ours to place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from firstbad.graph import READ_CHANGED, READ_UNWRITTEN, Op, Value
from firstbad.trace import Trace, open_trace

NEXT_TO = 4096
"""Bytes behind an output in which a write past its end is looked for."""


def allocated_again(first: Trace, capture: Callable[..., object], folder: Path) -> dict[str, Any]:
    """The first value that another allocation changes, and the ops that share its memory; runs: see c.capture."""
    runs: Mapping[str, Mapping[str, bool]] = {"poisoned": {"poison": True}, "never reused": {"spread": True}}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix=".allocations-", dir=folder) as scratch:
        for name, how in runs.items():
            path = Path(scratch, "again.h5")
            capture(path, **how)
            with open_trace(path) as again:
                found[name] = compared(first, again)
    return {"runs": found, "differs": any(run["value"] for run in found.values())}


def compared(first: Trace, again: Trace) -> dict[str, Any]:
    """By hashes: the first value that differs, its reads that were not as written, and who wrote there."""
    theirs = {(v.step, v.name): v for v in again.graph.values}
    changed = 0
    first_changed: Value | None = None
    for value in first.graph.values:
        other = theirs.get((value.step, value.name))
        if value.kind == "value" and other is not None and other.hash != value.hash:
            changed += 1
            first_changed = first_changed or value
    if first_changed is None:
        return {"value": "", "step": "", "changed": 0, "ops": [], "text": ""}
    op = first.graph.ops[first_changed.op]
    text, ops = _blame(first, op, again)
    return {"value": first_changed.name, "step": first_changed.step, "changed": changed, "ops": ops, "text": text}


def _blame(first: Trace, op: Op, again: Trace) -> tuple[str, list[str]]:
    values = first.graph.values
    for read in op.reads:
        name = values[read.value].name if read.value >= 0 else ""
        if read.state == READ_CHANGED and read.overwritten_by:
            writers = [values[v].name for v in read.overwritten_by]
            return f"{op.name} reads {name}, which {writers[-1]} was written over", [op.name, writers[-1]]
        if read.state == READ_CHANGED:
            culprit = _neighbour(first, values[read.value], op)
            said = f"{culprit.name}, whose output ends there," if culprit else "an op that does not declare it"
            names = [op.name, *([culprit.name] if culprit else [])]
            return f"{op.name} reads {name} after {said} has changed it", names
        if read.state == READ_UNWRITTEN:
            return f"{op.name} reads bytes in `{read.slot}` that nobody wrote", [op.name]
    other = next((o for o in again.graph.ops if (o.step, o.name) == (op.step, op.name)), None)
    odd = [r for r in other.reads if r.state in (READ_CHANGED, READ_UNWRITTEN)] if other else []
    if odd:
        slots: Sequence[str] = sorted({r.slot for r in odd})
        return f"{op.name} reads in `{', '.join(slots)}` what no op has left there in another allocation", [op.name]
    return f"{op.name} gives another result in other memory: it keeps or reads bytes outside its values", [op.name]


def _neighbour(trace: Trace, value: Value, reader: Op) -> Op | None:
    """The op between whose output ends nearest before the changed value: it may have written on."""
    best: tuple[int, Op] | None = None
    for op in trace.graph.ops[value.op + 1 : reader.id] if value.op >= 0 else ():
        for written in op.writes:
            other = trace.graph.values[written]
            gap = value.address - (other.address + other.extent)
            if other.address and 0 <= gap < NEXT_TO and (best is None or gap <= best[0]):
                best = (gap, op)
    return best[1] if best else None
