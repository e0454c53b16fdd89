"""One value closely: the worst elements are the worst of all, their slice is the array's own."""

from __future__ import annotations

import math

import numpy as np

from firstbad.reports.inspector import look
from firstbad.reports.rows import Row


def row(name: str, shape: tuple[int, ...]) -> Row:
    return Row(0, "encode", name, "linear", shape, "float32", "culprit", 1.0, 1e-7, 1e7, 1.0, 1e-6, "whole")


def test_the_worst_elements_in_order() -> None:
    random = np.random.default_rng(3)
    a = random.standard_normal((2, 40, 60)).astype(np.float32)
    b = a + random.standard_normal(a.shape).astype(np.float32) ** 3
    found = look(row("x", a.shape), a, b, 0, as_svg=False)
    order = np.argsort(np.abs(a - b).reshape(-1))[::-1][:8]
    assert [e.index for e in found.worst] == [tuple(int(i) for i in np.unravel_index(n, a.shape)) for n in order]
    first = found.worst[0]
    assert (first.reference, first.candidate) == (a[first.index], b[first.index])
    assert math.isclose(
        first.ulps, abs(a[first.index] - b[first.index]) / np.spacing(abs(a[first.index])), rel_tol=1e-6
    )


def test_the_window_around_the_worst() -> None:
    a = np.arange(400, dtype=np.float32).reshape(1, 20, 20)
    b = a.copy()
    b[0, 19, 0] += 1
    window = look(row("x", a.shape), a, b, 0, as_svg=True).window
    assert window is not None
    assert (window.prefix, window.row, window.column) == ((0,), 19, 0)
    assert window.rows == (15, 16, 17, 18, 19)
    assert window.columns == (0, 1, 2, 3, 4, 5, 6)
    assert window.reference[4][0] == 380
    assert window.candidate[4][0] == 381


def test_profiles_name_where_it_is_largest() -> None:
    a = np.zeros((1, 30, 24), np.float32)
    b = a.copy()
    b[0, 17, 13] = 2
    found = look(row("model.attn.q_proj", a.shape), a, b, 4, as_svg=False)
    assert [(p.title, p.at, p.count) for p in found.profiles] == [
        ("by row", 17, 30),
        ("by column (channel)", 13, 24),
        ("by head", 2, 4),
    ]
    heads = look(
        row("model.attn.softmax", (1, 4, 6, 6)), np.zeros((1, 4, 6, 6)), np.ones((1, 4, 6, 6)), 4, as_svg=False
    )
    assert [p.title for p in heads.profiles] == ["by row", "by column", "by head"]


def test_equal_values_and_single_elements() -> None:
    a = np.ones((3, 4), np.float32)
    assert look(row("x", a.shape), a, a, 0, as_svg=True).equal
    one = look(row("x", ()), np.float32(1), np.asarray(np.float32(2)), 0, as_svg=True)
    assert len(one.worst) == 1
    assert one.window is None


def test_a_nan_is_the_worst() -> None:
    a = np.ones((1, 5, 7), np.float32)
    b = a.copy()
    b[0, 2, 3] = np.nan
    b[0, 4, 4] = 100
    found = look(row("x", a.shape), a, b, 0, as_svg=True)
    assert found.worst[0].index == (0, 2, 3)
    assert math.isnan(found.worst[0].candidate)
    assert found.histogram is not None
