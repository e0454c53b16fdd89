"""Values that were read too late: when the probe came for them, another op had written over their buffer.

A dumper that walks a graph once it has been computed gets, for most nodes, what a later node left in the same memory.
Such a step is known by its own records: wherever two values share addresses, they have the same bytes there, which in a
run that was read op by op happens only where an op changed nothing. What was overwritten then says nothing about the
engine: it is not compared, and told as stale. Leaves out traces without addresses.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from firstbad.graph import Graph, Value

if TYPE_CHECKING:
    from firstbad.trace import Trace

FEWEST = 3
"""Pairs of values in one place that must agree, and none differ: one op that changed nothing is no such step."""


def stale(trace: Trace) -> Mapping[int, Value]:
    """Id of each value that was read too late → the last value written over it."""
    found: dict[int, Value] = {}
    for values in _graphs(trace.graph):
        over: dict[int, Value] = {}
        agree = 0
        for value, later in _over(values):
            same = _agree(trace, value, later)
            if same is False:
                break
            agree += bool(same)
            over[value.id] = later
        else:
            found |= over if agree >= FEWEST else {}
    return found


def without(trace: Trace, found: Mapping[int, Value]) -> Trace:
    """The trace in which values that were read too late stand alone, with the reason (alignment.part_of)."""
    if not found:
        return trace
    ops = list(trace.graph.ops)
    for number, over in found.items():
        op = ops[trace.graph.values[number].op]
        ops[op.id] = replace(op, attrs={**op.attrs, "alone": f"stale: read after {over.name} was written over it"})
    return replace(trace, graph=Graph(trace.graph.values, tuple(ops)))


def blurred(graph: Graph, found: Mapping[int, Value], paired: Container[int]) -> frozenset[int]:
    """Ids of values between which and the aligned ones before them an op rounds what is stale.

    Replay has such numbers to its own last bit and not to the engine's; where that decides how one is rounded, the
    result differs by a step of the rounding, and nobody is to blame.
    """
    hidden, blurs = set(found), set[int]()
    for op in graph.ops if found else ():
        unknown = [r.value for r in op.reads if r.value in hidden]
        if any(i in blurs for i in unknown) or (unknown and op.attrs.get("arithmetic")):
            blurs.update(op.writes)
        hidden.update(w for w in op.writes if unknown and w not in paired)
    return frozenset(blurs - hidden)


def words(trace: Trace, found: Mapping[int, Value], many: int) -> Iterable[str]:
    """For people, in one line; `many` are blurred."""
    if found:
        also = (
            f"; {many} more cannot be judged, for they were made of such values by an op that rounds them"
            if many
            else ""
        )
        first = trace.graph.values[min(found)]
        yield (
            f"{len(found)} of the candidate's values were read too late, when other ops had written over them: stale, "
            f"not wrong, and not compared; first {first.name} of {first.step}, which {found[first.id].name} overwrote"
            f"{also}. Read each value when its op ends"
        )


def _graphs(graph: Graph) -> Iterator[list[Value]]:
    """The values of each graph, or of each step where an engine has no graphs, in the order of writing."""
    groups: dict[str, list[Value]] = {}
    for v in graph.values:
        if v.op >= 0 and v.kind == "value" and v.address and v.extent:
            groups.setdefault(str(graph.ops[v.op].attrs.get("graph", v.step)), []).append(v)
    return iter(groups.values())


def _over(values: list[Value]) -> Iterator[tuple[Value, Value]]:
    """Each value that shares memory with a later one, and the last such."""
    low = np.array([v.address for v in values], np.int64)
    high = low + np.array([v.extent for v in values], np.int64)
    for i, value in enumerate(values):
        meets = np.flatnonzero((low[i + 1 :] < high[i]) & (high[i + 1 :] > low[i]))
        if meets.size:
            yield value, values[i + 1 + int(meets[-1])]


def _agree(trace: Trace, value: Value, later: Value) -> bool | None:
    """Whether two values have the same bytes where they share memory; None: no telling."""
    low = max(value.address, later.address)
    size = min(value.address + value.extent, later.address + later.extent) - low
    pieces = []
    for v in (value, later):
        if not trace.stored(v) or not _contiguous(v):
            return None
        array = np.ascontiguousarray(trace.array(v)).reshape(-1)
        if array.nbytes != v.extent:
            return None
        pieces.append(array.view(np.uint8)[low - v.address : low - v.address + size])
    a, b = pieces
    if not np.array_equal(a, b):
        return False
    return True if size and np.any(a != a[0]) else None


def _contiguous(value: Value) -> bool:
    item = value.extent // max(1, math.prod(value.shape))
    for size, stride in zip(reversed(value.shape), reversed(value.strides), strict=False):
        if size > 1 and stride != item:
            return False
        item *= size
    return True
