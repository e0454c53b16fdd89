"""The measures of a pair, by hand, by float64, and the C code against its NumPy twin."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firstbad import measures
from firstbad.errors import CompareError
from firstbad.measures import LARGE, Nonfinite, PairMeasures, measure, measure_all
from firstbad.native import native

INF, NAN = math.inf, math.nan
WAYS = ["c", "numpy"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "numpy":
        monkeypatch.setattr(measures, "native", lambda: None)
    elif native() is None:
        pytest.skip("no C compiler")
    yield request.param


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def noisy(shape: tuple[int, ...], scale: float = 1e-5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    r = rng.standard_normal(shape).astype(np.float32)
    return r + (scale * rng.standard_normal(shape)).astype(np.float32), r


def check(m: PairMeasures, c: np.ndarray, r: np.ndarray, rel: float = 1e-6) -> None:
    """Against the formulas in float64, for arrays of finite numbers."""
    x, y = c.astype(np.float64).ravel(), r.astype(np.float64).ravel()
    e = x - y

    def near(value: float) -> object:
        return pytest.approx(value, rel=rel, abs=1e-300)

    assert m.count == m.finite == e.size and m.mismatched == 0
    assert m.differing == np.count_nonzero(e)
    assert m.max_abs == m.max_abs_finite == near(np.abs(e).max())
    assert np.abs(e)[m.max_abs_index] == near(np.abs(e).max()) or not e.any()
    assert m.rms == near(np.sqrt(np.mean(e**2)))
    assert m.reference_rms == near(np.sqrt(np.mean(y**2)))
    assert m.relative_l2 == near(np.linalg.norm(e) / np.linalg.norm(y))
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    assert m.cosine == pytest.approx(cosine, abs=1e-6)
    assert m.mean_error == pytest.approx(e.mean(), abs=rel * np.abs(e).mean())
    spread = y - y.mean()
    if m.gain_error is not None:
        slope = (e - e.mean()) @ spread / (spread @ spread)
        noise = rel * np.abs(e - e.mean()) @ np.abs(spread) / (spread @ spread)
        assert m.gain_error == pytest.approx(slope, abs=noise)
        assert m.offset == pytest.approx(e.mean() - slope * y.mean(), abs=rel * np.abs(e).max() + noise * abs(y.mean()))


def test_by_hand(way: str) -> None:
    c, r = f32(1, 2.5, -3, 0, 8).reshape(1, 5), f32(1, 2, -4, 0, 8).reshape(1, 5)
    m = measure(c, r, atol=0.25, rtol=0.125, worst=3, histogram=True)
    assert (m.max_abs, m.max_abs_index, m.place(m.max_abs_index)) == (1, 2, (0, 2))
    assert m.worst == ((1, 2, -3, -4), (0.5, 1, 2.5, 2))
    assert (m.max_rel, m.max_rel_index) == (0.25, 1)  # and 1/4 again at 2, later
    assert m.rms == pytest.approx(math.sqrt(1.25 / 5))
    assert m.relative_l2 == pytest.approx(math.sqrt(1.25 / 85))
    assert m.mean_error == pytest.approx(0.3)
    assert (m.beyond, m.first_beyond) == (1, 2)  # 0.5 <= 0.25 + 2/8 holds, 1 <= 0.25 + 4/8 does not
    assert m.differing == 2 and not m.equal
    # 2 → 2.5 is a quarter of the 2^23 floats from 2 to 4; 3 → 4 is half of them
    assert (m.max_ulp, m.max_ulp_index) == (2**22, 2)
    assert m.ulp_histogram == (3, 0, 0, 0, 0, 0, 0, 2)
    assert m.cosine == pytest.approx((1 + 5 + 12 + 64) / math.sqrt(85 * (1 + 6.25 + 9 + 64)))


def test_equal(way: str) -> None:
    _, r = noisy((3, 700))
    m = measure(r, r, worst=2, histogram=True)
    assert m.equal and m.worst == () and m.max_abs_index == -1 and m.first_beyond == -1 and m.max_ulp_index == -1
    assert (m.max_abs, m.max_rel, m.rms, m.relative_l2, m.max_ulp, m.beyond) == (0, 0, 0, 0, 0, 0)
    assert (m.cosine, m.cosine_distance, m.gain, m.offset) == (1, 0, 1, 0)
    assert m.ulp_histogram == (2100, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("shape", [(1,), (15,), (16,), (17,), (511,), (512,), (513,), (3, 5, 67), (1025,), (70_001,)])
def test_sizes_around_blocks(way: str, shape: tuple[int, ...]) -> None:
    c, r = noisy(shape)
    check(measure(c, r), c, r)
    check(measure(r * 0.5, r), r * 0.5, r)


@settings(deadline=None, max_examples=600)
@given(data=st.data())
def test_c_and_numpy_agree(data: st.DataObject) -> None:
    library = native()
    assume(library is not None)
    kind = data.draw(st.sampled_from(["float32", "float16", "float64"]))
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=40))
    numbers = st.one_of(
        st.floats(-10, 10, width=16), st.sampled_from([0.0, -0.0, INF, -INF, NAN, 1e-6, -65504.0, 1.0, 6e-8, 1e-23])
    )
    scale = 1.0 if kind == "float16" else data.draw(st.sampled_from([1.0, 1e-30, 1e30, 1e-18]))
    c, r = (
        (data.draw(hnp.arrays(kind, shape, elements=numbers)) * kind_scale(kind, scale)).astype(kind) for _ in range(2)
    )
    how = {"atol": 0.3 * scale, "rtol": 0.017, "worst": 3, "histogram": True, "rows": True, "columns": True}
    mask = data.draw(st.sampled_from([-INF, -5.0]))
    a = measure(c, r, mask=mask, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "native", lambda: None)
        b = measure(c, r, mask=mask, **how)
    for name, x, y in zip(measures.Sums._fields, a.sums, b.sums, strict=True):
        if name.endswith("_at"):
            continue  # of equal ones either may be named
        magnitude = {
            "mean_e": a.sums.max_e,
            "mean_r": a.sums.max_r,
            "c_er": math.sqrt(a.sums.ee) * a.reference_rms * math.sqrt(max(a.finite, 1)),
            "m2_r": a.sums.finite * a.sums.mean_r**2,
            "cr": math.sqrt(a.sums.cc) * a.reference_rms * math.sqrt(max(a.finite, 1)),
        }.get(name, 0.0)
        assert x == pytest.approx(y, rel=2e-6, abs=1e-6 * magnitude), name
    assert a.first_mismatched == b.first_mismatched and a.first_beyond == b.first_beyond
    assert [w.error for w in a.worst] == pytest.approx([w.error for w in b.worst], rel=1e-6)
    assert a.rows is not None and b.rows is not None and a.columns is not None and b.columns is not None
    for x, y in ((a.rows, b.rows), (a.columns, b.columns)):
        for name in ("error", "error2", "reference2", "cross", "max_abs"):
            left, right = getattr(x, name), getattr(y, name)
            both = np.sqrt(y.error2 * np.maximum(y.reference2, 1e-300))
            room = {"cross": both, "error": np.sqrt(y.error2 * y.length)}.get(name, np.zeros_like(right))
            fine = np.isfinite(right)
            np.testing.assert_array_equal(np.isfinite(left), fine)
            gap = np.abs(left[fine] - right[fine])
            assert np.all(gap <= (3e-6 * (np.abs(right) + room) + 1e-300)[fine]), name


def kind_scale(kind: str, scale: float) -> np.floating:
    return np.dtype(kind).type(scale)


def test_offset_of_a_million_does_not_cancel(way: str) -> None:
    rng = np.random.default_rng(1)
    r = 1e6 + rng.standard_normal(5000)
    c = 1e6 + 1.001 * (r - 1e6) + 1e-3 * rng.standard_normal(5000)
    m = measure(c, r)
    e, d = c - r, r - r.mean()
    assert m.gain == pytest.approx(1 + (e - e.mean()) @ d / (d @ d), rel=1e-9)
    assert m.gain == pytest.approx(1.001, abs=1e-4)
    # float32 at a million has steps of 1/16: the slope must be that of the rounded numbers, to their last digit
    r32, c32 = r.astype(np.float32), c.astype(np.float32)
    x, y = c32.astype(np.float64), r32.astype(np.float64)
    slope = (x - x.mean()) @ (y - y.mean()) / ((y - y.mean()) @ (y - y.mean()))
    m32 = measure(c32, r32)
    assert m32.gain == pytest.approx(slope, abs=1e-6)
    assert m32.mean_error == pytest.approx((x - y).mean(), abs=1e-8)
    assert m32.rms == pytest.approx(np.sqrt(np.mean((x - y) ** 2)), rel=1e-6)
    assert m32.relative_l2 == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y), rel=1e-6)


def test_a_mean_that_jumps_from_row_to_row(way: str) -> None:
    """Each block is added up about a number near its mean, and what is near is known from the block before."""
    rng = np.random.default_rng(11)
    at = np.array([0, 1e4, -3, 1e4, 1e-3, -7e3, 0], np.float32).repeat(2)[:, None]
    r = (at + np.float32(0.5) * rng.standard_normal((14, 700), np.float32)).astype(np.float32)
    r[4] = 0
    c = (r * np.float32(1.0001) + 1e-4 * rng.standard_normal(r.shape, np.float32)).astype(np.float32)
    m = measure(c, r, rows=True, columns=True)
    check(m, c, r, rel=3e-6)
    e, y = c.astype(np.float64) - r, r.astype(np.float64)
    assert m.rows is not None and m.columns is not None
    np.testing.assert_allclose(m.rows.reference2, (y**2).sum(1), rtol=1e-6, atol=0)
    np.testing.assert_allclose(m.rows.error2, (e**2).sum(1), rtol=3e-6, atol=0)
    np.testing.assert_allclose(m.rows.cross, (e * y).sum(1), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(m.columns.reference2, (y**2).sum(0), rtol=1e-12)
    for row in (0, 2, 8):  # small numbers after large ones keep their own digits
        alone = measure(c[row], r[row])
        spread = y[row] - y[row].mean()
        slope = (e[row] - e[row].mean()) @ spread / (spread @ spread)
        assert alone.gain_error == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("shape", [(37, 384), (1, 40_000), (65, 513), (3, 16_400), (40, 17)])
def test_columns_over_many_rows(way: str, shape: tuple[int, int]) -> None:
    """Rows are taken together as far as the cache holds them; some of their blocks have to go the careful way."""
    c, r = noisy(shape, 1e-3)
    c[shape[0] // 2, 5] = r[shape[0] // 2, 5] = np.inf
    c[-1, -1] += 2
    m = measure(c, r, columns=True)
    keep = np.isfinite(r)
    e = np.zeros(shape)
    e[keep] = c[keep].astype(np.float64) - r[keep]
    y = np.where(keep, r, 0).astype(np.float64)
    assert m.columns is not None
    np.testing.assert_allclose(m.columns.error, e.sum(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(m.columns.error2, (e**2).sum(0), rtol=1e-5)
    np.testing.assert_allclose(m.columns.reference2, (y**2).sum(0), rtol=1e-6)
    np.testing.assert_allclose(m.columns.cross, (e * y).sum(0), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(m.columns.max_abs, np.abs(e).max(0), rtol=1e-6)


def test_all_of_a_trace(way: str) -> None:
    """In the order given, whichever thread had which; a large one is shared by all."""
    pairs = [noisy((n, 33), 1e-3, seed=n) for n in (5, 1, 40, 7, LARGE // (4 * 33) + 9, 3)]
    found = measure_all(iter(pairs), atol=1e-3, histogram=True, threads=3)
    assert [m.shape for m in found] == [c.shape for c, _ in pairs]
    for m, (c, r) in zip(found, pairs, strict=True):
        assert m.max_abs == measure(c, r).max_abs
        assert m.beyond == measure(c, r, atol=1e-3).beyond
    assert measure_all([]) == []


def test_small_gain_shows(way: str) -> None:
    """A gain of 1.00001 is 168 u; clean noise of 1e-7 stays under 2 u."""
    _, r = noisy((200, 384))
    assert measure((r * np.float32(1.00001)).astype(np.float32), r).gain_error == pytest.approx(1e-5, rel=0.01)
    rounding = r.astype(np.float64) * (1 + 1e-7 * np.random.default_rng(3).standard_normal(r.shape))
    gain = measure(rounding.astype(np.float32), r).gain_error
    assert gain is not None and abs(gain) < 2 * 2**-24


def test_no_gain_of_a_constant(way: str) -> None:
    r = np.full(1000, 3.1, np.float32)
    assert measure(r + np.float32(1), r).gain is None
    assert measure(r + np.float32(1), r).offset == pytest.approx(1)
    assert measure(f32(1), f32(2)).gain is None
    assert measure(np.zeros(5, np.float32), np.zeros(5, np.float32)).gain is None
    assert measure(r * np.linspace(1, 2, 1000, dtype=np.float32), r).gain is None


def test_massive_channel(way: str) -> None:
    """One channel of 600 among small ones: the sums of the others keep their digits in columns."""
    c, r = noisy((64, 48))
    r[:, 7] *= 600
    c[:, 7] = r[:, 7]
    c[:, 9] += np.float32(1e-3)
    m = measure(c, r, rows=True, columns=True)
    check(m, c, r, rel=2e-6)
    assert m.columns is not None and m.rows is not None
    e, y = (c.astype(np.float64) - r), r.astype(np.float64)
    np.testing.assert_allclose(m.columns.error, e.sum(0), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(m.columns.error2, (e**2).sum(0), rtol=1e-6)
    np.testing.assert_allclose(m.columns.reference2, (y**2).sum(0), rtol=1e-6)
    np.testing.assert_allclose(m.columns.cross, (e * y).sum(0), rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(m.columns.max_abs, np.abs(e).max(0), rtol=1e-6)
    np.testing.assert_allclose(m.columns.mean_error[9], 1e-3, rtol=0.01)
    assert int(np.argmax(m.columns.rms)) == 9 and m.columns.length == 64
    np.testing.assert_allclose(m.rows.error, e.sum(1), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(m.rows.error2, (e**2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(m.rows.reference2, (y**2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(m.rows.max_abs, np.abs(e).max(1), rtol=1e-6)
    np.testing.assert_allclose(m.rows.reference_rms, np.sqrt((y**2).mean(1)), rtol=1e-6)
    assert m.rows.length == 48


def test_the_last_bad_row_is_not_averaged_away(way: str) -> None:
    c, r = noisy((4, 300, 33))
    c[3, 299] += 1
    m = measure(c, r, rows=True)
    assert m.rows is not None and m.rows.rms.shape == (1200,)
    assert int(np.argmax(m.rows.rms)) == 1199 and m.rows.rms[1199] == pytest.approx(1, rel=1e-3)
    assert m.rows.rms[:1199].max() < 1e-4


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("size", [1, 40, 1500])
def test_one_nonfinite_never_passes(way: str, bad: float, size: int) -> None:
    r = np.ones(size, np.float32)
    for c, y in ((r.copy(), r), (r, r.copy())):
        (c if c is not r else y)[size - 1] = bad
        m = measure(c, y, atol=1e30, rtol=1e30, rows=True, columns=True, worst=2)
        for error in (m.max_abs, m.rms, m.relative_l2, m.max_rel, m.max_ulp, m.mean_error):
            assert error > 1e30 and not error <= 1e30
        assert m.cosine == 0 and m.cosine_distance == 1
        assert (m.mismatched, m.first_mismatched, m.beyond, m.first_beyond) == (1, size - 1, 1, size - 1)
        assert (m.max_abs_index, m.max_rel_index, m.max_ulp_index) == (size - 1,) * 3
        assert m.differing == 1 and m.finite == size - 1 and m.max_abs_finite == 0
        assert m.rows is not None and m.rows.rms[0] == INF
        assert m.columns is not None and m.columns.rms[-1] == INF and np.all(m.columns.rms[:-1] == 0)


def test_nonfinite_kinds_are_counted_by_side(way: str) -> None:
    c = f32(NAN, NAN, INF, INF, -INF, 1, 2, INF)
    r = f32(NAN, 1, INF, -INF, -INF, INF, 2.5, NAN)
    m = measure(c, r)
    assert m.candidate_nonfinite == Nonfinite(2, 3, 1)
    assert m.reference_nonfinite == Nonfinite(2, 2, 2)
    assert (m.mismatched, m.first_mismatched, m.finite, m.max_abs_finite) == (4, 1, 1, 0.5)


def test_equal_nonfinite_sets_are_no_error(way: str) -> None:
    c, r = noisy((40, 40))
    r[np.triu_indices(40, 1)] = c[np.triu_indices(40, 1)] = -np.inf
    c[0, 0] = r[0, 0] = np.nan
    m = measure(c, r)
    keep = np.isfinite(r)
    assert (m.mismatched, m.finite) == (0, int(keep.sum()))
    assert m.max_abs == pytest.approx(np.abs(c[keep].astype(np.float64) - r[keep]).max(), rel=1e-6)


def test_masked_values_are_a_kind(way: str) -> None:
    """The lowest float32 in one engine and -inf or -1e9 in the other are the same mask; its edge must agree."""
    low = np.finfo(np.float32).min
    c, r = f32(low, -np.inf, 0.5, 2, 1), f32(-1e9, low, 0.5, 2, 1.25)
    m = measure(c, r, mask=-1e9)
    assert (m.mismatched, m.finite, m.max_abs) == (0, 3, 0.25)
    assert measure(f32(low, 1), f32(0, 1), mask=-1e9).mismatched == 1
    # without a mask they are numbers, and their squares must not overflow
    m = measure(f32(low, 1), f32(low, 2))
    assert m.max_abs == 1 and m.relative_l2 == pytest.approx(1 / -float(low)) and m.cosine == pytest.approx(1)


def test_tiny_and_huge_numbers_keep_their_squares(way: str) -> None:
    for scale in (1e-40, 1e-30, 1e-20, 1e18, 1e30):
        c, r = noisy((600,), 0.1)
        c, r = (c * np.float32(scale)).astype(np.float32), (r * np.float32(scale)).astype(np.float32)
        check(measure(c, r), c, r)
    r = np.ones(300, np.float32)
    r[5] = 1e-20
    c = r.copy()
    c[5] = 1.5e-20
    assert measure(c, r).rms == pytest.approx(0.5e-20 / math.sqrt(300), rel=1e-5)


@pytest.mark.parametrize("small", [-3.1e-25, 6e-26, 1e-20, 3e-23, 1e-40, 1e20, 1e-6])
@pytest.mark.parametrize("large", [1.0, 6.5504e-14, 1e4, 9e14])
def test_a_column_keeps_what_its_neighbours_would_lose(way: str, small: float, large: float) -> None:
    """Elements far smaller than others of their block: nothing in the block's sums, all there is in their column's."""
    r = np.zeros((3, 2, 70), np.float32)
    r[..., 0::2] = large
    r[..., 1::2] = small
    c = (r * np.array([1, 1.5, 0.5], np.float32)[:, None, None]).astype(np.float32)
    m = measure(c, r, rows=True, columns=True)
    e, y = c.astype(np.float64) - r, r.astype(np.float64)
    for slices, axes in ((m.columns, (0, 1)), (m.rows, 2)):
        assert slices is not None
        for got, of in ((slices.error2, e * e), (slices.reference2, y * y)):
            np.testing.assert_allclose(got, of.sum(axes).ravel(), rtol=2e-6, atol=0)
        for got, of in ((slices.error, e), (slices.cross, e * y)):
            assert np.all(np.abs(got - of.sum(axes).ravel()) <= 2e-6 * np.abs(of).sum(axes).ravel())
        np.testing.assert_allclose(slices.max_abs, np.abs(e).max(axes).ravel(), rtol=1e-6, atol=0)


def test_the_square_of_a_tiny_number_beside_a_large_one(way: str) -> None:
    """float32 has no square of 6e-26; the block that holds it has."""
    r = f32(-65504e-18, 6e-26)
    m = measure(np.zeros_like(r), r, rows=True, columns=True)
    assert m.columns is not None and m.rows is not None
    assert m.columns.error2 == pytest.approx([65504e-18**2, 3.6e-51], rel=1e-6, abs=0)
    assert m.columns.reference2 == pytest.approx([65504e-18**2, 3.6e-51], rel=1e-6, abs=0)
    assert m.columns.cross == pytest.approx([-(65504e-18**2), -3.6e-51], rel=1e-6, abs=0)


def test_zero_reference(way: str) -> None:
    zero = np.zeros(20, np.float32)
    one = zero.copy()
    one[3] = 1
    m = measure(one, zero)
    assert (m.relative_l2, m.cosine, m.max_rel_index) == (INF, 0, 3) and m.max_rel > 1e37
    assert measure(zero, zero).cosine == 1 and measure(zero, zero).relative_l2 == 0
    assert measure(zero, -zero).equal and measure(zero, -zero).max_ulp == 0
    assert measure(zero, one).relative_l2 == pytest.approx(1) and measure(zero, one).cosine == 0


def test_cosine_does_not_saturate(way: str) -> None:
    c, r = noisy((5000,), 1e-6)
    x, y = c.astype(np.longdouble), r.astype(np.longdouble)
    exact = float(1 - x @ y / np.sqrt(x @ x) / np.sqrt(y @ y))
    assert measure(c, r).cosine_distance == pytest.approx(exact, rel=1e-3)
    assert 0 < exact < 1e-11
    assert measure(-r, r).cosine == pytest.approx(-1)
    assert measure(r * np.float32(1e-4), r).cosine == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 5)])
def test_zero_size(way: str, shape: tuple[int, ...]) -> None:
    m = measure(np.zeros(shape, np.float32), np.zeros(shape, np.float32), rows=True, columns=True, worst=2)
    assert m.equal and m.count == 0 and m.max_abs == 0 and m.rms == 0 and m.gain is None and m.worst == ()
    assert m.cosine == 1 and m.relative_l2 == 0
    assert m.columns is not None and m.columns.rms.shape == shape[-1:]


def test_zero_dimensions(way: str) -> None:
    m = measure(np.float32(1.5)[()].reshape(()), np.array(1.0, np.float32), rows=True, columns=True)
    assert (m.max_abs, m.max_abs_index, m.place(0), m.shape) == (0.5, 0, (), ())
    assert m.rows is not None and m.rows.rms[0] == 0.5


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7), ("float32", 2.0**-23)])
def test_ulps_are_those_of_the_engine(way: str, dtype: str, step: float) -> None:
    """One and the next number of the type, stored widened as in a trace."""
    c, r = f32(1 + 3 * step, 2), f32(1, 2)
    m = measure(c, r, dtype=dtype, histogram=True)
    assert (m.max_ulp, m.max_ulp_index, m.dtype) == (3, 0, dtype)
    assert m.ulp_histogram == (1, 0, 0, 1, 0, 0, 0, 0)


def test_ulps_across_zero(way: str) -> None:
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    assert measure(f32(-tiny), f32(2 * tiny)).max_ulp == 3
    assert measure(f32(-0.0), f32(tiny)).max_ulp == 1
    assert measure(f32(-1), f32(1)).max_ulp == 2 * 0x3F800000
    assert measure(np.array([-0.0]), np.array([5e-324])).max_ulp == 1
    assert measure(np.array([1 + 2.0**-52]), np.array([1.0])).max_ulp == 1


def test_half_arrays_are_read_as_they_are(way: str) -> None:
    every = np.arange(65536, dtype=np.uint16)
    halves = every.view(np.float16)
    widened = halves.astype(np.float32)
    m = measure(halves, widened)
    assert m.equal and m.dtype == "float16" and m.candidate_nonfinite == m.reference_nonfinite
    assert m.candidate_nonfinite.nan == 2046 and m.candidate_nonfinite.posinf == 1
    brains = (every.astype(np.uint32) << np.uint32(16)).view(np.float32)
    m = measure(every, brains, dtype="bfloat16")
    assert m.equal and m.candidate_nonfinite == Nonfinite(254, 1, 1) and m.max_abs == 0
    one, two = np.array([0x3F80, 0x4000], np.uint16), np.array([0x3F81, 0x4000], np.uint16)
    m = measure(one, two, dtype="bfloat16")
    assert (m.max_abs, m.max_ulp, m.max_abs_index) == (2.0**-7, 1, 0)


def test_integers_are_compared_exactly(way: str) -> None:
    big = np.array([2**62, -(2**62), 7], np.int64)
    m = measure(big + np.array([1, 0, 0]), big)
    assert (m.differing, m.max_abs, m.max_abs_index, m.max_ulp) == (1, 1, 0, 1)
    m = measure(np.array([2**63 - 1]), np.array([-(2**63)]))
    assert m.max_abs == 2.0**64
    m = measure(np.array([1, 2, 3], np.int32), np.array([1, 2, 5], np.int64))
    assert (m.differing, m.max_abs, m.dtype) == (1, 2, "int64")
    assert measure(np.array([-1], np.int32), np.array([1], np.int32)).max_abs == 2
    assert measure(np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64)).max_abs == 1
    m = measure(np.array([True, False, True]), np.array([True, True, True]))
    assert (m.differing, m.max_abs_index) == (1, 1)
    assert measure(np.array([1], np.int8), np.array([1.5], np.float32)).max_abs == 0.5


def test_bytes_that_are_equal(way: str) -> None:
    rng = np.random.default_rng(7)
    r = rng.integers(0, 256, 3001, np.uint8)
    c = r.copy()
    c[2999] ^= 1
    y = r.astype(np.float64)
    for x in (r, c):
        m = measure(x, r, histogram=True)
        assert (m.count, m.differing, m.max_abs, m.max_abs_index) == (
            3001,
            int(x is c),
            int(x is c),
            [-1, 2999][x is c],
        )
        assert m.reference_rms == pytest.approx(np.sqrt(np.mean(y**2)), rel=1e-12)
        assert m.sums.m2_r == pytest.approx(((y - y.mean()) ** 2).sum(), rel=1e-12)
        assert (m.sums.max_c, m.sums.max_r) == (x.max(), r.max())
        assert m.sums.cc == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=1e-12)
        assert m.ulp_histogram[0] == 3001 - int(x is c)


def test_float64_and_mixed(way: str) -> None:
    rng = np.random.default_rng(5)
    r = rng.standard_normal(3000)
    c = r + 1e-12 * rng.standard_normal(3000)
    check(measure(c, r), c, r, rel=1e-9)
    m = measure(r.astype(np.float32), r)
    assert m.dtype == "float32" and m.max_ulp <= 0.5 + 1e-6
    check(m, r.astype(np.float32), r, rel=1e-9)


def test_complex_is_compared_by_parts(way: str) -> None:
    m = measure(np.array([1 + 2j, 3 + 4j], np.complex64), np.array([1 + 2j, 3 + 5j], np.complex64))
    assert (m.max_abs, m.shape, m.place(m.max_abs_index)) == (1, (2, 2), (1, 1))


def test_arrays_in_any_order(way: str) -> None:
    c, r = noisy((30, 40, 20))
    c[4, 5, 6] += 1
    for axes in ((2, 0, 1), (1, 2, 0)):
        m = measure(c.transpose(axes), r.transpose(axes).copy())
        assert m.place(m.max_abs_index) == tuple((4, 5, 6)[a] for a in axes)
    assert measure(c.astype(">f4"), r).max_abs == measure(c, r).max_abs
    assert measure(c[::2, ::-1], r[::2, ::-1]).max_abs == measure(c, r).max_abs
    read_only = np.broadcast_to(np.float32(1), (5, 5))
    assert measure(read_only, read_only).equal


def test_worst_are_in_order_and_ties_go_to_the_first(way: str) -> None:
    r = np.zeros(3000, np.float32)
    c = r.copy()
    c[[5, 700, 2900]] = [1, -3, 2]
    c[[100, 200, 2000]] = 0.5
    m = measure(c, r, worst=5)
    assert [(w.at, w.error, w.candidate) for w in m.worst] == [
        (700, 3, -3),
        (2900, 2, 2),
        (5, 1, 1),
        (100, 0.5, 0.5),
        (200, 0.5, 0.5),
    ]
    assert measure(c, r, worst=0).worst == ()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(way: str, threads: int) -> None:
    c, r = noisy((900, 1003), 1e-3)
    c[700, 3] = np.nan
    c[800, 4] += 50
    one = measure(c, r, threads=1, rows=True, columns=True, worst=4, histogram=True, atol=1e-3)
    m = measure(c, r, threads=threads, rows=True, columns=True, worst=4, histogram=True, atol=1e-3)
    assert m.worst[1:] == one.worst[1:] and m.worst[0][:2] == (INF, 700 * 1003 + 3)
    for name, x, y in zip(measures.Sums._fields, m.sums, one.sums, strict=True):
        exact = name not in ("mean_r", "m2_r", "mean_e", "c_er", "ee", "cc", "cr")
        assert x == (y if exact else pytest.approx(y, rel=1e-5, abs=1e-8)), name
    assert m.rows is not None and one.rows is not None and m.columns is not None and one.columns is not None
    np.testing.assert_array_equal(m.rows.rms, one.rows.rms)
    np.testing.assert_allclose(m.columns.rms, one.columns.rms, rtol=1e-6)
    flat = measure(c, r, threads=threads, worst=4)
    assert [w.at for w in flat.worst] == [w.at for w in one.worst]


def test_tolerance_is_that_of_numpy(way: str) -> None:
    c, r = noisy((5000,), 1e-3)
    m = measure(c, r, atol=1e-4, rtol=1e-3)
    outside = ~np.isclose(c.astype(np.float64), r.astype(np.float64), atol=1e-4, rtol=1e-3)
    assert abs(m.beyond - outside.sum()) <= 1 and m.first_beyond == int(np.argmax(outside))


def test_shapes_must_agree_and_objects_are_refused() -> None:
    with pytest.raises(CompareError, match=r"cannot compare \[2, 3\] with \[3, 2\]"):
        measure(np.zeros((2, 3)), np.zeros((3, 2)))
    with pytest.raises(CompareError, match="give numbers or booleans"):
        measure(np.array(["a"]), np.array(["b"]))


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    native.cache_clear()
    try:
        assert native() is None
        c, r = noisy((50,))
        check(measure(c, r), c, r)
    finally:
        native.cache_clear()
