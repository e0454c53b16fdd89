"""The NumPy twin of measures.c: the oracle of its tests, and the way where there is no compiler.

Every block is taken in float64 by the plain formulas; nothing is clever, and it is some thirty times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
ULP_EDGES = (0, 1, 2, 4, 16, 256, 65536)  # of the ulp histogram: how many elements lie above each
FIELDS = 27 + len(ULP_EDGES)  # measures.py: Sums
_BLOCK = 1 << 16

Array = np.ndarray[Any, np.dtype[Any]]


class Part(NamedTuple):
    """What one thread found: the sums with the worst elements behind them, and the sums of slices (5 × slices)."""

    sums: list[float]
    rows: np.ndarray | None
    columns: np.ndarray | None


def measure_numpy(
    c: np.ndarray,
    c_type: str,
    r: np.ndarray,
    r_type: str,
    shape: tuple[int, int],
    base: int,
    atol: float,
    rtol: float,
    mask: float,
    shift: int,
    histogram: bool,
    worst: int,
    rows: bool,
    columns: bool,
) -> Part:
    """The sums of two flat arrays seen as `shape`, whose first element is number `base` of the whole array."""
    T, D = shape
    out = np.zeros(FIELDS)
    out[[13, 15, 17, 19]] = -1
    row = np.zeros((5, T)) if rows else None
    column = np.zeros((5, D)) if columns else None
    found: list[tuple[float, float, float, float]] = []
    float32 = c_type in MANTISSA and "float64" not in (c_type, r_type)
    tiny = 1.0 if c_type not in MANTISSA else float(np.finfo(np.float32 if float32 else np.float64).tiny)
    most = float(np.finfo(np.float32 if float32 else np.float64).max)
    for start, end in _blocks(T, D, rows or columns):
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            raw_c, raw_r = _wide(c[start:end], c_type), _wide(r[start:end], r_type)
            a, b = raw_c.astype(np.float64), raw_r.astype(np.float64)
        index = np.arange(base + start, base + end, dtype=np.float64)
        kind_c, kind_r = _kinds(a, mask), _kinds(b, mask)
        fine = (kind_c == 0) & (kind_r == 0)
        odd = kind_c != kind_r
        with np.errstate(all="ignore"):
            e = np.where(fine, _difference(raw_c, raw_r), 0.0)
            error = np.where(odd, np.inf, np.abs(e))
            rel = np.where(odd, np.inf, np.abs(e) / np.where(fine, np.maximum(np.abs(b), tiny), 1.0))
            rel[rel > most] = np.inf
            outside = odd | (fine & ~(np.abs(e) <= atol + rtol * np.abs(b)))
            ulps = np.where(fine, _ulps(raw_c, raw_r), 0.0)
        x, y, ey = a[fine], b[fine], e[fine]
        _add_moments(out, x, y, ey)
        out[0] += end - start
        _raise(out, 12, rel, index)
        _raise(out, 14, ulps, index)
        for at, flags in ((16, outside), (18, odd)):
            out[at] += flags.sum()
            if out[at + 1] < 0 and flags.any():
                out[at + 1] = index[int(np.argmax(flags))]
        out[20] += np.count_nonzero(e)
        for kind in (1, 2, 3):
            out[20 + kind] += (kind_c == kind).sum()
            out[23 + kind] += (kind_r == kind).sum()
        if histogram:
            out[27:] += [np.count_nonzero(ulps > edge * 2.0**shift) for edge in ULP_EDGES]
        found = _worst(found, error, index, a, b, worst)
        _add_slices(row, column, start, D, (e, e * e, np.where(fine, b, 0.0), error))
    found += [(0.0, -1.0, 0.0, 0.0)] * (worst - len(found))
    return Part([*out.tolist(), *(number for w in found for number in w)], row, column)


def _blocks(T: int, D: int, sliced: bool) -> Iterator[tuple[int, int]]:
    step = max(1, _BLOCK // max(D, 1)) * D if sliced else _BLOCK
    return ((start, min(start + step, T * D)) for start in range(0, T * D, max(step, 1)))


def _wide(array: Array, kind: str) -> Array:
    if kind == "bfloat16":
        bits = array.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return array.astype(np.float32) if kind == "float16" else array


def _kinds(array: Array, mask: float) -> Array:
    """0 a number, 1 NaN, 2 +inf, 3 −inf or masked."""
    kinds: Array = np.isnan(array).astype(np.int8)
    kinds[array == np.inf] = 2
    kinds[array <= mask] = 3
    return kinds


def _difference(c: Array, r: Array) -> Array:
    """c − r as float64; of integers exactly before it is rounded, so that it is zero only where they are equal."""
    if c.dtype.kind == "f":
        difference: Array = np.subtract(c, r, dtype=np.float64)
    else:
        distance = np.maximum(c, r).astype(np.uint64) - np.minimum(c, r).astype(np.uint64)
        difference = np.where(c >= r, 1.0, -1.0) * distance.astype(np.float64)
    return difference


def _ulps(c: Array, r: Array) -> Array:
    """Distance of the two numbers among all floats in order (+0 and −0 are one); of integers the difference."""
    if c.dtype.kind != "f":
        return np.fabs(_difference(c, r))
    kind = np.result_type(c, r)
    bits = np.int32 if kind == np.float32 else np.int64
    ordered = []
    for side in (c, r):
        i = side.astype(kind).view(bits).astype(np.int64)
        ordered.append(np.where(i < 0, -(i & np.iinfo(bits).max), i))
    return np.fabs(_difference(*ordered))


def _add_moments(out: np.ndarray, c: np.ndarray, r: np.ndarray, e: np.ndarray) -> None:
    n, m = out[1], len(r)
    if m == 0:
        return
    mean_r, mean_e = r.mean(), e.mean()
    dr, de, share = mean_r - out[2], mean_e - out[4], m / (n + m)
    out[3] += ((r - mean_r) ** 2).sum() + dr * dr * n * share
    out[5] += ((e - mean_e) * (r - mean_r)).sum() + dr * de * n * share
    out[2] += dr * share
    out[4] += de * share
    out[1] += m
    out[6:9] += [(e * e).sum(), (c * c).sum(), (c * r).sum()]
    out[9:12] = np.maximum(out[9:12], [np.abs(e).max(), np.abs(c).max(), np.abs(r).max()])


def _raise(out: np.ndarray, field: int, numbers: np.ndarray, index: np.ndarray) -> None:
    best = int(np.argmax(numbers))
    if numbers[best] > out[field]:
        out[field], out[field + 1] = numbers[best], index[best]


def _worst(
    found: list[tuple[float, float, float, float]],
    error: np.ndarray,
    index: np.ndarray,
    c: np.ndarray,
    r: np.ndarray,
    k: int,
) -> list[tuple[float, float, float, float]]:
    if k == 0 or not error.any():
        return found
    limit = np.partition(error, -k)[-k] if k < len(error) else 0.0
    at = np.flatnonzero((error >= limit) & (error > 0))
    at = at[np.argsort(-error[at], kind="stable")][:k]
    more = [(float(error[i]), float(index[i]), float(c[i]), float(r[i])) for i in at]
    return sorted([*found, *more], key=lambda w: (-w[0], w[1]))[:k]


def _add_slices(
    row: np.ndarray | None, column: np.ndarray | None, start: int, D: int, of: tuple[np.ndarray, ...]
) -> None:
    if row is None and column is None:
        return
    e, ee, r, error = (x.reshape(-1, D) for x in of)
    sums = (e, ee, r * r, e * r)
    if row is not None:
        here = slice(start // D, start // D + len(e))
        for i, x in enumerate(sums):
            row[i, here] = x.sum(axis=1)
        row[4, here] = error.max(axis=1)
    if column is not None:
        for i, x in enumerate(sums):
            column[i] += x.sum(axis=0)
        column[4] = np.maximum(column[4], error.max(axis=0))
