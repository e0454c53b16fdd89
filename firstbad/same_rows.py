"""Two runs of one engine, of which the rows that stand for the same tokens must be equal: how the rows are found.

A value of T tokens against the same value of another number of them: along the axis that differs, the rows asked for.
Keys that one run has and the other has not yet (or no more, behind a window) are cut off. Leaves out what values are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.graph import Value
    from firstbad.trace import Trace

ROUNDINGS = 100.0
"""Unit roundoffs that the same row may differ by where it was summed in another order (local.CUMULATIVE_FLOOR) ..."""
GROWTH = 10.0
"""... or so many times what the values before it differ: noise grows with depth, a fault jumps."""

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True)
class Rows:
    """Which tokens of the long run the short one has: `start` .. `stop` of `total`, and in which prompt of a batch."""

    start: int
    stop: int
    total: int
    batch: int = 0
    batches: int = 1

    def of(self, long: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
        """The part of `long` that has the short run's `shape`; None where it cannot be told."""
        if long.ndim != len(shape):
            return None
        n, T, B = self.stop - self.start, self.total, self.batches
        for axis, (have, want) in enumerate(zip(long.shape, shape, strict=True)):
            if have == want:
                continue
            if B > 1 and have == B and want == 1:
                cut = slice(self.batch, self.batch + 1)
            elif B > 1 and have == B * T and want == n:
                cut = slice(self.batch * T + self.start, self.batch * T + self.stop)
            elif have == T and want == n:
                cut = slice(self.start, self.stop)
            elif have == T and want < self.stop:
                cut = slice(self.stop - want, self.stop)  # keys: the newest
            elif have == T and want == self.stop:
                cut = slice(0, self.stop)
            else:
                return None
            long = long[(slice(None),) * axis + (cut,)]
        return long


@dataclass(frozen=True)
class Differs:
    """The first value that breaks an equality."""

    step: str
    value: str
    error: float  # relative L2 of the worst row; infinite for another set of numbers
    limit: float
    where: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Held:
    """What came of one comparison."""

    compared: int
    first: Differs | None


Pick = Callable[["Value"], bool]


def equal(
    short: Trace, long: Trace, steps: Mapping[str, tuple[str, Rows | None]], *, exact: bool, pick: Pick = lambda _: True
) -> Held:
    """The values of `short` in `steps` (step → the long run's step, and which of its rows) against those of `long`.

    Without rows the values must have the same shape. `exact`: the same bits; else noise of another order is allowed.
    """
    count, worst = 0, 0.0
    for value, twin, rows in _pairs(short, long, steps, pick):
        ours, whole = short.array(value), long.array(twin)
        theirs = whole if rows is None else rows.of(whole, value.shape)
        if theirs is None or theirs.shape != ours.shape:
            continue
        floating = np.issubdtype(ours.dtype, np.floating)
        if not floating and not exact:
            continue  # positions and masks are of the run's own shape
        count += 1
        if np.array_equal(ours, theirs, equal_nan=floating):
            continue
        error, where = _worst_row(np.asarray(ours), np.asarray(theirs))
        limit = 0.0 if exact else max(ROUNDINGS * UNIT.get(value.dtype, 2.0**-24), GROWTH * worst)
        if not error <= limit:
            op = short.graph.ops[value.op]
            return Held(count, Differs(value.step, value.name, error, limit, where, op.file, op.line))
        worst = max(worst, error)
    return Held(count, None)


def _pairs(
    short: Trace, long: Trace, steps: Mapping[str, tuple[str, Rows | None]], pick: Pick
) -> Iterator[tuple[Value, Value, Rows | None]]:
    for value in short.graph.values:
        if value.step not in steps or value.op < 0 or not short.stored(value) or value.name.startswith("generate"):
            continue
        step, rows = steps[value.step]
        twin = long.graph.by_key.get((step, value.name))
        if twin is not None and long.stored(twin) and pick(value):
            yield value, twin, rows


def _worst_row(a: NDArray[Any], b: NDArray[Any]) -> tuple[float, str]:
    """(relative L2 of the row that differs most, which); masks count by their place, not by their size."""
    last = a.shape[-1] if a.ndim else 1
    x, y = (np.asarray(v, np.float64).reshape(-1, last) for v in (a, b))
    odd = ~(np.isfinite(x) & (np.abs(x) < 1e30))
    other = ~(np.isfinite(y) & (np.abs(y) < 1e30))
    if (odd != other).any():
        return float("inf"), f"row {int(np.argwhere((odd != other).any(1))[0, 0])}"
    x, y = np.where(odd, 0, x), np.where(odd, 0, y)
    size = np.linalg.norm(y, axis=1)
    scale = np.maximum(size, np.sqrt(np.mean(size**2)) or 1.0)
    errors = np.linalg.norm(x - y, axis=1) / scale
    at = int(errors.argmax())
    return float(errors[at]), f"row {at} of {len(errors)}"
