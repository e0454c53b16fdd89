"""Cuts of a graph: values that everything in a step passes through, so that what lies between two can be judged unseen.

A cut is a dominator of its step's last value, seen from the step's own inputs: in a transformer the residual stream.
What comes from earlier steps (a cache) and what depends on no input (a mask) is replayed or known, and so stands aside.
Leaves out what is captured when: search.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from firstbad.graph import Graph, Op, Value

STRIDE = 4
"""Values from one cut of the first run to the next: what lies between is a handful of ops, soon looked into."""

_SIZES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


def nbytes(value: Value) -> int:
    """Bytes of a value in a trace, where half floats take the place of float32."""
    size = _SIZES.get(value.dtype, 4)
    return math.prod(value.shape) * (4 if size == 2 else size)


def capturable(value: Value) -> bool:
    """Whether a capture of everything would store this value."""
    stored = value.same_as < 0 and not value.reason.startswith("copy of")
    return value.kind == "value" and stored and 0 not in value.shape


def spine(graph: Graph, step: str) -> tuple[Value, ...]:
    """The cuts of a step in execution order, its last value among them."""
    ops = [op for op in graph.ops if op.step == step]
    inputs = {v.id for v in graph.values if v.step == step and v.kind == "input"}
    carried = set(inputs)
    for op in ops:
        if not inputs or any(read.value in carried for read in op.reads):
            carried.update(op.writes)
    made = [w for op in ops for w in op.writes if w in carried]
    return _chain(graph, ops, set(made), made[-1], inputs) if made else ()


def narrows(graph: Graph, value: Value, held: Collection[int]) -> tuple[Value, ...]:
    """The cuts inside the region of `value`, what is held standing aside; without the value itself."""
    members = {v.id for v in region(graph, value, held)}
    ops = [graph.ops[i] for i in sorted({graph.values[m].op for m in members})]
    return tuple(v for v in _chain(graph, ops, members, value.id) if v.id != value.id)


def _chain(
    graph: Graph, ops: Sequence[Op], members: Collection[int], last: int, inputs: Collection[int] = ()
) -> tuple[Value, ...]:
    """The dominators of `last` among the members, where an op that reads an input, or no member, is a start."""
    above: dict[int, int] = {}  # value → its nearest dominator; -1: the start
    depth = {-1: 0}
    for op in ops:
        sources = dict.fromkeys(
            -1 if r.value in inputs else r.value for r in op.reads if r.value in inputs or r.value in above
        )
        here = -1
        for n, source in enumerate(sources):
            here = source if n == 0 else _meet(here, source, above, depth)
        for written in op.writes:
            if written in members:
                above[written], depth[written] = here, depth[here] + 1
    found = []
    while last >= 0:
        found.append(graph.values[last])
        last = above[last]
    return tuple(v for v in reversed(found) if capturable(v))


def _meet(a: int, b: int, above: dict[int, int], depth: dict[int, int]) -> int:
    """The nearest value that dominates both."""
    while a != b:
        if depth[a] < depth[b]:
            b = above[b]
        else:
            a = above[a]
    return a


def inside(graph: Graph, value: Value, held: Collection[int]) -> tuple[Value, ...]:
    """What could be captured of the region of `value`, back to what is held already, in execution order; not itself."""
    return tuple(v for v in region(graph, value, held) if v.id != value.id and capturable(v))


def region(graph: Graph, value: Value, held: Collection[int]) -> tuple[Value, ...]:
    """The values that `value` is computed from since the last captured ones, itself among them."""
    found = {value.id}
    stack = [value.op]
    seen: set[int] = set()
    while stack:
        at = stack.pop()
        if at < 0 or at in seen:
            continue
        seen.add(at)
        for read in graph.ops[at].reads:
            if read.value < 0 or read.value in found:
                continue
            source = graph.values[read.value]
            if source.kind in ("value", "view") and source.id not in held:
                found.add(source.id)
                stack.append(source.op)
    return tuple(graph.values[i] for i in sorted(found))


def thinned(graph: Graph, cuts: Sequence[Value], stride: int = STRIDE) -> tuple[Value, ...]:
    """Cuts at least so many values apart, from the last numbers of the step backwards: a short chain counts as one."""
    numbers = [v for v in cuts if "float" in v.dtype]
    if not numbers:
        return tuple(cuts[-1:])
    step = [v.id for v in graph.values if v.step == numbers[-1].step and capturable(v)]
    place = {value: n for n, value in enumerate(step)}
    kept = [numbers[-1]]
    for cut in reversed(numbers[:-1]):
        if place[kept[-1].id] - place[cut.id] >= stride and place[cut.id] + 1 >= stride:
            kept.append(cut)
    return tuple(reversed(kept))


def spread(
    values: Sequence[Value], budget: float, cost: Callable[[Value], float], *, to_the_end: bool = False
) -> tuple[Value, ...]:
    """As many values as the budget allows, evenly spaced in execution order; at least the cheapest one.

    `to_the_end`: the last is one of them, as nothing behind the last cut is judged.
    """
    if sum(map(cost, values)) <= budget:
        return tuple(values)
    for count in range(len(values) - 1, 0, -1):
        parts = count if to_the_end else count + 1
        picked = tuple(values[max(0, (i + 1) * len(values) // parts - 1)] for i in range(count))
        if sum(map(cost, picked)) <= budget:
            return picked
    return (min(values, key=cost),) if values else ()
