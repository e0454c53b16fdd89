"""Two traces beside each other, for `firstbad show --with`: what both hold of a value, and where they differ most.

By name and shape only, nothing is judged: that is `firstbad compare`. Plain data; the verb prints it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from firstbad.graph import Value
    from firstbad.trace import Trace

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Beside:
    """One value in both. `why`: the reason why it cannot be set against the other one, "" where it can."""

    value: Value
    other: Value | None
    why: str = ""
    relative: float = 0.0  # L2 of the difference over L2 of the other one
    largest: float = 0.0
    index: tuple[int, ...] = ()


def beside(trace: Trace, other: Trace, value: Value) -> Beside:
    """Sets one value against the one of the same step and name."""
    partner = other.graph.by_key.get((value.step, value.name))
    if partner is None:
        return Beside(value, None, "only here")
    if math.prod(value.shape) != math.prod(partner.shape):
        return Beside(value, partner, f"there of shape {list(partner.shape)}")
    if not (trace.stored(value) and other.stored(partner)):
        return Beside(value, partner, "not stored")
    a, b = trace.array(value).reshape(-1), other.array(partner).reshape(-1)
    total = square = 0.0
    largest, at = -1.0, -1
    for start in range(0, a.size, _BLOCK):
        x, y = (np.asarray(part[start : start + _BLOCK], np.float64) for part in (a, b))
        with np.errstate(invalid="ignore"):
            error = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
        total += float(np.dot(error, error))
        finite = y[np.isfinite(y)]
        square += float(np.dot(finite, finite))
        peak = int(np.argmax(np.where(np.isnan(error), np.inf, error))) if error.size else 0
        if error.size and not error[peak] <= largest:
            largest, at = (math.inf if math.isnan(error[peak]) else float(error[peak])), start + peak
    relative = math.sqrt(total) / math.sqrt(square) if square > 0 else (0.0 if total == 0 else math.inf)
    index = tuple(int(i) for i in np.unravel_index(at, value.shape)) if at >= 0 and value.shape else ()
    return Beside(value, partner, "", math.inf if math.isnan(relative) else relative, max(0.0, largest), index)


def around(shape: Sequence[int], index: Sequence[int], rows: int = 5, columns: int = 7) -> str:
    """The slice around one element, as `--slice` takes it."""
    parts = [str(i) for i in index[:-2]]
    for i, n, count in zip(index[-2:], shape[-2:], (rows, columns)[2 - min(2, len(shape)) :], strict=True):
        start = max(0, min(i - count // 2, n - count))
        parts.append(f"{start}:{min(n, start + count)}")
    return ",".join(parts)
