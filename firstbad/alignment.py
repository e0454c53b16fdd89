"""Alignment: which candidate value is which reference value, and how the candidate's array is read as the other's.

By name and recorded shape: (step, name) pairs, unit axes ignored, axes permuted where the shapes say so and the
contents decide. What has no partner is listed with its reason; nothing is paired by position, nothing dropped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.graph import Graph, Value
from firstbad.replay import moves_only

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAMPLES = 4096


@dataclass(frozen=True)
class Layout:
    """How a candidate's array becomes the reference's: reshape to `split`, permute by `axes`, reshape to `shape`."""

    shape: tuple[int, ...]
    split: tuple[int, ...] = ()  # (): as it is
    axes: tuple[int, ...] = ()  # (): in order

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """The candidate's array in the reference's logical shape (a view where possible)."""
        if self.split:
            array = array.reshape(self.split)
        if self.axes:
            array = array.transpose(self.axes)
        return array.reshape(self.shape)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """The reference's array in the candidate's order, flat."""
        if not self.axes:
            return array.reshape(-1)
        inner = tuple(self.split[a] for a in self.axes)
        return array.reshape(inner).transpose(np.argsort(self.axes)).reshape(-1)


@dataclass(frozen=True)
class Pair:
    """One aligned value."""

    reference: Value
    candidate: Value
    layout: Layout


@dataclass(frozen=True)
class Unmatched:
    """A value without a partner, and why."""

    value: Value
    reason: str


@dataclass(frozen=True)
class Alignment:
    """Pairs in the reference's execution order, and what is left on both sides."""

    pairs: tuple[Pair, ...]
    only_reference: tuple[Unmatched, ...]
    only_candidate: tuple[Unmatched, ...]

    @cached_property
    def by_reference(self) -> Mapping[int, Pair]:
        return {p.reference.id: p for p in self.pairs}

    @cached_property
    def by_candidate(self) -> Mapping[int, Pair]:
        return {p.candidate.id: p for p in self.pairs}


Arrays = Callable[[Value], "NDArray[Any]"]


def align(reference: Graph, candidate: Graph, reference_array: Arrays, candidate_array: Arrays) -> Alignment:
    """Pairs the values of two graphs by step and name; arrays are only looked at where a layout is ambiguous."""
    pairs, only_reference, matched = [], [], set()
    for value in reference.values:
        if value.kind not in ("value", "input"):
            continue
        partner = candidate.by_key.get((value.step, value.name))
        if partner is None or partner.kind not in ("value", "input"):
            only_reference.append(Unmatched(value, _why_alone(reference, value)))
            continue
        layout = _layout(value, partner, reference_array, candidate_array)
        matched.add(partner.id)
        if layout is None:
            shapes = f"shape {list(partner.shape)} against {list(value.shape)}"
            only_reference.append(Unmatched(value, f"the candidate's {shapes}"))
            matched.discard(partner.id)
        elif not partner.dataset and partner.same_as < 0:
            only_reference.append(Unmatched(value, f"not captured by the candidate: {partner.reason or 'not stored'}"))
        elif value.dataset or value.same_as >= 0:
            pairs.append(Pair(value, partner, layout))
        else:
            only_reference.append(Unmatched(value, f"not captured: {value.reason or 'not stored'}"))
    alone = [v for v in candidate.values if v.kind in ("value", "input") and v.id not in matched]
    only_candidate = tuple(Unmatched(v, _why_candidate_alone(reference, v)) for v in alone)
    return Alignment(tuple(pairs), tuple(only_reference), only_candidate)


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
    if steps:
        return f"the reference has this name in {steps[0]}, not in {value.step}"
    return "no value of this name in the reference"


def _layout(value: Value, partner: Value, reference_array: Arrays, candidate_array: Arrays) -> Layout | None:
    mine, theirs = _units_dropped(value.shape), _units_dropped(partner.shape)
    if mine == theirs:
        return Layout(value.shape)
    if math.prod(mine) != math.prod(theirs):
        return None
    options = [Layout(value.shape, theirs, axes) for axes in _permutations(theirs, mine)]
    if _merges(mine, theirs):
        options.append(Layout(value.shape))
    if len(options) <= 1:
        return options[0] if options else None
    flat = reference_array(value).reshape(-1)
    at = np.linspace(0, flat.size - 1, min(_SAMPLES, flat.size)).astype(np.int64)
    array = candidate_array(partner)

    def distance(layout: Layout) -> float:
        return float(np.nan_to_num(np.abs(layout.apply(array).reshape(-1)[at] - flat[at]), nan=1e30).sum())

    return min(options, key=distance)


def _units_dropped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _permutations(theirs: tuple[int, ...], mine: tuple[int, ...]) -> list[tuple[int, ...]]:
    if sorted(theirs) != sorted(mine) or len(theirs) > 6:
        return []
    return [p for p in itertools.permutations(range(len(theirs))) if tuple(theirs[a] for a in p) == mine]


def _merges(mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """Whether one shape only splits or merges neighbouring axes of the other: [T, H*K] and [T, H, K]."""
    short, long = sorted((mine, theirs), key=len)
    at = 0
    for n in short:
        product = 1
        while at < len(long) and product < n:
            product *= long[at]
            at += 1
        if product != n:
            return False
    return at == len(long)
