"""Alignment: which candidate value is which reference value, and how the candidate's array is read as the other's.

In this order: a map that the user gives; the same name; a family's rule for names; the same content; the content that
follows from the candidate's own values (so that a fault upstream does not matter); the place between matched
neighbours. What has no partner is listed with its reason and the closest guess; nothing is paired by position in
silence, nothing dropped. How each pair was found is in `Pair.how`.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from firstbad.families import Names, proposals
from firstbad.graph import Graph, Value
from firstbad.layout import Layout, by_shape, distance
from firstbad.replay import Executor, moves_only

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.joined import Join
    from firstbad.mapfile import Mapped
    from firstbad.matching import Matcher

__all__ = ["Alignment", "Layout", "Pair", "Unmatched", "align"]

How = Literal["map", "name", "rule", "content", "predicted", "placed", "relabelled"]


@dataclass(frozen=True)
class Pair:
    """One aligned value."""

    reference: Value
    candidate: Value
    layout: Layout
    how: How = "name"


@dataclass(frozen=True)
class Unmatched:
    """A value without a partner, and why."""

    value: Value
    reason: str
    closest: str = ""  # name of the unmatched value of the other side that is most like it


@dataclass(frozen=True)
class Alignment:
    """Pairs in the reference's execution order, and what is left on both sides."""

    pairs: tuple[Pair, ...]
    only_reference: tuple[Unmatched, ...]
    only_candidate: tuple[Unmatched, ...]
    joins: tuple[Join, ...] = ()  # candidate values that are put together from several

    @cached_property
    def by_reference(self) -> Mapping[int, Pair]:
        return {p.reference.id: p for p in self.pairs}

    @cached_property
    def by_candidate(self) -> Mapping[int, Pair]:
        return {p.candidate.id: p for p in self.pairs}

    @property
    def words(self) -> str:
        """For people: how the pairs were found, where it was not by name alone."""
        said: dict[How, str] = {
            "map": "by the map",
            "rule": "by a rule for names",
            "content": "by content",
            "predicted": "by the content that follows from the candidate's own values",
            "placed": "by their place between matched neighbours",
            "relabelled": "against their names",
        }
        count = Counter(p.how for p in self.pairs)
        found = [f"{count[how]} {words}" for how, words in said.items() if count[how]]
        return f"{len(self.pairs)} values aligned: {', '.join(found)}, the rest by name" if found else ""


Arrays = Callable[[Value], "NDArray[Any]"]


def align(
    reference: Graph,
    candidate: Graph,
    reference_array: Arrays,
    candidate_array: Arrays,
    *,
    executor: Executor | None = None,
    mapped: Mapped | None = None,
    distrusted: Container[int] = (),
) -> Alignment:
    """Pairs the values of two graphs. Arrays are only looked at where names and shapes leave a question open;
    without an executor nothing is predicted from the candidate's own values. `distrusted`: candidate ids of values
    whose names say nothing."""
    from firstbad.matching import Matcher

    names = Names(reference)
    pairs: dict[int, Pair] = {}
    refused: dict[int, str] = {}  # reference id → why the candidate's value of its name does not fit
    taken: set[int] = set()

    def take(value: Value, partner: Value, how: How, layout: Layout | None = None) -> None:
        layout = layout or _layout(value, partner, reference_array, candidate_array, _stated(candidate, partner))
        if layout is None:
            refused[value.id] = f"the candidate's shape {list(partner.shape)} against {list(value.shape)}"
        elif not held(partner):
            refused[value.id] = f"not captured by the candidate: {partner.reason or 'not stored'}"
            taken.add(partner.id)
        elif not held(value):
            refused[value.id] = f"not captured: {value.reason or 'not stored'}"
            taken.add(partner.id)
        else:
            pairs[value.id] = Pair(value, partner, layout, how)
            taken.add(partner.id)

    theirs = [v for v in candidate.values if bears(v)]
    parts = {v.id: why for v in theirs if (why := part_of(candidate, v))}
    taken.update(parts)
    for value, partner, layout in mapped.pairs(reference, candidate) if mapped else ():
        take(value, partner, "map", layout)
    own_names: dict[int, int] = {}
    for partner in theirs:
        same = reference.by_key.get((partner.step, partner.name))
        if partner.id in taken or partner.id in distrusted:
            continue
        if same is not None and bears(same) and same.id not in pairs:
            take(same, partner, "name")
            own_names[partner.id] = same.id
    for partner in theirs:
        if partner.id in taken or partner.id in own_names or partner.id in distrusted:
            continue
        meant = _meant(names, partner, pairs, refused)
        if meant is not None:
            take(meant, partner, "rule")
    matcher = Matcher(reference, candidate, reference_array, candidate_array, pairs, taken)
    if matcher.leftovers:
        matcher.by_content()
        if executor is not None:
            matcher.by_prediction(executor)
        for value, partner in _as_elsewhere(reference, matcher):
            take(value, partner, "rule")
    leftovers = matcher.leftovers
    only_reference = tuple(
        Unmatched(v, refused.get(v.id) or _why_alone(reference, v), _closest(v, leftovers))
        for v in reference.values
        if bears(v) and v.id not in pairs
    )
    left = [u.value for u in only_reference]
    taken |= {p.candidate.id for p in pairs.values()}  # also those of which a part is paired
    only_candidate = tuple(
        Unmatched(v, parts.get(v.id) or _why_candidate_alone(reference, v), "" if v.id in parts else _closest(v, left))
        for v in theirs
        if v.id in parts or v.id not in taken
    )
    joins = tuple(matcher.joins.values())
    return Alignment(tuple(pairs[i] for i in sorted(pairs)), only_reference, only_candidate, joins)


