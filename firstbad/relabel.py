"""Names that lie and taps in the wrong place: a right value under another value's name or in another order.

Two layers exchanged, layer l under the name of layer l - 1, before the norm instead of after it, shards put together in
another order. Only looked for where values are far from the reference's own run, and only believed if fewer faults are
left with it: what an engine really exchanged leaves its damage behind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from firstbad.alignment import Alignment, Pair, Unmatched, bears, held
from firstbad.graph import Graph, Value
from firstbad.layout import best, reordered
from firstbad.local import Local
from firstbad.replay import moves_only
from firstbad.sketch import Sketch, similar, sketch

if TYPE_CHECKING:
    from firstbad.trace import Trace

SMALLEST = 8
"""Elements under which content does not identify a value."""


GUESSED = ("predicted", "placed")
"""How values are paired that have neither name nor plain content in common."""

DOUBTED = 0.25
"""Share of the values moved against their names whose readers may be wrong: a fault elsewhere has readers, too."""

FAR = 0.05
"""Relative distance from the reference's own run from which a value may be another one: noise stays below."""


def relabelled(
    alignment: Alignment, local: Local, reference: Trace, candidate: Trace, doubted: Container[int] = ()
) -> Alignment | None:
    """The alignment with suspicious values put where their content belongs; None where none belongs elsewhere.

    `doubted`: reference ids that stay as they are.
    """
    suspicious = {
        i: pair
        for i, pair in _suspicious(local).items()
        if i not in doubted and math.prod(pair.reference.shape) >= SMALLEST
    }
    moved = dict(_moved(alignment, suspicious, reference, candidate))
    if not moved:
        return None
    lost = {p.candidate.id for p in moved.values()}
    kept = {i: p for i, p in alignment.by_reference.items() if i not in moved and p.candidate.id not in lost}
    pairs = {**kept, **moved}
    gone = [p for i, p in alignment.by_reference.items() if i not in pairs]
    left = [u for u in alignment.only_reference if u.value.id not in moved]
    left += [Unmatched(p.reference, "the candidate's value of this name holds another value") for p in gone]
    used = {p.candidate.id for p in pairs.values()}
    alone = [p.candidate for p in gone if p.candidate.id not in used]
    return Alignment(
        tuple(pairs[i] for i in sorted(pairs)),
        tuple(sorted(left, key=lambda u: u.value.id)),
        (*alignment.only_candidate, *(Unmatched(v, "its content is no value of the reference") for v in alone)),
        alignment.joins,
    )


def _suspicious(local: Local) -> dict[int, Pair]:
    """Reference id → pair, of values that are far from the reference's own run."""
    return {j.pair.reference.id: j.pair for j in local.values if not j.cumulative <= FAR}


def suspects(alignment: Alignment, local: Local) -> dict[int, Pair]:
    """Candidate id → pair, of values whose name is that of a suspicious one in any step."""
    names = {pair.candidate.name for pair in _suspicious(local).values()}
    return {pair.candidate.id: pair for pair in alignment.pairs if pair.candidate.name in names}


def unnamed(was: Mapping[int, Pair], aligned: Callable[[Container[int]], Alignment]) -> Alignment:
    """The alignment in which the names of the suspects say nothing: where many lie, also what has a name that means
    nothing may be one of them."""
    found = aligned(was.keys())
    moved = (
        p.candidate.id in was and (p.reference, bool(p.layout.order)) != (was[p.candidate.id].reference, False)
        for p in found.pairs
    )
    pairs = (replace(p, how="relabelled") if lied else p for p, lied in zip(found.pairs, moved, strict=True))
    return replace(found, pairs=tuple(pairs))


def _moved(
    alignment: Alignment, suspicious: Mapping[int, Pair], reference: Trace, candidate: Trace
) -> Iterable[tuple[int, Pair]]:
    """(reference id, its new pair) for each suspicious value that is another value, or is in another order."""
    free: dict[tuple[str, int], list[Value]] = {}
    for value in reference.graph.values if suspicious else ():
        if _free(value, alignment, suspicious, reference.graph):
            free.setdefault((value.step, math.prod(value.shape)), []).append(value)
    sketches: dict[int, Sketch] = {}
    taken: set[int] = set()
    for pair in suspicious.values():
        array = candidate.array(pair.candidate)
        own = sketch(array)
        if not own.telling:
            continue
        alike = free.get((pair.reference.step, math.prod(pair.candidate.shape)), [])
        # its own name first: there it is in another order
        for value in sorted(alike, key=lambda v: v.id != pair.reference.id):
            if value.id in taken:
                continue
            if value.id not in sketches:
                sketches[value.id] = sketch(reference.array(value))
            if not similar(own, sketches[value.id]) or not _read_later(value, alignment, reference.graph):
                continue
            wanted = reference.array(value)
            fit = best(value.shape, array, wanted) or reordered(value.shape, array, wanted)
            if fit is not None:
                taken.add(value.id)
                yield value.id, replace(pair, reference=value, layout=fit[0], how="relabelled")
                break


