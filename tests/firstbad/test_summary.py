"""Numbers about one array, against NumPy on the whole of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firstbad.errors import UsageError
from firstbad.summary import corner, cut, histogram, summarise


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(max_dims=4, max_side=6),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_against_numpy(array: np.ndarray) -> None:
    found = summarise(array)
    good = array[np.isfinite(array)].astype(np.float64)
    assert found.size == array.size
    assert found.nans == np.isnan(array).sum()
    assert found.infs == np.isinf(array).sum()
    if not good.size:
        assert math.isnan(found.min)
        assert found.argmin == ()
        return
    assert (found.min, found.max) == (good.min(), good.max())
    assert array[found.argmin] == good.min()
    assert array[found.argmax] == good.max()
    assert found.zeros == (good == 0).sum()
    np.testing.assert_allclose(found.mean, good.mean(), rtol=1e-12, atol=1e-12 * np.abs(good).max())
    np.testing.assert_allclose(found.rms, np.sqrt(np.mean(good**2)), rtol=1e-12)


def test_larger_than_a_block() -> None:
    array = np.random.default_rng(1).standard_normal((3, 700, 300)).astype(np.float32)
    array[2, 699, 298] = -9
    array[2, 699, 299] = 9
    array[1, 0, 0] = np.nan
    found = summarise(array)
    assert (found.min, found.argmin, found.max, found.argmax, found.nans) == (-9, (2, 699, 298), 9, (2, 699, 299), 1)
    np.testing.assert_allclose(found.rms, np.sqrt(np.nanmean(array.astype(np.float64) ** 2)), rtol=1e-12)


@pytest.mark.parametrize(
    ("array", "least", "rms"),
    [
        (np.array(True), 1, 1),
        (np.array([[3, -4]]), -4, math.sqrt(12.5)),
        (np.array([3 + 4j], np.complex64), 5, 5),
        (np.full(3, np.finfo(np.float32).min), float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)),
        (np.full(3, np.finfo(np.float64).min), float(np.finfo(np.float64).min), math.inf),
    ],
)
def test_other_kinds(array: np.ndarray, least: float, rms: float) -> None:
    found = summarise(array)
    assert found.min == least
    assert found.rms == pytest.approx(rms)


def test_histogram() -> None:
    array = np.array([0, 0, 0, 0, 0, 0, 0, 1, 3, np.nan])
    assert histogram(array, summarise(array), bins=3) == "█▂▂"
    assert histogram(np.ones(3), summarise(np.ones(3))) == ""
    assert histogram(np.full(2, np.nan), summarise(np.full(2, np.nan))) == ""


@pytest.mark.parametrize(
    ("text", "expected", "full"),
    [
        ("1", np.arange(12, 24).reshape(3, 4), "[1, :, :]"),
        ("0,:2,-1", np.array([3, 7]), "[0, :2, -1]"),
        ("[0, 1, ::2]", np.array([4, 6]), "[0, 1, ::2]"),
        ("1,2,3", np.array(23), "[1, 2, 3]"),
        ("", np.arange(24).reshape(2, 3, 4), "[:, :, :]"),
    ],
)
def test_cut(text: str, expected: np.ndarray, full: str) -> None:
    part, index = cut(np.arange(24).reshape(2, 3, 4), text)
    np.testing.assert_array_equal(part, expected)
    assert index == full


@pytest.mark.parametrize("text", ["2", "0,0,0,0", "a", "0,::0", "0,:,:x", "0,,1"])
def test_cut_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="--slice"):
        cut(np.arange(24).reshape(2, 3, 4), text)


@pytest.mark.parametrize(
    ("shape", "expected"), [((), ""), ((3,), ":3"), ((99,), ":8"), ((9, 3), ":6,:3"), ((1, 6, 150, 150), "0,0,:6,:8")]
)
def test_corner(shape: tuple[int, ...], expected: str) -> None:
    assert corner(shape) == expected
    assert cut(np.zeros(shape), expected)[0].size <= 48
