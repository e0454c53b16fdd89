"""Two runs of one engine, of which the rows that stand for the same tokens must be equal: how the rows are found.

A value of T tokens against the same value of another number of them: along the axis that differs, the rows asked for.
Keys that one run has and the other has not yet (or no more, behind a window) are cut off. Leaves out what values are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.graph import Value
    from firstbad.trace import Trace

FACTOR = 8.0
"""Times its noise, or one rounding, that a row may differ by in another shape. 43 healthy runs (16 families; the C
engine and PyTorch; float32, float16, bfloat16; one thread and two) came to 2.8 at most."""

ROUNDINGS = 100.0
"""Where the noise is not known: unit roundoffs that a row may differ by (local.CUMULATIVE_FLOOR) ..."""
GROWTH = 10.0
"""... or so many times what the values before it differ: noise grows with depth, a fault jumps."""

FEW = 64
"""Rows of which the usual size is not taken from them alone: the only one of a step may be next to nothing."""

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
        n, T, B = self.stop - self.start, self.total, self.batches
        if long.ndim != len(shape) or (long.shape == shape and (n != T or B > 1)):
            return None  # of another kind, or of all tokens together: how many each expert has
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
    first: Differs | None = None
    margin: float = 0.0  # of the value that came nearest to its limit, which is 1
    note: str = ""


Steps = Mapping[str, tuple[str, Rows | None]]
"""Step of the short run → the long run's step, and which of its rows; without rows the shapes must be the same."""

Noise = Mapping[str, float]
"""Name of a value → how far noise moves its worst row (relative L2), as `noise_of` measures it."""


def equal(short: Trace, long: Trace, steps: Steps) -> Held:
    """The values of `short` in `steps` against those of `long`, bit by bit."""
    count = 0
    for value, ours, theirs, _ in _pairs(short, long, steps):
        count += 1
        if not np.array_equal(ours, theirs, equal_nan=np.issubdtype(ours.dtype, np.floating)):
            return Held(count, _differs(short, value, row_errors(ours, theirs), 0.0))
    return Held(count)


def alike(short: Trace, long: Trace, steps: Steps, noise: Noise | None) -> Held:
    """As `equal`, but another order of sums is allowed; None: how much that may be is not known.

    Where a top-k chose otherwise among scores that are alike, rows from that token on are left out: they go other ways.
    """
    count, worst, margin, note = 0, 0.0, 0.0, ""
    kept: dict[str, int] = {}  # step → rows before the first choice that differs
    for value, ours, theirs, whole in _pairs(short, long, steps):
        T = _tokens(steps[value.step][1])
        if chosen(value):
            other = _first_row(ours, theirs, T)
            if other < kept.get(value.step, T):
                kept[value.step] = other
                note = f"{value.name} chose otherwise at a near-tie"
            continue
        if not np.issubdtype(ours.dtype, np.floating):
            continue  # positions and masks are of the run's own shape
        both = _before(kept.get(value.step, T), T, value.shape, ours, theirs)
        if both is None:
            continue
        count += 1
        few = both[0].size // max(1, both[0].shape[-1] if both[0].ndim else 1) < FEW
        errors = row_errors(*both, usual_row(whole) if few else 0.0)
        error = float(errors.max(initial=0.0))
        limit = limit_of(value, noise)
        if limit is None:
            continue
        if noise is None:
            limit = max(limit, GROWTH * worst)
        if not error <= limit:
            return Held(count, _differs(short, value, errors, limit), error / limit)
        worst, margin = max(worst, error), max(margin, error / limit)
    return Held(count, None, margin, note)


def noise_of(plain: Trace, moved: Trace, step: str, tokens: int) -> Noise:
    """What the last bits of the weights make of each value of a step: two runs of one shape, one of them dithered."""
    found: dict[str, float] = {}
    keep = tokens
    for value, ours, theirs, _ in _pairs(plain, moved, {step: (step, None)}):
        if chosen(value):
            keep = min(keep, _first_row(ours, theirs, tokens))
        elif np.issubdtype(ours.dtype, np.floating):
            both = _before(keep, tokens, value.shape, ours, theirs)
            if both is not None:
                found[value.name] = float(row_errors(*both).max(initial=0.0))
    return found