def _free(value: Value, alignment: Alignment, suspicious: Mapping[int, Pair], graph: Graph) -> bool:
    """A value that no right candidate value has: nothing that was only moved, nothing equal to another."""
    if not bears(value) or not held(value) or value.same_as >= 0 or value.op < 0 or moves_only(graph.ops[value.op]):
        return False
    return value.id in suspicious or value.id not in alignment.by_reference


def _read_later(value: Value, alignment: Alignment, graph: Graph) -> bool:
    """Whether something compared is computed from it: else nothing tells a wrong order from a wrong tap."""
    stack, seen = [value.id], {value.id}
    while stack:
        for op in graph.readers.get(stack.pop(), ()):
            for written in graph.ops[op].writes:
                if written in alignment.by_reference:
                    return True
                if written not in seen:
                    seen.add(written)
                    stack.append(written)
    return False


def unproved(alignment: Alignment, local: Local, graph: Graph) -> set[int]:
    """Moved values whose next readers are wrong all the same: nothing says that the engine reads them so."""
    bad = {j.pair.reference.id for j in local.values if j.bad}
    return {p.reference.id for p in alignment.pairs if p.how == "relabelled" and _misread(p, bad, alignment, graph)}


def believed(nameless: Alignment, local: Local, before: Alignment, reference: Trace) -> bool:
    """Whether an alignment against the names stands: it compares all that was compared, and what reads the values that
    it moved is right but for a few. A value that was moved to hide a fault has readers that are wrong.

    Of what was compared it may lose copies, and masks and constants, which only a name can tell from each other: they
    are then the model's own, and a fault in one would show in its readers.
    """
    graph = reference.graph
    moved = sum(p.how == "relabelled" for p in nameless.pairs)
    lost = [graph.values[i] for i in before.by_reference.keys() - nameless.by_reference.keys()]
    kept = all(v.same_as >= 0 or (held(v) and not sketch(reference.array(v)).telling) for v in lost)
    return kept and len(unproved(nameless, local, graph)) <= DOUBTED * moved


def without_misplaced(alignment: Alignment, local: Local, graph: Graph) -> Alignment | None:
    """The alignment without values that were paired by what they hold or where they stand, are wrong there, and make
    wrong what is read from them: such a value is another one. None where there are none."""
    bad = {j.pair.reference.id for j in local.values if j.bad}
    gone = [
        p for p in alignment.pairs if p.how in GUESSED and p.reference.id in bad and _misread(p, bad, alignment, graph)
    ]
    if not gone:
        return None
    left = [Unmatched(p.reference, "no value of the candidate fits what is read from it") for p in gone]
    alone = [Unmatched(p.candidate, "its content is no value of the reference") for p in gone]
    return Alignment(
        tuple(p for p in alignment.pairs if p not in gone),
        tuple(sorted((*alignment.only_reference, *left), key=lambda u: u.value.id)),
        (*alignment.only_candidate, *alone),
        alignment.joins,
    )


def misread(alignment: Alignment, local: Local, graph: Graph) -> set[int]:
    """Reference ids of values that are right, but not what is made of them next."""
    bad = {j.pair.reference.id for j in local.values if j.bad}
    return {p.reference.id for p in alignment.pairs if p.reference.id not in bad and _misread(p, bad, alignment, graph)}


def _misread(pair: Pair, bad: Container[int], alignment: Alignment, graph: Graph) -> bool:
    """Whether the next value that is compared behind this one is wrong too."""
    stack, seen = [pair.reference.id], {pair.reference.id}
    while stack:
        for op in graph.readers.get(stack.pop(), ()):
            for written in graph.ops[op].writes:
                if written in bad:
                    return True
                if written not in seen and written not in alignment.by_reference:
                    seen.add(written)
                    stack.append(written)
    return False


def words(alignment: Alignment) -> list[str]:
    """For people: which names lie, a line for each kind of lie."""
    said = []
    wrong = [p for p in alignment.pairs if p.how == "relabelled"]
    order = [p for p in wrong if p.candidate.name == p.reference.name]
    names = [p for p in wrong if p.candidate.name != p.reference.name]
    if order:
        first = order[0]
        said.append(
            f"misaligned, not wrong: the candidate's {first.candidate.name} is in another order "
            f"({first.layout.words or 'other strides'}){_more(order)}"
        )
    kept = [p for p in alignment.pairs if p.layout.order and p.how in ("content", "predicted", "placed")]
    if kept:
        said.append(f"{kept[0].candidate.name} is kept in another order ({kept[0].layout.words}){_more(kept)}")
    kinds = Counter(_difference(p.candidate.name, p.reference.name) for p in names)
    for kind, _ in kinds.most_common(3):
        many = [p for p in names if _difference(p.candidate.name, p.reference.name) == kind]
        first = many[0]
        said.append(
            f"misaligned, not wrong: what the candidate calls {first.candidate.name} is {first.reference.name}"
            f"{_more(many)}"
        )
    return said


def _more(pairs: list[Pair]) -> str:
    return f", and {len(pairs) - 1} more like it" if len(pairs) > 1 else ""


def _difference(a: str, b: str) -> str:
    """What differs between two names, the numbers of layers as their distance."""
    pairs = zip(a.split("."), b.split("."), strict=False)
    return " ".join(str(int(y) - int(x)) if x.isdigit() and y.isdigit() else f"{x}>{y}" for x, y in pairs if x != y)