def _as_elsewhere(reference: Graph, matcher: Matcher) -> Iterator[tuple[Value, Value]]:
    """Values of too little content, such as the mean of one row, by what their name turned out to mean elsewhere."""
    meanings: dict[str, set[str]] = {}
    for pair in matcher.pairs.values():
        meanings.setdefault(pair.candidate.name, set()).add(pair.reference.name)
    for partner in matcher.leftovers:
        meant = meanings.get(partner.name, set())
        value = reference.by_key.get((partner.step, next(iter(meant)))) if len(meant) == 1 else None
        if value is None or value.id in matcher.pairs or not bears(value) or not _same_sort(value, partner):
            continue
        if not matcher.telling(partner) and by_shape(value.shape, partner.shape):
            yield value, partner


def bears(value: Value) -> bool:
    """Whether a value carries numbers of its own: no view, no weight, no constant."""
    return value.kind in ("value", "input")


def held(value: Value) -> bool:
    """Whether its array is in the trace."""
    return bool(value.dataset) or value.same_as >= 0


def part_of(candidate: Graph, value: Value) -> str:
    """Why a value has no partner of its own, where its engine says so: it is a step on the way to another one."""
    op = candidate.ops[value.op] if value.op >= 0 else None
    whole = op.attrs.get("part_of", "") if op is not None else ""
    return f"a part of {whole}" if whole else str(op.attrs.get("alone", "")) if op is not None else ""


def _meant(names: Names, partner: Value, pairs: Mapping[int, Pair], refused: Mapping[int, str]) -> Value | None:
    """The reference value that the candidate's name means by a rule, where the shapes allow it."""
    for proposal in (partner.name, *proposals(partner.name)):
        value = names.find(partner.step, proposal)
        if value is None or value.id in pairs or value.id in refused or not bears(value):
            continue
        if by_shape(value.shape, partner.shape) and _same_sort(value, partner):
            return value
    return None


def _by_halves(size: int, K: int) -> tuple[int, ...]:
    """Within each head of K, place j + K/2 k holds what stands at 2 j + k."""
    half = K // 2
    return tuple(start + 2 * j + k for start in range(0, size, K) for k in range(2) for j in range(half))


def _same_sort(value: Value, partner: Value) -> bool:
    return ("float" in value.dtype) == ("float" in partner.dtype)


def _why_alone(graph: Graph, value: Value) -> str:
    if value.same_as >= 0:
        return f"a copy: equal to {graph.values[value.same_as].name}"
    if value.op >= 0 and moves_only(graph.ops[value.op]):
        return "only moves values"
    return "no value of this name in the candidate"


def _why_candidate_alone(reference: Graph, value: Value) -> str:
    partner = reference.by_key.get((value.step, value.name))
    if partner is not None:
        return f"shape {list(value.shape)} cannot be read as the reference's {list(partner.shape)}"
    steps = [v.step for v in reference.values if v.name == value.name]
    if steps and value.step not in steps:
        return f"the reference has this name in {steps[0]}, not in {value.step}"
    return "no value of this name in the reference"


def _closest(value: Value, left: Sequence[Value]) -> str:
    """The unmatched value of the other side, of this step and size, whose name is most alike."""
    size = math.prod(value.shape)
    alike = [v.name for v in left if v.step == value.step and math.prod(v.shape) == size]
    close = difflib.get_close_matches(value.name, alike, n=1, cutoff=0.3)
    return close[0] if close else ""


def _stated(candidate: Graph, partner: Value) -> Mapping[str, Any]:
    """What the probe read off the engine's graph about the value's layout, see `_layout`."""
    op = candidate.ops[partner.op] if partner.op >= 0 else None
    said = op.attrs.get("layout") if op is not None else None
    return said if isinstance(said, Mapping) else {}


def _layout(
    value: Value, partner: Value, reference_array: Arrays, candidate_array: Arrays, stated: Mapping[str, Any]
) -> Layout | None:
    """The layout that the shapes allow; contents decide between several.

    Stated may be `part` (of the last axis, from 0 on), `rows` (of the last axis but one, the only ones) and `pairs`:
    the last axis is of heads so long, each in the order of rotary positions of adjacent pairs.
    """
    theirs = partner.shape
    if stated.get("rows") and len(value.shape) > 1:
        layout = Layout(value.shape, rows=tuple(stated["rows"]))
        return layout if math.prod(theirs) * value.shape[-2] == math.prod(value.shape) * len(layout.rows) else None
    part = (len(theirs) - 1, 0, int(stated["part"])) if stated.get("part") else ()
    options = by_shape(value.shape, (*theirs[:-1], part[2]) if part else theirs)
    options = [replace(layout, part=part) for layout in options] if part else options
    if stated.get("pairs"):
        order = _by_halves(value.shape[-1], int(stated["pairs"]))
        options = [replace(layout, order=order, along=len(value.shape) - 1) for layout in options]
    if len(options) <= 1 or not held(value) or not held(partner):
        return options[0] if options else None
    wanted, array = reference_array(value), candidate_array(partner)
    return min(options, key=lambda layout: distance(layout, array, wanted))
