"""Pooling: one bad element stays visible at any size; heads, vectors and what is not a number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from firstbad.reports.pool import difference, matrix, pool


def test_one_bad_element_of_a_million_shows() -> None:
    reference = np.zeros((1, 1500, 700), np.float32)
    candidate = reference.copy()
    candidate[0, 1203, 411] = 5
    grid = pool(reference, candidate, 16)
    assert grid.difference.shape == (16, 16)
    y, x = np.unravel_index(grid.difference.argmax(), grid.difference.shape)
    assert (y, x) == (1203 * 16 // 1500, 411 * 16 // 700)
    assert grid.difference.max() == 5
    assert (grid.difference > 0).sum() == 1
    assert (grid.candidate != 0).sum() == 1
    assert grid.by_row.argmax() == 1203
    assert grid.by_column.argmax() == 411


@pytest.mark.parametrize("shape", [(3, 5), (70000, 3), (2, 300, 400), (7,), (1, 1, 5000)])
def test_the_grid_is_the_largest_of_each_block(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal(shape).astype(np.float32)
    b = random.standard_normal(shape).astype(np.float32)
    grid = pool(a, b, 24)
    assert np.abs(grid.reference).max() == np.abs(a).max()
    assert grid.difference.max() == np.abs(a - b).max()
    side = grid.sides[0]
    assert math.isclose(side.low, a.min())
    assert math.isclose(side.high, a.max())
    assert math.isclose(side.mean, a.mean(), abs_tol=1e-4)
    assert math.isclose(side.rms, math.sqrt((a.astype(np.float64) ** 2).mean()), rel_tol=1e-4)


def test_heads_stand_beside_each_other() -> None:
    array = np.zeros((1, 6, 10, 10), np.float32)
    array[0, 4] = 1
    grid = pool(array, array, 30)
    assert grid.reference.shape == (2 * 10 + 1, 3 * 10 + 2)
    assert (grid.reference[11:, 11:21] == 1).all()  # the fifth of three across
    assert grid.nothing.sum() == 20 * 2 + 32
    assert "6 groups" in grid.layout


def test_a_long_row_is_folded_and_its_rest_holds_nothing() -> None:
    array = np.arange(1, 66, dtype=np.float32)
    grid = pool(array, array, 32)
    assert grid.reference.shape == (8, 9)
    assert grid.nothing.sum() == 72 - 65
    assert grid.reference[0, 1] == 2


def test_not_a_number_and_infinite_elements() -> None:
    a = np.array([[1, np.nan, -np.inf, 4]], np.float32)
    b = np.array([[1, 2, -np.inf, np.inf]], np.float32)
    assert np.isnan(pool(a, b, 4).reference[0, 1])
    assert difference(a, b).tolist()[0][2] == 0
    grid = pool(a, b, 4)
    assert (grid.sides[0].nans, grid.sides[0].infs) == (1, 1)
    assert math.isnan(grid.difference[0, 1])
    assert math.isinf(grid.difference[0, 3])
    nothing_finite = np.full((2, 2), np.nan, np.float32)
    assert math.isnan(pool(nothing_finite, nothing_finite, 2).sides[0].mean)


def test_integers_booleans_and_scalars() -> None:
    whole = np.array([[1, 2], [3, 9]])
    assert pool(whole, whole + 1, 4).difference.max() == 1
    assert pool(np.array(True), np.array(False), 4).difference[0, 0] == 1
    assert matrix(()) == (1, 1, 1)
    assert matrix((2, 3, 4, 5)) == (6, 4, 5)
