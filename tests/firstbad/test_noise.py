"""Limits: what passes, what fails, and that a NaN fails."""

from __future__ import annotations

import math

import numpy as np

from firstbad.judge import judge
from firstbad.noise import Excess, Pool, Sequential, excesses, floor, pools

U = 2.0**-24


def sums_of(error_in_u: float, shape: tuple[int, ...] = (16, 64), seed: int = 0):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(shape)
    s = np.abs(y).astype(np.float32) + 1
    e = U * s * rng.standard_normal(shape)
    t = (y + e * 0.5).astype(np.float32)
    return judge((y + error_in_u * e).astype(np.float32), y, t, s, u=U)


def failed(sums, pool: Pool | None = None, sequential: Sequential | None = None) -> list[str]:  # type: ignore[no-untyped-def]
    limits = floor(sums, pool or Pool(), sequential)
    return [e.test for e in excesses(sums, limits, exact=False) if e.bad]


def test_twice_the_twins_error_passes_and_ten_times_fails() -> None:
    assert failed(sums_of(1.0)) == []
    assert "whole" in failed(sums_of(5.0))


def test_a_sequential_sum_may_be_worse_than_the_twin() -> None:
    sums = sums_of(5.0)
    assert failed(sums, sequential=Sequential(4.0, 12.0, 5.0)) == []


def test_the_twin_can_be_exact_by_luck() -> None:
    """One row whose twin error happens to be 0 must not make an honest rounding a fault."""
    sums = sums_of(1.0, (1, 4))
    lucky = type(sums)(**{**sums.__dict__, "twin": 0.0, "element_twin": 0.0})
    assert failed(lucky, Pool(whole=0.5, rows=0.5, columns=0.5, element=1.5)) == []


def test_pools_are_by_kind() -> None:
    one, two = sums_of(1.0), sums_of(1.0, seed=1)
    pooled = pools([("aten.linear", one), ("aten.linear", two), ("aten.add", one)])
    assert set(pooled) == {"aten.linear", "aten.add"}
    assert pooled["aten.linear"].whole == math.sqrt((one.twin**2 + two.twin**2) / 2)


def test_nan_fails() -> None:
    assert Excess("whole", math.nan, 1.0).bad
    assert Excess("whole", 0.5, 1.0).bad is False
    assert Excess("exact", 0.0, 0.0).ratio == 0.0
    assert Excess("exact", 1.0, 0.0).ratio == math.inf


def test_one_bad_element_in_a_large_value_fails() -> None:
    rng = np.random.default_rng(3)
    y = rng.standard_normal((200, 300))
    s = np.abs(y).astype(np.float32) + 1
    e = U * s * rng.standard_normal(y.shape)
    c = (y + e).astype(np.float32)
    c[120, 7] += 60 * U * s[120, 7]
    sums = judge(c, y, (y + 0.5 * e).astype(np.float32), s, u=U)
    assert sums.element_index == 120 * 300 + 7
    assert "element" in failed(sums)
    assert "whole" not in failed(sums)


def test_a_column_of_one_row_is_judged_as_the_element_it_is() -> None:
    """The declared order may give one element more than its neighbours; the column test must not take that back."""
    sums = sums_of(1.0, (4, 1, 40))
    assert sums.columns.length == 1
    limits = floor(sums, Pool(), Sequential(0.5, 40.0, 0.0))
    assert limits.columns == limits.element == 40.0
    longer = sums_of(1.0, (4, 4000, 40))
    assert floor(longer, Pool(), Sequential(0.5, 40.0, 0.0)).columns < 2 * floor(longer, Pool(), None).columns


def test_a_value_of_one_row_and_a_group_of_one_row_are_judged_as_rows() -> None:
    """One token's row a head: what the declared order may give a row, it may give the head and the whole value."""
    token = sums_of(1.0, (1, 40))
    limits = floor(token, Pool(), Sequential(0.5, 3.0, 9.0))
    assert limits.whole == limits.rows == limits.groups == 9.0
    heads = floor(sums_of(1.0, (4, 1, 40)), Pool(), Sequential(0.5, 3.0, 9.0))
    assert heads.rows == heads.groups == 9.0
    assert heads.whole < 1.0


def in_bfloat16(change: object, shape: tuple[int, ...] = (4, 200, 64)):  # type: ignore[no-untyped-def]
    """A candidate and a twin that both round to bfloat16, the candidate after `change` of what is expected."""
    u = 2.0**-8
    rng = np.random.default_rng(5)
    y = rng.standard_normal(shape) + 2

    def rounded(x: np.ndarray) -> np.ndarray:
        step = 2.0 ** (np.floor(np.log2(np.abs(x))) - 7)
        made: np.ndarray = (np.round(x / step) * step).astype(np.float32)
        return made

    changed = y.copy()
    change(changed)  # type: ignore[operator]
    return judge(rounded(changed), y, rounded(y), np.abs(y).astype(np.float32), u=u)


def test_rounding_alone_passes_the_fine_tests() -> None:
    assert failed(in_bfloat16(lambda y: None)) == []


def test_the_gain_of_one_head_is_seen_beside_others() -> None:
    def change(y: np.ndarray) -> None:
        y[2] *= 1 + 10 * 2.0**-8

    sums = in_bfloat16(change)
    assert "gains" in failed(sums)
    assert sums.gains.index == 2


def test_an_offset_of_a_channel_is_seen_below_one_rounding() -> None:
    """Half a rounding step, in one column of one head: no error of it is too large, but their mean is."""

    def change(y: np.ndarray) -> None:
        y[1, :, 9] += 0.9 * 2.0**-8 * np.abs(y[1, :, 9])

    sums = in_bfloat16(change)
    assert failed(sums) == ["offsets"]
    assert sums.offsets.index == 64 + 9


def test_the_last_row_is_judged_without_the_excuse_of_another() -> None:
    u = 2.0**-11
    rng = np.random.default_rng(6)
    y = rng.standard_normal((50, 64))
    e = u * rng.standard_normal(y.shape)
    e[3] *= 40  # a row that is hard for every engine
    c = y + 0.7 * e
    c[-1] += 20 * u * rng.standard_normal(64)
    sums = judge(c.astype(np.float32), y, (y + e).astype(np.float32), np.ones(y.shape, np.float32), u=u)
    limits = floor(sums, Pool(whole=1.0, rows=1.5, columns=1.5, element=4.0), None)
    bad = {t.test for t in excesses(sums, limits, exact=False) if t.bad}
    assert "rows" not in bad
    assert "last" in bad, limits
