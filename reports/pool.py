"""Two arrays of one shape, pooled on one grid, so that one bad element stays visible at any size.

A block is shown by its element of the largest magnitude, and by its largest difference. One pass over both, a band of
rows at a time, so that what it makes stays in the cache. Leaves out colours and files: picture.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALL = 1 << 16  # elements

MOST_GROUPS = 16
"""Heads shown beside each other; more are stacked."""


@dataclass(frozen=True)
class Side:
    """What one pass says of one array; of its finite elements where there are others."""

    low: float
    high: float
    mean: float
    rms: float
    nans: int
    infs: int


@dataclass(frozen=True)
class Pooled:
    """The grid: largest elements of both, the largest difference; `nothing` marks what holds no element."""

    reference: NDArray[Any]
    candidate: NDArray[Any]
    difference: NDArray[Any]
    nothing: NDArray[Any]
    by_row: NDArray[Any]  # the largest difference of each row of each group
    by_column: NDArray[Any]
    sides: tuple[Side, Side]
    layout: str  # what the picture shows, in words


def matrix(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """An array as groups of matrices (groups, rows, columns): heads are groups, a vector is one row."""
    columns = shape[-1] if shape else 1
    rows = shape[-2] if len(shape) > 1 else 1
    return math.prod(shape[:-2]), rows, columns


def pool(reference: NDArray[Any], candidate: NDArray[Any], size: int) -> Pooled:
    """Pools to at most `size` a side. Both arrays have at least one element."""
    groups, rows, columns = matrix(reference.shape)
    count = reference.size
    if rows * groups < 8 and columns >= 64:
        width = math.isqrt(count - 1) + 1
        tall = -(-count // width)
        parts = [_pool(_filled(reference, tall, width), _filled(candidate, tall, width), size, count)]
        words = f"{count:,} elements, folded to {tall} rows of {width}"
        across = 1
        sums = [[_sums(np.asarray(side, np.float32))] for side in (reference, candidate)]  # without what fills the fold
        error = difference(reference, candidate).reshape(groups * rows, columns)
        by_row, by_column = error.max(1), error.max(0)
    else:
        stacked = groups if groups <= MOST_GROUPS else 1
        across = math.isqrt(stacked - 1) + 1
        shape = (stacked, groups * rows // stacked, columns)
        parts = [
            _pool(r, c, max(4, size // across), r.size)
            for r, c in zip(reference.reshape(shape), candidate.reshape(shape), strict=True)
        ]
        words = f"{shape[1]:,} rows down, {columns:,} columns across"
        words += f", {groups} groups from the top left" if stacked > 1 else f", {groups} groups below each other"
        words = words.removesuffix(", 1 groups below each other")
        sums = [[part.sums[side] for part in parts] for side in (0, 1)]
        by_row = np.concatenate([part.by_row for part in parts])
        by_column = np.max([part.by_column for part in parts], axis=0)
    nothing = _tiled(
        [np.zeros(p.reference.shape, bool) if p.nothing is None else p.nothing for p in parts], across, True
    )
    reference_grid, candidate_grid, error_grid = (
        _tiled([getattr(part, name) for part in parts], across, 0) for name in ("reference", "candidate", "difference")
    )
    return Pooled(
        reference_grid,
        candidate_grid,
        error_grid,
        nothing,
        by_row,
        by_column,
        (_side(reference, sums[0]), _side(candidate, sums[1])),
        words,
    )


def difference(reference: NDArray[Any], candidate: NDArray[Any]) -> NDArray[Any]:
    """|candidate − reference| as float32; equal infinities, and two NaN, differ by 0."""
    r, c = np.asarray(reference, np.float32), np.asarray(candidate, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(c - r)
        if not np.isfinite(error.max()):
            error = np.where((r == c) | (np.isnan(r) & np.isnan(c)), np.float32(0), error)
    return np.asarray(error)


@dataclass(frozen=True)
class _Part:
    reference: NDArray[Any]
    candidate: NDArray[Any]
    difference: NDArray[Any]
    by_row: NDArray[Any]
    by_column: NDArray[Any]
    nothing: NDArray[Any] | None
    sums: tuple[tuple[float, float, float, float], tuple[float, float, float, float]]  # low, high, sum, sum of squares


def _filled(array: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Row by row into a matrix, the rest filled with its last element, so that no extreme is made up."""
    flat = np.empty(rows * columns, np.float32)
    flat[: array.size] = array.reshape(-1)
    flat[array.size :] = flat[array.size - 1]
    return flat.reshape(rows, columns)


