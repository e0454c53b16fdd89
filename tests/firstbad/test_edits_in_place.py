"""A linear layer that writes over its own input: the memory walked element by element, against the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from firstbad.edits_in_place import _run


def walked(x: np.ndarray, w: np.ndarray, b: np.ndarray, apart: int, block: int, columns: int) -> np.ndarray:
    """One memory of Python floats; a block is computed from what stands there, then written."""
    rows, inner = x.shape
    N = w.shape[0]
    memory = {i: float(v) for i, v in enumerate(x.ravel())}
    for r0 in range(0, rows, block):
        for c0 in range(0, N, columns):
            made = {
                (r, c): sum(memory[r * inner + k] * float(w[c, k]) for k in range(inner)) + float(b[c])
                for r in range(r0, min(r0 + block, rows))
                for c in range(c0, min(c0 + columns, N))
            }
            for (r, c), number in made.items():
                memory[apart + r * N + c] = float(np.float32(number))
    return np.array([[memory[apart + r * N + c] for c in range(N)] for r in range(rows)])


@pytest.mark.parametrize(("inner", "N"), [(8, 8), (12, 8), (8, 12)])
@pytest.mark.parametrize(("apart", "block", "columns"), [(0, 6, 4), (0, 1, 4), (8, 6, 2), (0, 3, 8), (-5, 2, 4)])
def test_blocks_overwrite_what_comes_after_them(inner: int, N: int, apart: int, block: int, columns: int) -> None:
    rng = np.random.default_rng(2)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((6, inner), (N, inner), (N,)))
    right = walked(x, w, b, apart, block, columns)
    made, condition = _run(x, w, b, apart, block, columns, right.reshape(6, N))
    np.testing.assert_allclose(made, right.reshape(6, N), rtol=1e-4, atol=1e-5)
    assert (condition >= np.abs(made) * 0.999).all()


def test_memory_apart_is_left_alone() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((4, 5)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_allclose(_run(x, w, None, 20, 2, 1, x @ w.T)[0], x @ w.T, rtol=1e-5)
