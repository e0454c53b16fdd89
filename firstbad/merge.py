"""Several partial traces of one engine as one: what a later run stored fills the gaps of the first.

Every value keeps its place in the first trace's graph. Leaves out traces of different inputs or engines: whoever ran
them knows that they belong together; what differs between two runs of one engine is told.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from firstbad.alignment import bears, held
from firstbad.graph import Value
from firstbad.trace import Trace, TraceWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

Key = tuple[str, str]


def merge(base: Trace, extra: Trace, path: Path) -> None:
    """Writes to `path` everything that either trace holds; where both hold a value, the first one's."""
    with TraceWriter(path, role=_role(base), engine=base.engine, meta=base.meta) as writer:
        for value in base.graph.values:
            array, reason = _array(base, extra, value)
            bare = replace(value, dataset="", same_as=-1, reason=reason)
            writer.value(bare, array)
        count = len(base.graph.values)
        for value in extra.graph.values:
            if bears(value) and held(value) and (value.step, value.name) not in base.graph.by_key:
                writer.value(replace(value, id=count, op=-1, dataset="", same_as=-1), extra.array(value))
                count += 1
        for op in base.graph.ops:
            reads = []
            for read in op.reads:
                place = ""
                if read.dataset:
                    written = base.graph.values[read.value].dtype if read.value >= 0 else ""
                    place = writer.as_read(op.id, read.slot, base.as_read(read), dtype=written)
                reads.append(replace(read, dataset=place))
            writer.op(replace(op, reads=tuple(reads)))
        writer.outputs(base.outputs)
        writer.close(complete=base.complete, death=base.death)


def changed(base: Trace, extra: Trace) -> list[Key]:
    """Values that two runs of one engine made differently, in the order of the first: by hash, else by content."""
    found = []
    for value in base.graph.values:
        other = extra.graph.by_key.get((value.step, value.name)) if bears(value) else None
        if other is None or (other.op >= 0 and extra.graph.ops[other.op].attrs.get("replaced")):
            continue
        if value.hash and other.hash:
            differs = value.hash != other.hash
        else:
            both = held(value) and held(other)
            differs = both and base.array(value).tobytes() != extra.array(other).tobytes()
        if differs:
            found.append((value.step, value.name))
    return found


def stored_bytes(trace: Trace) -> int:
    """Bytes of the values that a trace holds, without its inputs."""
    return sum(trace.array(v).nbytes for v in trace.graph.values if v.dataset and v.kind == "value")


def _array(base: Trace, extra: Trace, value: Value) -> tuple[NDArray[np.generic] | None, str]:
    if held(value):
        return base.array(value), ""
    other = extra.graph.by_key.get((value.step, value.name)) if bears(value) else None
    if other is not None and held(other) and other.shape == value.shape:
        return extra.array(other), ""
    return None, value.reason


def _role(trace: Trace) -> Literal["reference", "candidate"]:
    return "reference" if trace.role == "reference" else "candidate"
