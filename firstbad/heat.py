"""A heat map of one array for a terminal: each character stands for a block and shows its largest element.

With colours: half blocks from blue (negative) over grey to orange, two blocks a character. Without: ten shades of
magnitude, a NaN as `?`, an infinite element as `!`. Leaves out axes beyond two: the rest is stacked from top to bottom.
"""

from __future__ import annotations

import math

import numpy as np

from firstbad.theme import Theme

_SHADES = " .:-=+*#%@"
_BLUE = (25, 32, 68, 74, 110, 152)  # from strong to weak, of the 256 colours
_ORANGE = (94, 130, 166, 172, 215, 223)
_MIDDLE, _NAN, _INFINITE, _NOTHING = 254, 201, 244, -1


def heat(array: np.ndarray, width: int, height: int, theme: Theme, top: float | None = None) -> tuple[list[str], float]:
    """Lines of at most `width` characters, and the magnitude at the end of the scale (`top`, or the array's own)."""
    grid = pooled(array, height * (2 if theme.on else 1), width)
    sizes = np.abs(grid[np.isfinite(grid)])
    end = top if top is not None else float(sizes.max()) if sizes.size else 0.0
    if theme.on:
        return _coloured(grid, end), end
    return ["".join(_shade(x, end) for x in row) for row in grid.tolist()], end


def pooled(array: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """At most `rows` × `columns` blocks, each the element of the largest magnitude, with its sign; NaN wins."""
    table = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    if table.shape[0] == 1 and table.shape[1] > columns:  # a long vector is folded
        wide = math.isqrt(table.shape[1] - 1) + 1
        padded = np.resize(table, (-(-table.shape[1] // wide), wide))
        padded.reshape(-1)[table.shape[1] :] = 0
        table = padded
    table = table.astype(np.float32)
    down = np.linspace(0, table.shape[0], min(rows, table.shape[0]) + 1).astype(int)[:-1]
    across = np.linspace(0, table.shape[1], min(columns, table.shape[1]) + 1).astype(int)[:-1]
    high = np.maximum.reduceat(np.maximum.reduceat(table, down, axis=0), across, axis=1)
    low = np.minimum.reduceat(np.minimum.reduceat(table, down, axis=0), across, axis=1)
    return np.where(np.isnan(high) | (high >= -low), high, low)


def _shade(x: float, end: float) -> str:
    if math.isnan(x):
        return "?"
    if math.isinf(x):
        return "!"
    part = min(1.0, abs(x) / end) if end > 0 else 0.0
    return _SHADES[math.ceil(part * (len(_SHADES) - 1))]  # what is not zero shows


def _colour(x: float, end: float) -> int:
    if math.isnan(x):
        return _NAN
    if math.isinf(x):
        return _INFINITE
    part = min(1.0, abs(x) / end) if end > 0 else 0.0
    if part < 0.04:
        return _MIDDLE
    side = _ORANGE if x > 0 else _BLUE
    return side[len(side) - 1 - min(len(side) - 1, int(part * len(side)))]


def _coloured(grid: np.ndarray, end: float) -> list[str]:
    lines = []
    for y in range(0, grid.shape[0], 2):
        upper = [_colour(x, end) for x in grid[y].tolist()]
        lower = [_colour(x, end) for x in grid[y + 1].tolist()] if y + 1 < grid.shape[0] else [_NOTHING] * len(upper)
        line = "".join(
            f"\x1b[38;5;{a}m\x1b[{'49' if b == _NOTHING else f'48;5;{b}'}m▀" for a, b in zip(upper, lower, strict=True)
        )
        lines.append(line + "\x1b[0m")
    return lines
