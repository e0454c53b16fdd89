"""The kernels against the same maths in float64, and against their naive oracles."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firstbad.probes import c
from firstbad.toolchain import build

ENGINE = Path(c.__file__).parent / "engine"
U = 2.0**-24
FAST = (  # -ffast-math without its start-up code, which would flush denormals in all of this process
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-freciprocal-math",
    "-ffinite-math-only",
    "-fno-math-errno",
)

Array = NDArray[Any]


@pytest.fixture(scope="module", params=["1 thread", "2 threads", "2 threads, no vectors", "2 threads, fast-math"])
def kernels(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    flags = [*c.FLAGS]
    if "no vectors" in request.param:
        flags = [flag for flag in flags if flag != "-march=native"]
    if "fast-math" in request.param:
        flags += FAST
    sources = [ENGINE / name for name in ("matmul.c", "pointwise.c", "blocks.c", "pool.c")]
    # a copy of its own: a library is loaded once in a process, and the pool's threads belong to it
    include = (ENGINE.parent / "include",)
    library = ctypes.CDLL(str(build(sources, flags=[*flags, f"-DCOPY={len(request.param)}"], include=include)))
    library.pool_start(int(request.param[0]))
    yield library
    library.pool_stop()


def call(kernel: Any, *arguments: Any) -> None:
    def passed(argument: Any) -> Any:
        if isinstance(argument, np.ndarray):
            assert argument.flags.c_contiguous
            return argument.ctypes.data_as(ctypes.c_void_p)
        if isinstance(argument, float):
            return ctypes.c_float(argument)
        return ctypes.c_int64(argument) if isinstance(argument, int) else argument

    kernel.restype = None
    kernel(*map(passed, arguments))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def wide(a: Array) -> Array:
    return a.astype(np.float64)


def assert_sum_of_products(got: Array, expected: Array, condition: Array, terms: int) -> None:
    """|error| <= u (2 + sqrt(terms)) condition: rounding errors of a sum, which mostly cancel."""
    assert np.isfinite(got).all()
    assert (np.abs(wide(got) - expected) <= U * (2 + terms**0.5) * condition).all()


@pytest.mark.parametrize(
    ("rows", "cols", "inner"),
    [(1, 1, 1), (1, 1000, 64), (2, 33, 17), (7, 40, 30), (8, 32, 256), (9, 31, 257), (50, 100, 600), (65, 129, 15)],
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["linear", "naive_linear"])
def test_linear(kernels: ctypes.CDLL, name: str, rows: int, cols: int, inner: int, bias: bool) -> None:
    x, w, b = normal(rows, inner), normal(cols, inner), normal(cols)
    y = np.full((rows, cols), np.nan, np.float32)
    call(kernels[name], y, x, w, b if bias else None, rows, cols, inner)
    expected, condition = wide(x) @ wide(w).T, np.abs(wide(x)) @ np.abs(wide(w)).T
    if bias:
        expected, condition = expected + b, condition + np.abs(b)
    assert_sum_of_products(y, expected, condition, inner)


@pytest.mark.parametrize(("D", "C", "L", "stride"), [(8, 5, 30, 1), (33, 80, 64, 1), (16, 33, 41, 2), (7, 3, 1, 2)])
@pytest.mark.parametrize("name", ["conv1d", "naive_conv1d"])
def test_conv1d(kernels: ctypes.CDLL, name: str, D: int, C: int, L: int, stride: int) -> None:
    x, w, b = normal(C, L), normal(D, C, 3), normal(D)
    T = (L - 1) // stride + 1
    y = np.full((D, T), np.nan, np.float32)
    call(kernels[name], y, x, w, b, D, C, L, stride)
    padded = np.pad(wide(x), ((0, 0), (1, 1)))
    columns = np.stack([padded[:, j : j + stride * (T - 1) + 1 : stride] for j in range(3)], 1)  # [C, 3, T]
    expected = np.einsum("dcj,cjt->dt", wide(w), columns) + b[:, None]
    condition = np.einsum("dcj,cjt->dt", np.abs(wide(w)), np.abs(columns)) + np.abs(b)[:, None]
    assert_sum_of_products(y, expected, condition, 3 * C)


HEADS = [(1, 1, 1, 8), (4, 1, 50, 16), (3, 2, 2, 64), (2, 9, 33, 16), (6, 70, 40, 64), (2, 65, 300, 24)]


@pytest.mark.parametrize(("H", "Tq", "Tk", "K"), HEADS)
@pytest.mark.parametrize("name", ["attention_scores", "naive_attention_scores"])
def test_attention_scores(kernels: ctypes.CDLL, name: str, H: int, Tq: int, Tk: int, K: int) -> None:
    G = H // 2 if H % 2 == 0 else H  # heads of keys, each of which serves two of the queries'
    q, k = normal(Tq, H, K), normal(Tk, G, K, seed=1)
    y = np.full((H, Tq, Tk), np.nan, np.float32)
    call(kernels[name], y, q, k, H, G, Tq, Tk, K)
    k = k.repeat(H // G, 1)
    expected = np.einsum("ihc,jhc->hij", wide(q), wide(k))
    condition = np.einsum("ihc,jhc->hij", np.abs(wide(q)), np.abs(wide(k)))
    assert_sum_of_products(y, expected, condition, K)


@pytest.mark.parametrize(("H", "Tq", "Tk", "K"), HEADS)
@pytest.mark.parametrize("name", ["attention_mix", "naive_attention_mix"])
def test_attention_mix(kernels: ctypes.CDLL, name: str, H: int, Tq: int, Tk: int, K: int) -> None:
    G = H // 2 if H % 2 == 0 else H
    p, v = np.abs(normal(H, Tq, Tk)), normal(Tk, G, K)
    y = np.full((Tq, H, K), np.nan, np.float32)
    call(kernels[name], y, p, v, H, G, Tq, Tk, K)
    v = v.repeat(H // G, 1)
    expected = np.einsum("hij,jhc->ihc", wide(p), wide(v))
    condition = np.einsum("hij,jhc->ihc", wide(p), np.abs(wide(v)))
    assert_sum_of_products(y, expected, condition, Tk)


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 7), (2, 16), (5, 100), (40, 1500)])
def test_softmax(kernels: ctypes.CDLL, rows: int, cols: int) -> None:
    x = normal(rows, cols) * 10
    x[0, cols // 2 :] = -3.4e38  # masked
    y = np.full_like(x, np.nan)
    call(kernels.softmax, y, x, rows, cols)
    e = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    expected = e / e.sum(-1, keepdims=True)
    # exp(d) is off by |d| u for the rounding of d; the sum by a few u
    tolerance = expected * U * (8 + 2 * np.abs(wide(x) - wide(x).max(-1, keepdims=True)).clip(0, 110)) + 1e-44
    assert (np.abs(wide(y) - expected) <= tolerance).all()


@pytest.mark.parametrize(("rows", "D"), [(1, 2), (3, 64), (50, 384), (2, 13)])
def test_layer_norm(kernels: ctypes.CDLL, rows: int, D: int) -> None:
    x, w, b = normal(rows, D) + 5, normal(D), normal(D, seed=2)
    y = np.full_like(x, np.nan)
    call(kernels.layer_norm, y, x, w, b, rows, D, 1e-5)
    centred = wide(x) - wide(x).mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    expected = centred * scale * w + b
    condition = (np.abs(wide(x)).max() * scale + np.abs(centred) * scale * 8) * np.abs(w) + np.abs(b)
    assert (np.abs(wide(y) - expected) <= U * 6 * condition).all()


def test_gelu(kernels: ctypes.CDLL) -> None:
    import math

    x = np.concatenate([np.linspace(-12, 12, 40001, dtype=np.float32), np.float32([0, -0.0, 1e-30, 30])])
    y = np.full_like(x, np.nan)
    call(kernels.gelu, y, x, x.size)
    expected = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in wide(x)])
    assert (np.abs(wide(y) - expected) <= 4 * U * np.abs(x)).all()  # 1 + erf cancels below zero


def test_element_by_element(kernels: ctypes.CDLL) -> None:
    a, b = normal(7, 5), normal(7, 5, seed=1)
    y = np.empty_like(a)
    call(kernels.add, y, a, b, a.size)
    np.testing.assert_array_equal(y, a + b)
    call(kernels.mul, y, a, 0.125, a.size)
    np.testing.assert_array_equal(y, a * np.float32(0.125))
    call(kernels.add_permuted, y, np.ascontiguousarray(a.T), b, 7, 5)
    np.testing.assert_array_equal(y, a + b)


def test_causal_mask(kernels: ctypes.CDLL) -> None:
    lowest = np.finfo(np.float32).min
    for Tq, Tk in ((3, 3), (2, 5), (1, 4)):
        x = normal(2, Tq, Tk)
        y = np.empty_like(x)
        call(kernels.causal_mask, y, x, 2, Tq, Tk, 0, 0)
        later = np.arange(Tk) > np.arange(Tq)[:, None] + Tk - Tq
        np.testing.assert_array_equal(y, np.where(later, lowest, x))


def test_look_ups(kernels: ctypes.CDLL) -> None:
    table = normal(11, 6)
    ids = np.array([3, 0, 10, 3], np.int64)
    y = np.empty((4, 6), np.float32)
    call(kernels.embedding, y, ids, table, 0, 4, 6)
    np.testing.assert_array_equal(y, table[ids])
    call(kernels.positions, y, table, 5, 4, 6)
    np.testing.assert_array_equal(y, table[5:9])


def test_masked_fill_and_argmax(kernels: ctypes.CDLL) -> None:
    x = normal(100)
    x[[20, 40]] = 9.0
    x[60] = 50.0
    y = np.empty_like(x)
    call(kernels.masked_fill, y, x, np.array([60, 2], np.int64), 2, 100)
    expected = x.copy()
    expected[[60, 2]] = -np.inf
    np.testing.assert_array_equal(y, expected)
    best = np.full(1, -1, np.int64)
    call(kernels.argmax, best, y, 100)
    assert best[0] == 20  # the first of the largest
