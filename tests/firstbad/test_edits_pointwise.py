"""Functions, grids and pieces of every element by itself, planted by NumPy and named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

Arrays = Mapping[str, np.ndarray]
FC1, GELU, FC2, NORM, SOFTMAX = (
    "layers.1.fc1",
    "layers.1.gelu",
    "layers.1.fc2",
    "layers.1.norm",
    "layers.0.attn.softmax",
)
SCORES = "layers.0.attn.add"


def linear(v: Arrays, w: Arrays) -> np.ndarray:
    made: np.ndarray = v[NORM].astype(np.float64) @ w[f"{FC1}.weight"].T.astype(np.float64) + w[f"{FC1}.bias"]
    return made


def gelu(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = 0.5 * x * (1 + np.vectorize(math.erf)(x.astype(np.float64) / math.sqrt(2)))
    return made


def wrapped(y: np.ndarray) -> np.ndarray:
    top = 2.0 ** math.floor(math.log2(np.abs(y).max()))  # some are beyond it
    step = top / 2**15
    return np.rint(y / step).astype(np.int64).astype(np.int16) * step


def padded(v: Arrays, count: float) -> np.ndarray:
    x = v[SCORES].astype(np.float64)
    e = np.exp(np.where(x < -1e8, -np.inf, x))
    made: np.ndarray = e / (e.sum(-1, keepdims=True) + count)
    return made


def cut(x: np.ndarray) -> np.ndarray:
    return np.where(x < -1.5, 0, np.where(x > 1.75, x, gelu(x)))


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str, dict[str, Any]]] = {
    "the sign lost": (FC1, lambda v, w: np.abs(linear(v, w)), "extra_op", {"op": "abs", "where": "after"}),
    "on a grid": (FC1, lambda v, w: np.rint(linear(v, w) * 1024) / 1024, "precision", {"number": 2.0**-10}),
    "on a grid, downwards": (FC1, lambda v, w: np.floor(linear(v, w) * 100) / 100, "precision", {"number": 0.01}),
    "wrapped round": (FC1, lambda v, w: wrapped(linear(v, w)), "overflow", {"dtype": "int16"}),
    "an input on a grid": (GELU, lambda v, _: gelu(np.floor(v[FC1] * 32) / 32), "precision", {"number": 1 / 32}),
    "cut off": (GELU, lambda v, _: cut(v[FC1]), "wrong_variant", {"model": "gelu"}),
    "zeros of padding": (SOFTMAX, lambda v, _: padded(v, 7), "mask", {"padding": 7}),
    "a sink": (SOFTMAX, lambda v, _: padded(v, math.exp(-0.75)), "extra_op", {"number": -0.75}),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_was_done_to_each_element_is_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, kind, detail = WRONG[case]
    cause = fault(name, wrong).cause
    assert cause.kind == kind, cause.statement
    found = {k: cause.detail.get(k) for k in detail}
    assert found == {k: pytest.approx(v, rel=1e-3) if isinstance(v, float) else v for k, v in detail.items()}
