"""What to capture next: cuts first, then inside the segments between them that are locally wrong.

Everything here is decided from graphs and from judged values; nothing runs an engine, and the same records give the
same decision, so that a search can be resumed. Leaves out the runs (bisection.py) and engines that can give one value
a run (halving.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from firstbad.cuts import capturable, inside, nbytes, region, spine, spread, thinned
from firstbad.graph import Graph, Value
from firstbad.local import Judged

LARGE = 8
"""Times the usual cut of its step: so large a one (logits over a vocabulary) is captured in one step of a kind only."""

SHARE = 0.3
"""Of the bytes of a full capture: what a run inside a segment may take where no budget is given."""


@dataclass(frozen=True)
class Segment:
    """A value that does not follow from what was captured before it, and what could be captured in between."""

    judged: Judged
    inside: tuple[Value, ...]


def kind_of_step(step: str) -> str:
    """`decode` of `decode.3`."""
    return step.partition(".")[0]


def steps_of(graph: Graph, tokens: int) -> dict[str, int]:
    """How often each step of a short run will come in one of so many tokens."""
    kinds = [kind_of_step(step) for step in graph.steps]
    repeats = dict.fromkeys(graph.steps, 1)
    last = graph.steps[-1] if graph.steps else ""
    if "." in last:
        repeats[last] = max(1, tokens - 1 - (kinds.count(kinds[-1]) - 1))
    return repeats


def total_bytes(graph: Graph, repeats: Mapping[str, int]) -> int:
    """Bytes of a full capture."""
    return sum(nbytes(v) * repeats.get(v.step, 1) for v in graph.values if capturable(v))


def cuts(graph: Graph, repeats: Mapping[str, int], budget: float | None) -> tuple[str, ...]:
    """Patterns of what the first run captures: the cuts of every step (see firstbad/want.py)."""
    chosen: list[tuple[Value, bool]] = []  # and whether it is captured in every step of its kind
    for step in graph.steps:
        values = thinned(graph, spine(graph, step))
        usual = statistics.median(map(nbytes, values)) if values else 0
        chosen += [(v, nbytes(v) <= LARGE * usual) for v in values]
    often = {v.id for v, every in chosen if every}

    def cost(value: Value) -> float:
        return nbytes(value) * (repeats.get(value.step, 1) if value.id in often else 1)

    values = tuple(v for v, _ in chosen)
    if budget is not None:
        values = spread(values, budget, cost, to_the_end=True)
    patterns = []
    for value in values:
        repeated = value.id in often and repeats.get(value.step, 1) > 1
        patterns.append(f"{kind_of_step(value.step)}.*/{value.name}" if repeated else f"{value.step}/{value.name}")
    return tuple(dict.fromkeys(patterns))


def flagged(judged: Iterable[Judged]) -> tuple[Judged, ...]:
    """The first site of each value that is locally wrong, in execution order."""
    first: dict[str, Judged] = {}
    for value in judged:
        if value.bad:
            first.setdefault(value.name, value)
    return tuple(first.values())


def segments(
    graph: Graph, bad: Sequence[Judged], held: Collection[int], listed: Callable[[Value], bool] = lambda _: True
) -> tuple[Segment, ...]:
    """Those of the flagged values with something left to look at in between; `listed`: the candidate has it."""
    found = []
    for judged in bad:
        values = tuple(v for v in inside(graph, judged.pair.reference, held) if listed(v))
        if values:
            found.append(Segment(judged, values))
    return tuple(found)


def within(parts: Sequence[Segment], budget: float) -> tuple[Value, ...]:
    """What the next run captures: all that lies inside the segments, or as much as the budget allows, evenly spaced."""
    share = budget / max(1, len(parts))
    wanted: dict[int, Value] = {}
    for part in parts:
        wanted.update((v.id, v) for v in spread(part.inside, share, nbytes))
    return tuple(wanted[i] for i in sorted(wanted))


def members(graph: Graph, parts: Sequence[Segment], held: Collection[int]) -> frozenset[int]:
    """Ids of the values of the segments: what has to be judged anew after a run inside them."""
    return frozenset(v.id for part in parts for v in region(graph, part.judged.pair.reference, held))


def runs_left(parts: Sequence[Segment], budget: float) -> int:
    """About how many more runs it takes: each cuts the longest segment into as many parts as the budget allows."""
    left = 0
    for part in parts:
        count = len(part.inside)
        fits = len(spread(part.inside, budget / len(parts), nbytes))
        runs = 1 if fits >= count else math.ceil(math.log(count + 1) / math.log(fits + 1))
        left = max(left, runs)
    return left
