"""One value looked at closely: pictures, where in it the error is, histograms, the worst elements and what is around.

Plain data for the templates; shapes of charts are SVG paths. Leaves out which values are looked at: gallery.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .picture import ERRORS, VALUES, Triptych, png, svg_paths, triptych
from .pool import Side, difference, matrix, pool
from .rows import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

FULL = 168  # elements a side of a picture; as SVG fewer
FULL_SVG = 96
WORST = 8
_SAMPLE = 200_000  # elements of a histogram
_BINS = 48
_PROFILE = 120  # points of a profile


@dataclass(frozen=True)
class Picture:
    """One of the three: a data URI, or the paths of an SVG."""

    title: str
    width: int
    height: int
    uri: str
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Profile:
    """The largest difference along one axis: an area in a box of 120 by 32."""

    title: str
    path: str
    count: int
    top: float
    at: int  # where it is largest


@dataclass(frozen=True)
class Element:
    index: tuple[int, ...]
    reference: float
    candidate: float
    difference: float
    ulps: float


@dataclass(frozen=True)
class Window:
    """Both values around the worst element."""

    prefix: tuple[int, ...]  # the index of the matrix in the value
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    reference: tuple[tuple[float, ...], ...]
    candidate: tuple[tuple[float, ...], ...]
    row: int  # of the worst element
    column: int


@dataclass(frozen=True)
class Histogram:
    """Two outlines over the same bins, in a box of 240 by 64, and the ends of the axis."""

    reference: str
    candidate: str
    low: float
    high: float
    every: int  # n: every n-th element was counted


@dataclass(frozen=True)
class Look:
    row: Row
    pictures: tuple[Picture, ...]
    layout: str
    top: float
    clipped: bool
    decades: int
    profiles: tuple[Profile, ...]
    histogram: Histogram | None
    worst: tuple[Element, ...]
    window: Window | None
    sides: tuple[Side, Side]
    equal: bool


def look(row: Row, reference: NDArray[Any], candidate: NDArray[Any], heads: int, *, as_svg: bool) -> Look:
    """Everything about one value. `heads`: of the model, 0 where it has none."""
    grid = pool(reference, candidate, FULL_SVG if as_svg else FULL)
    drawn = triptych(grid)
    groups, rows, columns = matrix(reference.shape)
    error = grid.by_row
    worst = tuple(_worst(reference, candidate, error))
    channels_first = "conv" in row.op
    profiles = []
    if rows > 1:
        profiles.append(
            _profile("by row (channel)" if channels_first else "by row", error.reshape(groups, rows).max(0))
        )
    if columns > 1:
        # of scores both axes are positions
        channel = not channels_first and groups == 1 and len(reference.shape) > 1
        profiles.append(_profile("by column (channel)" if channel else "by column", grid.by_column))
    if groups > 1:
        profiles.append(_profile("by head" if groups == heads else "by group", error.reshape(groups, rows).max(1)))
    elif heads > 1 and "attn" in row.name and columns % heads == 0 and rows > 0:
        profiles.append(_profile("by head", grid.by_column.reshape(heads, -1).max(1)))
    return Look(
        row,
        _pictures(drawn, as_svg),
        grid.layout,
        drawn.scale.top,
        drawn.scale.clipped,
        drawn.scale.decades,
        tuple(profiles),
        _histogram(reference, candidate, grid.sides),
        worst,
        _window(reference, candidate, worst[0].index) if worst else None,
        grid.sides,
        not worst,
    )


def _pictures(drawn: Triptych, as_svg: bool) -> tuple[Picture, ...]:
    made = []
    for title, steps, palette in (
        ("reference", drawn.reference, VALUES),
        ("candidate", drawn.candidate, VALUES),
        ("difference", drawn.difference, ERRORS),
    ):
        height, width = steps.shape
        uri = "" if as_svg else png(steps, palette)
        made.append(Picture(title, width, height, uri, tuple(svg_paths(steps, palette)) if as_svg else ()))
    return tuple(made)


def _profile(title: str, error: NDArray[Any]) -> Profile:
    """At most _PROFILE steps, each the largest of its part; linear, so that a bad row stands out."""
    finite = np.where(np.isfinite(error), error, np.float32(0))
    top = float(finite.max()) if finite.size else 0.0
    at = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    points = min(_PROFILE, error.size)
    starts = np.linspace(0, error.size, points + 1).astype(int)[:-1]
    heights = np.maximum.reduceat(np.where(np.isfinite(error), error, np.float32(top or 1)), starts) / (top or 1)
    step = 120 / points
    path = "M0 32" + "".join(f"V{32 - 32 * h:.1f}H{(i + 1) * step:.1f}" for i, h in enumerate(heights)) + "V32z"
    return Profile(title, path, error.size, top if np.isfinite(error).all() else math.inf, at)


def _worst(reference: NDArray[Any], candidate: NDArray[Any], by_row: NDArray[Any]) -> list[Element]:
    """The elements with the largest difference; they lie in the rows with the largest."""
    rows = np.argsort(np.where(np.isnan(by_row), np.inf, by_row), kind="stable")[::-1][:WORST]
    rows = rows[~(by_row[rows] == 0)]
    if not rows.size:
        return []
    columns = reference.shape[-1] if reference.shape else 1
    r, c = (np.asarray(a.reshape(-1, columns)[rows], np.float32) for a in (reference, candidate))
    error = difference(r, c)
    order = np.argsort(np.where(np.isnan(error), np.inf, error).reshape(-1), kind="stable")[::-1][:WORST]
    found = []
    for at in order:
        i, j = divmod(int(at), columns)
        if error[i, j] == 0:
            break
        index = tuple(int(n) for n in np.unravel_index(int(rows[i]) * columns + j, reference.shape or (1,)))
        with np.errstate(over="ignore"):  # of a mask's lowest number there is none
            size = float(np.spacing(np.float32(abs(r[i, j])))) if np.isfinite(r[i, j]) else math.nan
        found.append(Element(index, float(r[i, j]), float(c[i, j]), float(error[i, j]), float(error[i, j]) / size))
    return found


def _window(reference: NDArray[Any], candidate: NDArray[Any], index: tuple[int, ...]) -> Window | None:
    if not reference.shape:
        return None
    shape = reference.shape if reference.ndim > 1 else (1, *reference.shape)
    at = index if reference.ndim > 1 else (0, *index)
    rows = _around(at[-2], shape[-2], 5)
    columns = _around(at[-1], shape[-1], 7)
    parts = [
        np.asarray(a.reshape(shape)[at[:-2]][rows.start : rows.stop, columns.start : columns.stop], np.float32)
        for a in (reference, candidate)
    ]
    grids = [tuple(tuple(float(x) for x in line) for line in part) for part in parts]
    return Window(at[:-2], tuple(rows), tuple(columns), grids[0], grids[1], at[-2], at[-1])


def _around(at: int, size: int, count: int) -> range:
    start = max(0, min(at - count // 2, size - count))
    return range(start, min(size, start + count))


def _histogram(reference: NDArray[Any], candidate: NDArray[Any], sides: tuple[Side, Side]) -> Histogram | None:
    low, high = min(s.low for s in sides), max(s.high for s in sides)
    if not (math.isfinite(low) and math.isfinite(high) and high > low and math.isfinite(high - low)):
        return None
    every = max(1, reference.size // _SAMPLE)
    counts = []
    for array in (reference, candidate):
        part = np.asarray(array.reshape(-1)[::every], np.float64)
        counts.append(np.histogram(part[np.isfinite(part)], _BINS, (low, high))[0])
    # the square root shows the tails, where the differences are
    top = math.sqrt(max(1, *(int(c.max()) for c in counts)))
    step = 240 / _BINS
    paths = [
        "M0 64" + "".join(f"V{64 - 62 * math.sqrt(n) / top:.1f}H{(i + 1) * step:g}" for i, n in enumerate(c)) + "V64z"
        for c in counts
    ]
    return Histogram(paths[0], paths[1], low, high, every)
