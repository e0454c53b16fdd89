"""Layouts: how a candidate's array is read as the reference's value, and the search for it.

Tried in order of simplicity: as it is, unit axes dropped, axes permuted, heads split or merged, a flat array, a part of
a fused or padded one. Contents decide wherever two fit the shapes. Apart from those, because that may be the engine's
fault: equal rows in another order. Leaves out which values belong together: alignment.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLES = 4096
"""Elements by which layouts are compared."""

NEAR = 0.1
"""Relative distance under which two arrays are the same value with noise: a wrong order leaves about 1.4."""

MASKED = 1e30
"""A score below its negative is a mask, by whichever number."""

ROWS = 4096
"""Rows that are looked up one by one in another order, at most."""

MOST_STARTS = 64
"""Places in an axis where a part that is no equal share of it is looked for."""

_MOST_AXES = 6


@dataclass(frozen=True)
class Layout:
    """Reshape to `first`, take `part`, reshape to `split`, permute by `axes`, put blocks into `order`, reshape to
    `shape`.

    `rows`: the engine computed only these of the last axis but one; the others are zeros here, and not judged.
    """

    shape: tuple[int, ...]
    split: tuple[int, ...] = ()  # (): as it is
    axes: tuple[int, ...] = ()  # (): in order
    part: tuple[int, int, int] = ()  # type: ignore[assignment]  # (axis, start, stop) of the candidate's array; (): all
    order: tuple[int, ...] = ()  # of equal blocks along axis `along` of the reference's shape
    along: int = 0
    first: tuple[int, ...] = ()  # the shape in which a part is one, where that is not the candidate's own
    rows: tuple[int, ...] = ()  # (): all

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """The candidate's array in the reference's logical shape (a view where possible)."""
        if self.first:
            array = array.reshape(self.first)
        if self.part:
            axis, start, stop = self.part
            array = array[(slice(None),) * axis + (slice(start, stop),)]
        if self.split:
            array = array.reshape(self.split)
        if self.axes:
            array = array.transpose(self.axes)
        if self.rows:
            whole = np.zeros(self.shape, array.dtype)
            whole[..., self.rows, :] = array.reshape(*self.shape[:-2], len(self.rows), self.shape[-1])
            array = whole
        array = array.reshape(self.shape)
        return _in_order(array, self.along, self.order) if self.order else array

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """The reference's array in the candidate's order, flat; of a part, that part only."""
        if self.order:
            array = _in_order(array, self.along, tuple(int(i) for i in np.argsort(self.order)))
        if self.rows:
            array = array[..., self.rows, :]
        if not self.axes:
            return array.reshape(-1)
        inner = tuple(self.split[a] for a in self.axes)
        return array.reshape(inner).transpose(np.argsort(self.axes)).reshape(-1)

    @property
    def oddity(self) -> tuple[bool, bool, int]:
        """The larger, the less likely an engine means it: another order, parts in turns, axes that change places."""
        turned = sum(a > b for a, b in itertools.combinations(self.axes, 2))
        return bool(self.order), bool(self.first), turned

    @property
    def missing(self) -> NDArray[np.bool_] | None:
        """Rows that the engine did not compute, broadcastable to the reference's shape; None: it has all."""
        if not self.rows:
            return None
        return ~np.isin(np.arange(self.shape[-2]), self.rows)[:, None]

    @property
    def words(self) -> str:
        """For people: "axes permuted to (1, 0, 2)", or "" where nothing is changed."""
        said = []
        if self.part:
            of = f" of {list(self.first)}" if self.first else ""
            said.append(f"part {self.part[1]}:{self.part[2]} of axis {self.part[0]}{of}")
        if self.axes and self.axes != tuple(range(len(self.axes))):
            said.append(f"axes {list(self.split)} permuted by {list(self.axes)}")
        if self.order:
            said.append(f"{len(self.order)} blocks of axis {self.along} in another order")
        if self.rows:
            said.append(f"{len(self.rows)} of {self.shape[-2]} rows")
        return ", ".join(said)


def _in_order(array: NDArray[Any], along: int, order: tuple[int, ...]) -> NDArray[Any]:
    n = array.shape[along] // len(order)
    rows = (np.asarray(order)[:, None] * n + np.arange(n)).reshape(-1)
    taken: NDArray[Any] = array.take(rows, axis=along)
    return taken


