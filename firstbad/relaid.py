"""Layouts that nobody reads: a value that is right in an order in which none of its readers take it.

A query whose heads are split wrongly holds the right numbers in another order, and so has a layout by content. If the
engine really keeps it so, what it computes next is right; if instead another layout makes that right, the engine took
the value in that one, and it is the value that is wrong. Leaves out values of which one layout fits the shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from firstbad.alignment import Pair
from firstbad.joined import Join, side_by_side
from firstbad.layout import Layout, by_shape, parts
from firstbad.replay import Executor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.matching import Matcher

FAR_BEHIND = 5
"""Computed values looked at behind a value: a score, its scale, its mask, its softmax, its mix."""

TRIED = 60
"""Other layouts of one value that are tried: each costs a replay of what follows."""


def relay(matcher: Matcher, executor: Executor, among: Container[int] | None = None) -> bool:
    """Gives the first value whose layout none of its readers follow one that a reader follows; whether there was one.

    `among`: of these reference ids only.
    """
    for i, pair in sorted(matcher.pairs.items()):
        if pair.how == "map" or pair.reference.op < 0 or (among is not None and i not in among):
            continue
        others = itertools.islice(_others(matcher, pair), TRIED)
        first = next(others, None)
        if first is None:
            continue
        targets = matcher.behind(pair.reference, FAR_BEHIND)

        def read(array: NDArray[Any], i: int = i, pair: Pair = pair, targets: list[int] = targets) -> bool:
            return any(matcher.holds(target, {i: array}, pair.candidate, executor) for target in targets)

        if not targets or read(pair.layout.apply(matcher.candidate_array(pair.candidate))):
            continue
        for layout, join in itertools.chain([first], others):
            whole = join.array(matcher.candidate_array) if join else matcher.candidate_array(pair.candidate)
            if read(layout.apply(whole)):
                if join is not None:
                    matcher.joins[join.value.id] = join
                matcher.pairs[i] = replace(pair, layout=layout, how="placed")
                return True
    return False


def _others(matcher: Matcher, pair: Pair) -> Iterator[tuple[Layout, Join | None]]:
    """Further ways to read a pair's value, none odder: its layout, or what is put together otherwise."""
    shape, join = pair.reference.shape, matcher.joins.get(pair.candidate.id)
    if join is not None:
        for order in itertools.permutations(range(len(join.pieces))):
            pieces = tuple(join.pieces[n] for n in order)
            for layouts in side_by_side(shape, pieces):
                if layouts[0].oddity <= join.layouts[0].oddity and not _same(join, pieces, layouts):
                    yield pair.layout, replace(join, pieces=pieces, layouts=layouts)
        return
    options = parts(shape, pair.candidate.shape) if pair.layout.part else by_shape(shape, pair.candidate.shape)
    yield from ((layout, None) for layout in options if layout.oddity < pair.layout.oddity)


def _same(join: Join, pieces: tuple[Any, ...], layouts: tuple[Layout, ...]) -> bool:
    """Whether it is the same whole, its pieces listed in another order."""
    return set(zip(join.pieces, join.layouts, strict=True)) == set(zip(pieces, layouts, strict=True))
