"""Order-free sketches of arrays: what stays the same however an array is laid out, and nearly so under noise.

The largest and smallest numbers and the quantiles between them: two activations of one shape have nearly the same
quantiles and quite other extremes. Leaves out the proof that two arrays are one value: layout.py compares elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXTREMES = 8
QUANTILES = 15
TOLERANCE = 0.02
"""Of the root mean square and of each number; noise of 1e-3 of a value moves an extreme by as much."""

_LARGE = 1e30  # a mask's lowest number, not an activation


@dataclass(frozen=True)
class Sketch:
    """Sorted extremes and quantiles; `rms` of the finite numbers; `apart`: how many were NaN, infinite or masked."""

    size: int
    numbers: NDArray[np.float64]
    rms: float
    apart: int

    @property
    def telling(self) -> bool:
        """All zeros, or one number over and over, say nothing about which value it is."""
        return self.size > 1 and float(np.ptp(self.numbers)) > 1e-6 * max(self.rms, 1e-30)


def sketch(array: NDArray[Any]) -> Sketch:
    flat = np.asarray(array).reshape(-1)
    flat = flat.astype(np.float32 if np.issubdtype(flat.dtype, np.floating) else np.float64, copy=False)
    good = np.isfinite(flat) & (np.abs(flat) < _LARGE)
    numbers = flat if good.all() else flat[good]
    n = numbers.size
    if n == 0:
        return Sketch(flat.size, np.zeros(1), 0.0, flat.size)
    ends = np.arange(min(EXTREMES, n))
    middle = np.linspace(0, n - 1, QUANTILES).astype(np.int64)
    ranks = np.unique(np.concatenate([ends, n - 1 - ends, middle]))
    chosen = np.sort(numbers)[ranks]  # np.partition takes 15 times as long for so many ranks
    rms = float(np.sqrt(np.mean(numbers.astype(np.float64) ** 2)))
    return Sketch(flat.size, chosen.astype(np.float64), rms, flat.size - n)


def ordered(array: NDArray[Any]) -> NDArray[np.float32]:
    """Its finite numbers, sorted: what `contains` looks into."""
    flat = np.asarray(array, np.float32).reshape(-1)
    return np.sort(flat[np.isfinite(flat) & (np.abs(flat) < _LARGE)])


def contains(whole: NDArray[np.float32], part: Sketch, near: float) -> bool:
    """Whether the sorted numbers hold all that a part's sketch shows, to within noise: its extremes are rare numbers,
    so a whole that does not hold the part hardly ever holds them. `near`: the relative distance that is noise."""
    if whole.size < part.size - part.apart:
        return False
    allowed = min(TOLERANCE, 4 * near) * (part.rms + np.abs(part.numbers))
    at = np.searchsorted(whole, part.numbers - allowed)
    return bool((whole[np.minimum(at, whole.size - 1)] <= part.numbers + allowed).all() and (at < whole.size).all())


def similar(a: Sketch, b: Sketch) -> bool:
    """Whether two arrays may hold the same numbers in some order, to within noise."""
    if a.size != b.size or a.apart != b.apart or a.numbers.shape != b.numbers.shape:
        return False
    for one, other in ((a.numbers[0], b.numbers[0]), (a.numbers[-1], b.numbers[-1])):  # most differ here already
        if not abs(one - other) <= TOLERANCE * (max(a.rms, b.rms) + max(abs(one), abs(other))):
            return False
    allowed = TOLERANCE * (max(a.rms, b.rms) + np.maximum(np.abs(a.numbers), np.abs(b.numbers)))
    return bool((np.abs(a.numbers - b.numbers) <= allowed).all())