def limit_of(value: Value, noise: Noise | None) -> float | None:
    """What a row of this value may differ by in another order of sums; None: nothing is known of it."""
    unit = UNIT.get(value.dtype, 2.0**-24)
    if noise is None:
        return ROUNDINGS * unit
    return FACTOR * max(noise[value.name], unit) if value.name in noise else None


def chosen(value: Value) -> bool:
    """Whether these are the places that a top-k chose."""
    return "topk" in value.name and "int" in value.dtype


def token_axis(shape: tuple[int, ...], total: int) -> int | None:
    """The axis of tokens: the last but one, or the one before the features of a value of two or three."""
    for axis in [len(shape) - 2] if len(shape) == 4 else [1, 0] if len(shape) == 3 else [0]:
        if len(shape) > axis and shape[axis] == total and len(shape) > 1:
            return axis
    return None


def row_errors(a: NDArray[Any], b: NDArray[Any], usual: float = 0.0) -> NDArray[np.float64]:
    """L2 of each row's difference, relative to the row or to a usual row of the value, whichever is larger; infinite
    where other elements are masked, or are no numbers. `usual`: of more rows than these, where there are."""
    last = a.shape[-1] if a.ndim else 1
    x, y = (np.asarray(v, np.float64).reshape(-1, last) for v in (a, b))
    odd, other = _odd(x), _odd(y)
    x, y = np.where(odd, 0, x), np.where(odd | other, 0, y)
    scale = np.maximum(np.linalg.norm(y, axis=1), max(usual, usual_row(b)) or 1.0)
    errors: NDArray[np.float64] = np.where((odd != other).any(1), np.inf, np.linalg.norm(x - y, axis=1) / scale)
    return errors


def usual_row(a: NDArray[Any]) -> float:
    """Root mean square of the rows' sizes."""
    x = np.asarray(a, np.float64).reshape(-1, a.shape[-1] if a.ndim else 1)
    x = np.where(_odd(x), 0, x)
    return float(np.sqrt(np.mean(np.sum(x**2, axis=1)))) if x.size else 0.0


def _odd(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """What is masked or no number."""
    return ~(np.isfinite(x) & (np.abs(x) < 1e30))


def _pairs(short: Trace, long: Trace, steps: Steps) -> Iterator[tuple[Value, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Values that both runs have, the long one's cut to the rows of the short one, and whole."""
    counts = [Counter((v.step, _word(v.name)) for v in trace.graph.values) for trace in (short, long)]
    for value in short.graph.values:
        if value.step not in steps or value.op < 0 or not short.stored(value) or value.name.startswith("generate"):
            continue
        step, rows = steps[value.step]
        twin = long.graph.by_key.get((step, value.name))
        if twin is None or not long.stored(twin):
            continue
        word = _word(value.name)
        if counts[0][value.step, word] != counts[1][step, word]:
            continue  # made in a loop over the tokens: the same number is another one
        ours, whole = np.asarray(short.array(value)), np.asarray(long.array(twin))
        theirs = whole if rows is None else rows.of(whole, value.shape)
        if theirs is not None and theirs.shape == ours.shape:
            yield value, ours, theirs, whole


def _word(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def _tokens(rows: Rows | None) -> int:
    return 0 if rows is None else rows.stop - rows.start


def _first_row(a: NDArray[Any], b: NDArray[Any], tokens: int) -> int:
    """The first token whose choices are not the same, in whatever order; `tokens` where all are."""
    if a.size % max(tokens, 1) or not a.size:
        return tokens
    x, y = (np.sort(v.reshape(tokens, -1), axis=1) for v in (a, b))
    odd = np.flatnonzero((x != y).any(1))
    return int(odd[0]) if odd.size else tokens


def _before(
    keep: int, tokens: int, shape: tuple[int, ...], a: NDArray[Any], b: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Both without the tokens from `keep` on; None where nothing is left, or it cannot be told which rows they are."""
    if keep == tokens:
        return a, b
    axis = token_axis(shape, tokens)
    if keep == 0 or axis is None:
        return None
    cut = (slice(None),) * axis + (slice(0, keep),)
    return a[cut], b[cut]


def _differs(trace: Trace, value: Value, errors: NDArray[np.float64], limit: float) -> Differs:
    op, at = trace.graph.ops[value.op], int(errors.argmax())
    return Differs(value.step, value.name, float(errors[at]), limit, f"row {at} of {len(errors)}", op.file, op.line)
