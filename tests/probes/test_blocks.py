"""Weights in blocks on the C engine: each row against the gguf package's own numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from firstbad.gguf_blocks import block_bytes, numbers
from firstbad.probes import c
from firstbad.probes.plan_check import TYPES
from firstbad.probes.program import BLOCKS
from firstbad.toolchain import build

ENGINE = Path(c.__file__).parent / "engine"


@pytest.fixture(scope="module")
def engine() -> Iterator[ctypes.CDLL]:
    sources = [ENGINE / name for name in ("matmul.c", "pointwise.c", "blocks.c", "pool.c")]
    library = ctypes.CDLL(str(build(sources, flags=[*c.FLAGS, "-DCOPY=99"], include=(ENGINE.parent / "include",))))
    library.pool_start(2)
    library.row_of.restype = ctypes.c_void_p
    yield library
    library.pool_stop()


def rows_of(kind: str, rows: int, numbers_each: int) -> np.ndarray:
    """Random bytes, the float16 scales among them small and finite."""
    size, bytes_each = BLOCKS[kind]
    raw = np.random.default_rng(7).integers(0, 256, (rows * numbers_each // size, bytes_each), np.uint8)
    halves = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208], "MXFP4": []}[kind]
    for at in halves:
        raw[:, at + 1] = raw[:, at + 1] & 0x83 | 0x28  # exponents that keep numbers near 0.03
    if kind == "MXFP4":
        raw[:, 0] = raw[:, 0] % 16 + 120
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", [t for t in TYPES if t[0] in "QM"])
def test_a_row_is_what_the_gguf_package_makes_of_it(kind: str, engine: ctypes.CDLL) -> None:
    assert BLOCKS[kind][1] == block_bytes(kind)
    raw = rows_of(kind, 1, 1024)
    made = np.full(1024, np.nan, np.float32)
    engine.row_of(
        1 + TYPES.index(kind),
        raw.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(1024),
        made.ctypes.data_as(ctypes.c_void_p),
    )
    expected = numbers(kind, raw.reshape(-1)).reshape(-1)
    np.testing.assert_allclose(made, expected, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "float16", "bfloat16"])
def test_a_product_with_stored_weights(kind: str, rows: int, engine: ctypes.CDLL) -> None:
    cols, inner = 50, 512
    rng = np.random.default_rng(1)
    if kind[0] == "Q":
        raw = rows_of(kind, cols, inner)
        w = numbers(kind, raw.reshape(-1)).reshape(cols, inner)
    elif kind == "float16":
        raw = rng.standard_normal((cols, inner)).astype(np.float16)
        w = raw.astype(np.float32)
    else:
        raw = (rng.standard_normal((cols, inner)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        w = (raw.astype(np.uint32) << 16).view(np.float32)
    x = rng.standard_normal((rows, inner)).astype(np.float32)
    y = np.full((rows, cols), np.nan, np.float32)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (y, x, raw)]
    sizes = [ctypes.c_int64(n) for n in (rows, cols, inner)]
    engine.linear_stored(*pointers, ctypes.c_int64(1 + TYPES.index(kind)), None, *sizes)
    wide = x.astype(np.float64) @ w.T.astype(np.float64)
    condition = np.abs(x).astype(np.float64) @ np.abs(w.T).astype(np.float64)
    assert np.max(np.abs(y - wide) / condition) < 40 * 2.0**-24