def _pool(reference: NDArray[Any], candidate: NDArray[Any], size: int, count: int) -> _Part:
    rows, columns = reference.shape
    tall, wide = min(rows, size), min(columns, size)
    edges = np.linspace(0, rows, tall + 1).astype(int)
    starts = np.linspace(0, columns, wide + 1).astype(int)[:-1]
    if reference.size <= _SMALL:
        return _pool_at_once(reference, candidate, edges, starts, count)
    grids = [np.empty((tall, wide), np.float32) for _ in range(3)]
    by_row, by_column = np.empty(rows, np.float32), np.zeros(columns, np.float32)
    sums = [[math.inf, -math.inf, 0.0, 0.0] for _ in range(2)]
    for i in range(tall):
        band = slice(edges[i], edges[i + 1])
        both = [np.asarray(side[band], np.float32) for side in (reference, candidate)]
        error = difference(*both)
        by_row[band] = error.max(1)
        worst = error.max(0)
        np.maximum(by_column, worst, out=by_column)
        grids[2][i] = np.maximum.reduceat(worst, starts)
        for side, part in enumerate(both):
            high, low = part.max(0), part.min(0)
            grids[side][i] = _larger(np.maximum.reduceat(high, starts), np.minimum.reduceat(low, starts))
            total = sums[side]
            part_sums = _sums(part)
            total[0], total[1] = min(total[0], part_sums[0]), max(total[1], part_sums[1])
            total[2], total[3] = total[2] + part_sums[2], total[3] + part_sums[3]
    low_high = [(total[0], total[1], total[2], total[3]) for total in sums]
    nothing = _nothing(edges, starts, rows, columns, count)
    return _Part(grids[0], grids[1], grids[2], by_row, by_column, nothing, (low_high[0], low_high[1]))


def _pool_at_once(
    reference: NDArray[Any], candidate: NDArray[Any], edges: NDArray[Any], starts: NDArray[Any], count: int
) -> _Part:
    """The same for a value that fits into the cache: a tenth of the calls."""
    both = [np.asarray(side, np.float32) for side in (reference, candidate)]
    error = difference(*both)

    def largest(part: NDArray[Any], of: np.ufunc) -> NDArray[Any]:
        part = part if len(edges) > part.shape[0] else of.reduceat(part, edges[:-1], axis=0)
        return part if len(starts) == part.shape[1] else of.reduceat(part, starts, axis=1)

    grids = [_larger(largest(part, np.maximum), largest(part, np.minimum)) for part in both]
    nothing = _nothing(edges, starts, reference.shape[0], reference.shape[1], count)
    sums = (_sums(both[0]), _sums(both[1]))
    return _Part(grids[0], grids[1], largest(error, np.maximum), error.max(1), error.max(0), nothing, sums)


def _larger(top: NDArray[Any], bottom: NDArray[Any]) -> NDArray[Any]:
    """The one of larger magnitude; NaN where there is one."""
    return np.where((top >= -bottom) | np.isnan(top), top, bottom)


def _sums(part: NDArray[Any]) -> tuple[float, float, float, float]:
    flat = part.reshape(-1)
    with np.errstate(all="ignore"):
        return float(flat.min()), float(flat.max()), float(flat.sum()), float(np.dot(flat, flat))


def _nothing(edges: NDArray[Any], starts: NDArray[Any], rows: int, columns: int, count: int) -> NDArray[Any] | None:
    """The blocks of a folded value that lie behind its last element."""
    if count == rows * columns:
        return None
    return np.asarray(edges[:-1, None] * columns + starts >= count)


def _side(array: NDArray[Any], sums: list[tuple[float, float, float, float]]) -> Side:
    low, high = min(s[0] for s in sums), max(s[1] for s in sums)
    total, squares = sum(s[2] for s in sums), sum(s[3] for s in sums)
    if math.isfinite(total) and math.isfinite(squares) and math.isfinite(low) and math.isfinite(high):
        return Side(low, high, total / array.size, math.sqrt(squares / array.size), 0, 0)
    flat = np.asarray(array, np.float64).reshape(-1)
    nans = int(np.isnan(flat).sum())
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return Side(math.nan, math.nan, math.nan, math.nan, nans, array.size - nans)
    rms = math.sqrt(float(np.dot(flat, flat)) / flat.size)
    return Side(float(flat.min()), float(flat.max()), float(flat.mean()), rms, nans, array.size - nans - flat.size)


def _tiled(parts: list[NDArray[Any]], across: int, between: float) -> NDArray[Any]:
    """Grids beside each other, with a line of `between`."""
    if len(parts) == 1:
        return parts[0]
    tall, wide = parts[0].shape
    down = -(-len(parts) // across)
    sheet = np.full((down * (tall + 1) - 1, across * (wide + 1) - 1), between, parts[0].dtype)
    for i, part in enumerate(parts):
        y, x = i // across * (tall + 1), i % across * (wide + 1)
        sheet[y : y + tall, x : x + wide] = part
    return sheet