def by_shape(mine: tuple[int, ...], theirs: tuple[int, ...]) -> list[Layout]:
    """Every layout that the shapes allow for arrays of equal size; `mine` is the reference's."""
    if math.prod(mine) != math.prod(theirs):
        return []
    short, other = units_dropped(mine), units_dropped(theirs)
    if short == other:
        return [Layout(mine)]
    found = [Layout(mine, other, axes) for axes in _permutations(other, short)]
    if _merges(short, other):
        found.append(Layout(mine))
    for split in _refined(other, short):  # the candidate's merged axes are split as the reference's are
        found += [Layout(mine, split, axes) for axes in _permutations(split, short)]
    for split in _refined(short, other):  # and the other way round
        found += [Layout(mine, other, axes) for axes in _permutations(other, split)]
    if len(other) == 1 and len(short) > 1:  # flat: any order of the reference's axes
        for axes in itertools.permutations(range(len(short))):
            back = tuple(int(i) for i in np.argsort(axes))
            found.append(Layout(mine, tuple(short[a] for a in axes), back))
    return list(dict.fromkeys(_plain(layout) for layout in found))


def _plain(layout: Layout) -> Layout:
    return Layout(layout.shape) if layout.axes == tuple(range(len(layout.axes))) else layout


def parts(mine: tuple[int, ...], theirs: tuple[int, ...]) -> Iterator[Layout]:
    """Layouts that take a part of a larger array: what is not padding, one of several fused side by side, and then one
    of several in turns (q, k and v of each head; gate and up of each channel)."""
    short, size = units_dropped(mine), math.prod(mine)
    if math.prod(theirs) <= size or 0 in mine:
        return
    for axis, n in enumerate(theirs):
        yield from _parts(mine, short, theirs, axis, (), n)
    for axis, n in enumerate(theirs):
        for groups in (d for d in _divisors(n) if size % d == 0):
            first = (*theirs[:axis], groups, n // groups, *theirs[axis + 1 :])
            yield from _parts(mine, short, first, axis + 1, first, n // groups)


def _parts(
    mine: tuple[int, ...], short: tuple[int, ...], whole: tuple[int, ...], axis: int, first: tuple[int, ...], n: int
) -> Iterator[Layout]:
    """Parts along one axis of length `n`; `mine` and `short` are the same shape with and without axes of one."""
    wanted, over = divmod(math.prod(mine), math.prod(whole) // n)
    if over or not 0 < wanted < n:
        return
    taken = (*whole[:axis], wanted, *whole[axis + 1 :])
    layouts = by_shape(short, taken)
    for start in _starts(n, wanted) if layouts else ():
        for layout in layouts:
            yield replace(layout, shape=mine, part=(axis, start, start + wanted), first=first)


@cache
def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(2, n // 2 + 1) if n % d == 0)


def _starts(n: int, wanted: int) -> list[int]:
    """Where a part may begin: after others of its size, before padding, after padding, or where sizes divide."""
    step = math.gcd(n, wanted)
    fine = range(0, n - wanted + 1, step) if (n - wanted) // step < MOST_STARTS else ()
    return list(dict.fromkeys((*range(0, n - wanted + 1, wanted), n - wanted, *fine)))


def distance(layout: Layout, array: NDArray[Any], reference: NDArray[Any], samples: int = SAMPLES) -> float:
    """Relative distance of a candidate's array, read so, from the reference's, on a sample; NaN counts as far. Rows
    that the engine did not compute are left out."""
    if reference.size == 0:
        return 0.0
    if layout.rows:
        computed = replace(layout, shape=(*layout.shape[:-2], len(layout.rows), layout.shape[-1]), rows=())
        return distance(computed, array, reference[..., layout.rows, :], samples)
    at = np.unravel_index(_sample(reference.size, samples), reference.shape)
    own = np.asarray(layout.apply(array)[at], np.float64)
    wanted = np.asarray(reference[at], np.float64)
    same = (own == wanted) | (np.isnan(own) & np.isnan(wanted)) | ((own < -MASKED) & (wanted < -MASKED))
    size = float(np.linalg.norm(np.where(np.abs(wanted) < MASKED, np.nan_to_num(wanted), 0)))
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.where(same, 0, np.nan_to_num(own - wanted, nan=1e30, posinf=1e30, neginf=1e30))
        return float(np.linalg.norm(np.clip(apart, -1e30, 1e30))) / (size or 1.0)


def _sample(size: int, samples: int) -> NDArray[np.int64]:
    if size <= samples:
        return np.arange(size)
    # a fixed stride would meet the same column of every row
    return np.asarray(np.random.default_rng(size).integers(0, size, samples))


def best(
    mine: tuple[int, ...], array: NDArray[Any], reference: NDArray[Any], *, near: float = NEAR
) -> tuple[Layout, float] | None:
    """The layout under which two arrays of equal size agree to within `near`; the simplest first."""
    found = min(
        ((layout, distance(layout, array, reference)) for layout in by_shape(mine, array.shape)),
        key=lambda pair: pair[1],
        default=None,
    )
    return found if found is not None and found[1] <= near else None


def one_row(mine: tuple[int, ...], theirs: tuple[int, ...]) -> Iterator[Layout]:
    """Layouts of an array that is only the last row of the last axis but one, or only the first."""
    if len(mine) < 2 or mine[-2] < 2 or math.prod(theirs) * mine[-2] != math.prod(mine):
        return
    for row in (mine[-2] - 1, 0):
        for layout in by_shape((*mine[:-2], 1, mine[-1]), theirs):
            yield replace(layout, shape=mine, rows=(row,))


def best_row(
    mine: tuple[int, ...], array: NDArray[Any], reference: NDArray[Any], *, near: float = NEAR
) -> tuple[Layout, float] | None:
    """The one row that agrees."""
    found = ((layout, distance(layout, array, reference)) for layout in one_row(mine, array.shape))
    return next((pair for pair in found if pair[1] <= near), None)


def best_part(
    mine: tuple[int, ...], array: NDArray[Any], reference: NDArray[Any], *, near: float = NEAR
) -> tuple[Layout, float] | None:
    """The part of a larger array that agrees."""
    found = ((layout, distance(layout, array, reference)) for layout in parts(mine, array.shape))
    return next((pair for pair in found if pair[1] <= near), None)


def reordered(
    mine: tuple[int, ...], array: NDArray[Any], reference: NDArray[Any], *, near: float = NEAR
) -> tuple[Layout, float] | None:
    """The same rows (of some axis) in another order: each is looked up by its numbers."""
    if reference.size == 0:
        return None
    for start in by_shape(mine, array.shape):
        if start.oddity > Layout(mine, axes=(1, 0)).oddity:
            continue
        read = start.apply(array)
        for along, n in enumerate(mine):
            if not 1 < n <= ROWS:
                continue
            own = np.moveaxis(read, along, 0).reshape(n, -1)
            wanted = np.moveaxis(reference, along, 0).reshape(n, -1)
            order = _matching_rows(np.asarray(own, np.float64), np.asarray(wanted, np.float64))
            if order is not None:
                layout = replace(start, order=order, along=along)
                apart = distance(layout, array, reference)
                if apart <= near:
                    return layout, apart
    return None


def _matching_rows(own: NDArray[np.float64], wanted: NDArray[np.float64]) -> tuple[int, ...] | None:
    """For each wanted row the one of `own` that is nearest, where that is one to one."""
    columns = _sample(own.shape[1], 64)
    a, b = np.nan_to_num(own[:, columns]), np.nan_to_num(wanted[:, columns])
    a, b = np.clip(a, -1e9, 1e9), np.clip(b, -1e9, 1e9)
    apart = (b**2).sum(1)[:, None] - 2 * b @ a.T + (a**2).sum(1)[None]
    order = apart.argmin(1)
    return tuple(int(i) for i in order) if len(set(order.tolist())) == len(order) else None


def units_dropped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _permutations(theirs: tuple[int, ...], mine: tuple[int, ...]) -> list[tuple[int, ...]]:
    if sorted(theirs) != sorted(mine) or len(theirs) > _MOST_AXES:
        return []
    return [p for p in itertools.permutations(range(len(theirs))) if tuple(theirs[a] for a in p) == mine]


def _refined(coarse: tuple[int, ...], fine: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """`coarse` with axes split so that its sizes are those of `fine` in some order."""
    if len(fine) > _MOST_AXES or len(coarse) >= len(fine):
        return
    for order in itertools.permutations(range(len(fine))):
        sizes = tuple(fine[a] for a in order)
        if _merges(coarse, sizes):
            yield sizes


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
