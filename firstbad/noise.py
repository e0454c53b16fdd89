"""How large an error may be: limits for the sums of one value, from what a correct engine makes on the same inputs.

Three sources, the largest counts: the twin (the reference's own op in the candidate's dtype), the twin's error pooled
over all ops of that kind in the run (for one row it can be 0 by luck), and the worst declared order of summation
(one term after the other, as a readable kernel sums). All are in units of u x condition, so they compare.

Factors, with what they rest on: FACTOR 3 is the rule that named 92 of 92 planted faults on real weights and flagged
nothing in clean runs (clean ratios stayed under 2.1, the weakest fault had 52); QUARTER covers values whose twin is
exact by luck; GAIN 8 u against 2 u of clean runs and 168 u of a gain of 1.00001; OFFSET a quarter of a rounding, above
which no channel's mean of 20 clean runs (-O0, -O3, -ffast-math, sums term after term) came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from firstbad.judge import Slice, Sums

FACTOR = 3.0
QUARTER = 0.25
GAIN = 8.0
OFFSET = 0.25
FEW_ROWS = 8  # of fewer rows the mean of a column is no better known than its elements

SAMPLED = 512
"""Elements on which the worst declared order is simulated; the largest of a whole value is larger than theirs."""

ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Unit roundoff u of each floating-point dtype (half the distance from 1 to the next number)."""


@dataclass(frozen=True)
class Sequential:
    """Error of the worst declared order on sampled elements: q's rms and its largest, and the worst sampled row."""

    rms: float
    worst: float
    row: float


@dataclass(frozen=True)
class Floor:
    """What a correct engine may make of one value, in units of u x condition."""

    whole: float
    rows: float
    columns: float
    groups: float
    element: float
    last: float = 0.0


@dataclass(frozen=True)
class Excess:
    """One test of a value: what was seen, what is allowed, where. `ratio` is in noise floors."""

    test: str  # "whole", "rows", "columns", "groups", "element", "gain", "nonfinite", "masked", "exact"
    seen: float
    limit: float
    index: int = -1

    @property
    def ratio(self) -> float:
        """How many times the noise floor; infinite where nothing is allowed."""
        return FACTOR * self.seen / self.limit if self.limit > 0 else (math.inf if self.seen else 0.0)

    @property
    def bad(self) -> bool:
        return not self.seen <= self.limit  # written this way round so that a NaN fails


@dataclass(frozen=True)
class Pool:
    """The twin's error over all values of one kind of op in the run."""

    whole: float = 0.0
    rows: float = 0.0
    columns: float = 0.0
    element: float = 0.0


def pools(judged: Iterable[tuple[str, Sums]]) -> Mapping[str, Pool]:
    """Kind of op → its pooled twin error: root mean square over values for the whole, the median for slices."""
    by_kind: dict[str, list[Sums]] = {}
    for kind, sums in judged:
        by_kind.setdefault(kind, []).append(sums)
    return {
        kind: Pool(
            whole=math.sqrt(sum(s.twin**2 for s in many) / len(many)),
            rows=_median([s.rows.twin for s in many]),
            columns=_median([s.columns.twin for s in many]),
            element=_median([s.element_twin for s in many]),
        )
        for kind, many in by_kind.items()
    }


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2] if numbers else 0.0


def floor(sums: Sums, pool: Pool, sequential: Sequential | None) -> Floor:
    """The noise floor of one value: the largest of the three sources, for the whole and for each kind of slice."""
    order = sequential or Sequential(0.0, 0.0, 0.0)
    whole = max(sums.twin, pool.whole, order.rms)
    beyond = max(1.0, largest_of(sums.count) / largest_of(SAMPLED))
    element = max(sums.element_twin, pool.element, order.worst * beyond, whole * largest_of(sums.count))
    rows = max(sums.rows.twin, pool.rows, order.row, _of_slices(whole, element, sums.rows))
    groups = max(sums.groups.twin, _of_slices(whole, element, sums.groups))
    return Floor(
        whole=max(whole, rows) if sums.rows.count == 1 else whole,
        rows=rows,
        columns=max(sums.columns.twin, pool.columns, _of_slices(whole, element, sums.columns)),
        groups=max(groups, rows) if sums.groups.count == sums.rows.count else groups,  # each is one row
        element=element,
        last=max(pool.rows, order.row, _of_slices(whole, element, sums.last)),
    )


def _fine(sums: Sums, floor_: Floor, factor: float) -> list[Excess]:
    """Tests that see less than one rounding step, as noise averages out: a head's gain, a channel's offset; and the
    newest token, for which another row's large error is no excuse.
    """
    tests = []
    if sums.gains.count > 1:
        spread = floor_.whole / math.sqrt(max(1, sums.gains.length))
        limit = GAIN + factor * sums.gains.twin + (4 + largest_of(sums.gains.count)) * spread
        tests.append(Excess("gains", sums.gains.candidate, limit, sums.gains.index))
    if sums.offsets.length > FEW_ROWS:
        spread = floor_.columns / math.sqrt(sums.offsets.length)
        limit = OFFSET + factor * sums.offsets.twin + (2 + largest_of(sums.offsets.count)) * spread
        tests.append(Excess("offsets", sums.offsets.candidate, limit, sums.offsets.index))
    if sums.rows.count > sums.last.count:
        limit = factor * max(sums.last.twin, floor_.last) + QUARTER
        tests.append(Excess("last", sums.last.candidate, limit, sums.last.index))
    return tests


def _of_slices(whole: float, element: float, slices: Slice) -> float:
    """Worst of `count` slices of `length` errors of the given rms: all alike and independent (normal: mean + z
    deviations), or one of them the largest element of the value (a column of one row is that element).
    """
    if slices.count <= 1 or slices.length == 0:
        return whole
    alike = whole * (1 + largest_of(slices.count) / math.sqrt(2 * slices.length))
    return max(alike, math.sqrt((element**2 + (slices.length - 1) * whole**2) / slices.length))


def largest_of(count: int) -> float:
    """Expected largest of `count` standard normal numbers (leading term)."""
    return math.sqrt(2 * math.log(max(2, count)))


def excesses(sums: Sums, floor_: Floor, *, exact: bool, factor: float = FACTOR) -> list[Excess]:
    """Every test of one value, the failed ones among them; the worst first."""
    tests = [
        Excess("nonfinite", sums.bad_nonfinite, 0, sums.first_bad),
        Excess("masked", sums.bad_masked, 0, sums.first_bad),
    ]
    if exact:
        tests.append(Excess("exact", sums.element, 0, sums.element_index))
    else:
        spread = floor_.whole / math.sqrt(sums.gain_weight) if sums.gain_weight > 0 else math.inf
        tests += [
            Excess("whole", sums.candidate, factor * floor_.whole + QUARTER),
            Excess("rows", sums.rows.candidate, factor * floor_.rows + QUARTER, sums.rows.index),
            Excess("columns", sums.columns.candidate, factor * floor_.columns + QUARTER, sums.columns.index),
            Excess("groups", sums.groups.candidate, factor * floor_.groups + QUARTER, sums.groups.index),
            Excess("element", sums.element, factor * floor_.element + QUARTER, sums.element_index),
            Excess("gain", abs(sums.gain), GAIN + factor * abs(sums.gain_twin) + 6 * spread),
            *_fine(sums, floor_, factor),
        ]
    return sorted(tests, key=lambda t: (t.bad, t.ratio), reverse=True)
