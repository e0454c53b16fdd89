"""For engines that can give one value a run: a search by halves over a graph, judged by local replay.

Each run takes a value through which all of the wrong region passes, near its middle. Replayed from what was captured
before, either it is wrong, or what comes after it is. So nothing is asked of the error's size on the way to the output:
it may fade in one place and come back in another. Leaves out engines that can give many values (bisection.py).
"""

from __future__ import annotations

from collections.abc import Callable

from firstbad.alignment import bears
from firstbad.alignment import held as stored
from firstbad.bisection import Search
from firstbad.cuts import capturable, narrows, nbytes, region, spine
from firstbad.graph import Graph, Value
from firstbad.local import Judged

LOOKED_AT = 24
"""Candidates for the next value whose two halves are counted."""


def halve(state: Search) -> tuple[Judged, ...]:
    """The value that is wrong given its own inputs, found with one value a run; none where the last one is right."""
    outline = state.engines.outline()
    goal = _goal(outline)
    state.full_bytes = sum(map(nbytes, filter(capturable, outline.values)))
    state.take_up()
    if not state.runs:
        one = (f"{goal.step}/{goal.name}",)
        state.run("the last value", one, (one, one))
    graph, theirs = state.graphs()
    known = {(v.step, v.name) for v in theirs.values if bears(v)}
    lists_all = any(bears(v) and not stored(v) for v in theirs.values)

    def possible(value: Value) -> bool:
        key = (value.step, value.name)
        return capturable(value) and key not in state.asked and (key in known or not lists_all)

    local, alignment = state.judge()
    worst = next((j for j in local.values if j.bad), None)
    while worst is not None and not state.unstable:
        held = set(alignment.by_reference)
        value = middle(graph, worst.pair.reference, held, possible)
        if value is None:
            break
        one = (f"{value.step}/{value.name}",)
        state.asked.add((value.step, value.name))
        state.run(f"inside {worst.name}", one, (one, one))
        local, alignment = state.judge(frozenset((value.id, worst.pair.reference.id)))
        judged = {j.pair.reference.id: j for j in local.values}
        here = judged.get(value.id)  # None: the candidate has no such value
        worst = judged.get(worst.pair.reference.id, worst)
        if here is not None and (here.bad or (not worst.bad and here.worst.ratio > worst.worst.ratio)):
            worst = here  # two halves that are each within their own noise: follow the worse one
    return (worst,) if worst is not None else ()


def middle(graph: Graph, wrong: Value, held: set[int], possible: Callable[[Value], bool]) -> Value | None:
    """What to capture next inside the region of `wrong`; None: nothing is left there."""
    inside = region(graph, wrong, held)
    choice = [v for v in inside if v.id != wrong.id and possible(v)]
    counted = {v.id for v in choice} | {wrong.id}
    before = _counts(graph, inside, counted)

    def unlike_half(value: Value) -> int:
        return abs(2 * before[value.id] - len(counted))

    def larger(value: Value) -> int:
        """Values left in the worse case: those it depends on, or those that remain once it is held."""
        after = sum(v.id in counted for v in region(graph, wrong, {*held, value.id}))
        return max(before[value.id], after)

    cuts = {v.id for v in narrows(graph, wrong, held)}
    near = sorted(choice, key=unlike_half)[:LOOKED_AT]
    near += sorted((v for v in choice if v.id in cuts), key=unlike_half)[:LOOKED_AT]
    return min(near, key=larger, default=None)


def _counts(graph: Graph, inside: tuple[Value, ...], counted: set[int]) -> dict[int, int]:
    """Value → how many of the counted ones it depends on, itself among them."""
    above: dict[int, int] = {}  # a bit for each
    place = {v: n for n, v in enumerate(sorted(counted))}
    for value in inside:
        mask = 1 << place[value.id] if value.id in place else 0
        for read in graph.ops[value.op].reads if value.op >= 0 else ():
            mask |= above.get(read.value, 0)
        above[value.id] = mask
    return {value: mask.bit_count() for value, mask in above.items()}


def _goal(outline: Graph) -> Value:
    """The last numbers of the run: everything that reaches the output is upstream of them."""
    for step in reversed(outline.steps):
        numbers = [v for v in spine(outline, step) if "float" in v.dtype]
        if numbers:
            return numbers[-1]
    return outline.values[-1]
