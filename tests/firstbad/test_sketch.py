"""Sketches: the very numbers of a sorted list, and two of them alike only where every number of theirs is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from firstbad.sketch import EXTREMES, QUANTILES, TOLERANCE, similar, sketch


def test_its_numbers_are_those_of_a_sorted_list() -> None:
    array = np.random.default_rng(1).standard_normal((30, 7)).astype(np.float32)
    array[3, 4], array[5, 5], array[6, 6] = math.nan, -math.inf, -3e38  # no numbers: missing, infinite, a mask
    made = sketch(array)
    plain = sorted(float(x) for x in array.ravel() if math.isfinite(x) and abs(x) < 1e30)
    n = len(plain)
    ranks = {*range(EXTREMES), *range(n - EXTREMES, n), *(i * (n - 1) // (QUANTILES - 1) for i in range(QUANTILES))}
    assert made.numbers.tolist() == [plain[i] for i in sorted(ranks)]
    assert (made.size, made.apart) == (210, 3)
    assert made.rms == pytest.approx(math.sqrt(math.fsum(x * x for x in plain) / n), rel=1e-12)


@pytest.mark.parametrize("at", [0, 5, -1])
def test_one_number_beyond_the_tolerance_tells_two_apart(at: int) -> None:
    one = sketch(np.random.default_rng(2).standard_normal(500))
    for size, alike in ((0.9, True), (1.1, False)):
        numbers = one.numbers.copy()
        numbers[at] += size * TOLERANCE * (one.rms + abs(numbers[at]))
        assert similar(one, replace(one, numbers=numbers)) == alike, size


def test_what_is_no_number_is_like_nothing() -> None:
    one = sketch(np.arange(1.0, 100.0))
    for at in (0, 3, -1):
        numbers = one.numbers.copy()
        numbers[at] = math.nan
        assert not similar(one, replace(one, numbers=numbers)), at
