"""What one array looks like, in a few numbers: extremes and where they are, mean, rms, what is not finite, a histogram.

Read block by block, so that a memory-mapped array never comes into memory whole. Leaves out any comparison: judging two
arrays is the business of judge.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firstbad.errors import UsageError

_BLOCK = 1 << 18  # elements: 2 MB in float64, so that the block stays in the cache
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Summary:
    """Of the finite elements; all is NaN where there are none."""

    size: int
    min: float
    max: float
    mean: float
    rms: float
    zeros: int
    nans: int
    infs: int
    argmin: tuple[int, ...]  # (): there is no finite element
    argmax: tuple[int, ...]


def summarise(array: np.ndarray) -> Summary:
    low, high, total, square = math.inf, -math.inf, 0.0, 0.0
    finite = zeros = nans = 0
    where_low = where_high = -1
    for start, block in _blocks(array):
        good = block
        ends = block.min(), block.max()
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1])):
            nans += int(np.count_nonzero(np.isnan(block)))
            mask = np.isfinite(block)
            good = block[mask]
            if not good.size:
                continue
            ends = good.min(), good.max()
        finite += good.size
        zeros += good.size - int(np.count_nonzero(good))
        with np.errstate(over="ignore"):  # a mask's lowest float64 value: its square is infinite, and so is the rms
            total += float(good.sum())
            square += float(np.dot(good, good))
        if ends[0] < low:
            low, where_low = float(ends[0]), start + int(np.flatnonzero(block == ends[0])[0])
        if ends[1] > high:
            high, where_high = float(ends[1]), start + int(np.flatnonzero(block == ends[1])[0])
    if not finite:
        nan = math.nan
        return Summary(array.size, nan, nan, nan, nan, 0, nans, array.size - nans, (), ())
    return Summary(
        array.size,
        low,
        high,
        total / finite,
        math.sqrt(square / finite),
        zeros,
        nans,
        array.size - nans - finite,
        _index(where_low, array.shape),
        _index(where_high, array.shape),
    )


def histogram(array: np.ndarray, summary: Summary, bins: int = 32) -> str:
    """Bars from min to max of the finite elements; "" where there is nothing to tell apart."""
    if not summary.max > summary.min or not math.isfinite(summary.max - summary.min):
        return ""
    counts = np.zeros(bins, np.int64)
    for _, block in _blocks(array):
        good = block[np.isfinite(block)]
        counts += np.histogram(good, bins, (summary.min, summary.max))[0]
    # a bar that holds anything at all shows
    heights = np.ceil(counts / counts.max() * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[height] if count else " " for height, count in zip(heights, counts, strict=True))


def cut(array: np.ndarray, text: str) -> tuple[np.ndarray, str]:
    """The slice that `text` asks for ("0,:4,-1"), and how to write it in full."""
    parts = [part.strip() for part in text.strip("[] ").split(",")] if text.strip("[] ") else []
    if len(parts) > array.ndim:
        raise UsageError(f"--slice {text}: {len(parts)} indices for a value of shape {list(array.shape)}")
    index: list[int | slice] = []
    for part, size in zip(parts, array.shape, strict=False):
        try:
            if ":" in part:
                span = slice(*(int(word) if word.strip() else None for word in part.split(":")))
                span.indices(size)  # a step of 0 is refused
                index.append(span)
                continue
            if not -size <= int(part) < size:
                raise UsageError(f"--slice {text}: {part} is outside of shape {list(array.shape)}")
            index.append(int(part))
        except (ValueError, TypeError):
            raise UsageError(f"--slice {text}: `{part}` is no index: write it as 0,:4,10:20") from None
    full = parts + [":"] * (array.ndim - len(parts))
    return array[tuple(index)], f"[{', '.join(full)}]"


def corner(shape: tuple[int, ...], rows: int = 6, columns: int = 8) -> str:
    """The slice to show unasked: the first row and column block of the first matrix."""
    limits = (rows, columns)[2 - min(len(shape), 2) :]
    tail = [f":{min(n, limit)}" for n, limit in zip(shape[-2:], limits, strict=True)]
    return ",".join(["0"] * (len(shape) - len(tail)) + tail)


def _blocks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(index of the first element, block as float64), in C order."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        yield start, np.abs(block) if block.dtype.kind == "c" else block.astype(np.float64)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
