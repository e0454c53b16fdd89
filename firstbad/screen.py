"""Screening: large values judged against the twin alone, and in float64 only where that leaves a doubt.

What is asked is whether T(c - y) stays under FACTOR x floor + slack, where c is the candidate's value, y what it should
be in float64, and T one of the judge's tests; the floor is at least the twin's own T(t - y). Every T is a seminorm (a
root mean square, a largest, the size of a mean or of a slope), so T(c - y) <= T(c - t) + T(t - y). Whatever has
T(c - t) <= (FACTOR - 1) x floor + slack passes the question too, and y need not be known: float64 costs more than all
the rest. What does not is replayed in full, and only that can be blamed.

The floor wants the twin's error: it is measured in float64 on a sample of the rows, and taken no larger than they show
(a slice's worst is at least the mean). What the value's errors are said to be is measured there too. A twin that is no
number leaves a doubt. Leaves out the judge's loop (judge.c) and which ops have rows to be taken apart (blocks.py).
"""

from __future__ import annotations

import math
from dataclasses import replace

from firstbad.judge import Slice, Sums
from firstbad.noise import FACTOR, largest_of

LEAST = 1 << 18
"""Elements from which a value is screened; below it float64 is cheap."""

ROWS = 64
"""Rows of each head, about, that are replayed in float64: with 384 columns the twin's rms is known to a hundredth."""

STRICT = FACTOR - 1.2
"""Limits of the screen in noise floors: FACTOR less the twin's own share, and a tenth of it for being a sample."""


def every(shape: tuple[int, ...]) -> int:
    """Each how manieth row of a value of this shape is replayed in float64; 1: it is not screened."""
    if len(shape) < 2 or math.prod(shape) < LEAST:
        return 1
    return max(1, shape[-2] // ROWS)


def seen(against_twin: Sums, sample: Sums) -> Sums:
    """What the screen's tests look at: the candidate's distance from the twin, and at most what the twin's error is."""
    whole, rows = sample.twin, max(1, sample.columns.length)
    # The worst of many columns of a few rows is larger than that of the whole ones: by so much where all are alike.
    luck = largest_of(sample.columns.count) / math.sqrt(rows)
    column = sample.columns.twin / (1 + luck / math.sqrt(2))
    return replace(
        against_twin,
        twin=whole,
        rows=_with(against_twin.rows, sample.rows.twin),
        columns=_with(against_twin.columns, max(whole, column)),
        groups=_with(against_twin.groups, whole),
        offsets=_with(against_twin.offsets, max(0.0, sample.offsets.twin - luck * sample.columns.twin)),
        element_twin=sample.element_twin,
        twin_error=sample.twin_error,
        local_error=sample.local_error,
    )


def _with(slices: Slice, twin: float) -> Slice:
    return replace(slices, twin=twin)
