"""The sums of judge.c and of its NumPy twin against each other, and against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad import judge as judging
from firstbad.judge import distance, judge

U = 2.0**-24


def arrays(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(shape)
    scale = (np.abs(y) + 0.5).astype(np.float32)
    c = (y + U * scale * rng.standard_normal(shape)).astype(np.float32)
    t = (y + U * scale * rng.standard_normal(shape)).astype(np.float32)
    return c, y, t, scale


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 300), (1, 6, 40, 50), (0, 4)])
def test_native_and_numpy_agree(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    c, y, t, s = arrays(shape)
    native = judge(c, y, t, s, u=U)
    monkeypatch.setattr(judging, "_library", lambda: None)
    twin = judge(c, y, t, s, u=U)
    assert native.count == twin.count == c.size
    for name in ("candidate", "twin", "element", "element_twin", "gain", "gain_twin", "offset", "local_error"):
        assert getattr(native, name) == pytest.approx(getattr(twin, name), rel=1e-6, abs=1e-12), name
    for name in ("rows", "columns", "groups", "gains", "offsets", "last"):
        assert getattr(native, name).candidate == pytest.approx(getattr(twin, name).candidate, rel=1e-6, abs=1e-12)
        assert getattr(native, name).twin == pytest.approx(getattr(twin, name).twin, rel=1e-6, abs=1e-12)
        assert getattr(native, name).index == getattr(twin, name).index


def test_threads_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    c, y, t, s = arrays((3, 700, 200))
    c[1, 17, 3] += 1
    monkeypatch.setattr(judging, "_THREADS", 1)
    one = judge(c, y, t, s, u=U)
    monkeypatch.setattr(judging, "_THREADS", 3)
    monkeypatch.setattr(judging, "_LARGE", 1)
    three = judge(c, y, t, s, u=U)
    assert three.element_index == one.element_index == (700 + 17) * 200 + 3
    assert three.candidate == pytest.approx(one.candidate, rel=1e-12)
    np.testing.assert_allclose(three.column_rms, one.column_rms, rtol=1e-12)


def test_one_wrong_row_column_head_and_element_are_found_where_they_are() -> None:
    c, y, t, s = arrays((2, 5, 8))
    c = y.astype(np.float32)
    c[1, 3] += 100 * U
    assert judge(c, y, t, s, u=U).rows.index == 8
    c = y.astype(np.float32)
    c[1, :, 6] += 100 * U
    assert judge(c, y, t, s, u=U).columns.index == 8 + 6
    c = y.astype(np.float32)
    c[1] += 100 * U
    assert judge(c, y, t, s, u=U).groups.index == 1


def test_gain_is_the_slope_in_units_of_u() -> None:
    y = np.random.default_rng(1).standard_normal((64, 64))
    s = np.abs(y).astype(np.float32)
    c = y * (1 + 1e-5)
    sums = judge(c.astype(np.float32), y, y.astype(np.float32), s, u=U)
    assert sums.gain == pytest.approx(1e-5 / U, rel=0.02)  # 168 u, as measured by hand on real weights
    assert sums.local_error == pytest.approx(1e-5, rel=0.02)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_element_never_passes(bad: float) -> None:
    c, y, t, s = arrays((4, 6))
    c[2, 1] = bad
    sums = judge(c, y, t, s, u=U)
    assert sums.bad_nonfinite + sums.bad_masked == 1
    assert sums.first_bad == 13


def test_masked_alike_whatever_the_number() -> None:
    c, y, t, s = arrays((4, 6))
    c[0, 3:], y[0, 3:], t[0, 3:] = -np.inf, np.finfo(np.float32).min, -1e9
    sums = judge(c, y, t, s, u=U)
    assert (sums.bad_nonfinite, sums.bad_masked) == (0, 0)
    y[0, 3] = 1.0
    assert judge(c, y, t, s, u=U).bad_masked == 1


def test_an_exact_op_may_differ_nowhere() -> None:
    y = np.zeros((3, 3))
    c = y.astype(np.float32)
    zero = np.zeros(1, np.float32)
    assert judge(c, y, c, zero, u=U, exact=True).element == 0
    c2 = c.copy()
    c2[1, 1] = 1e-30
    assert judge(c2, y, c, zero, u=U, exact=True).element > 1e17


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31))
def test_distance_against_float64(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    c = rng.standard_normal((rows, columns)).astype(np.float32)
    r = rng.standard_normal((rows, columns)).astype(np.float32)
    d = c.astype(np.float64) - r
    error, at = distance(c, r)
    assert error == pytest.approx(np.linalg.norm(d) / np.linalg.norm(r.astype(np.float64)), rel=1e-5)
    assert abs(d.ravel()[at]) == pytest.approx(np.abs(d).max(), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1e-20, 1e-30, 1e18, 1e30])
def test_distance_of_tiny_and_huge_numbers(scale: float) -> None:
    rng = np.random.default_rng(2)
    r = (scale * np.abs(rng.standard_normal(5000))).astype(np.float32)  # a huge negative number is a mask
    c = (r * (1 + 1e-6 * rng.standard_normal(5000))).astype(np.float32)
    r[1000:1500] = c[1000:1500] = 0
    e, y = c.astype(np.float64) - r, r.astype(np.float64)
    assert distance(c, r)[0] == pytest.approx(np.linalg.norm(e) / np.linalg.norm(y), rel=1e-5)


def test_distance_of_masks_overflow_and_integers() -> None:
    low = np.finfo(np.float32).min
    assert distance(np.array([1, -np.inf], np.float32), np.array([1, low], np.float32))[0] == 0
    assert distance(np.array([1, np.nan], np.float32), np.array([1, 1], np.float32))[0] == math.inf
    assert distance(np.array([1e30, 1], np.float32), np.array([1e30, 1], np.float32))[0] == 0
    assert distance(np.array([1, 2, 3]), np.array([1, 2, 4])) == (pytest.approx(1 / 3), 2)


@pytest.mark.parametrize("native", [True, False])
def test_what_is_no_number_has_no_scale(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN on both sides agrees, whatever its condition is, and spoils no sum."""
    if not native:
        monkeypatch.setattr(judging, "_library", lambda: None)
    c, y, t, s = arrays((4, 6))
    for array in (c, y, t, s):
        array[2, 3] = np.nan
    sums = judge(c, y, t, s, u=U)
    assert (sums.bad_nonfinite, sums.bad_masked) == (0, 0)
    assert all(math.isfinite(n) for n in (sums.candidate, sums.gain, sums.gains.candidate, sums.offsets.candidate))
