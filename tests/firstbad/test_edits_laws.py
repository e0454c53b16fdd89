"""Laws read off the wrong values: each planted by its own formula; and values that no law holds for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import MASKED, SCORES, SOFTMAX, Arrays, D, H, Q, T, heads, q_proj

FC1, GELU, ADD = "layers.1.fc1", "layers.1.gelu", "layers.1.add"
RANDOM = np.random.default_rng(3)
COLUMNS = RANDOM.standard_normal(D) * 0.1
BY_DISTANCE = RANDOM.standard_normal(2 * T) * 0.1
APART = np.arange(T)[:, None] - np.arange(T)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])


def scores(v: Arrays) -> np.ndarray:
    q, k = (heads(v[f"layers.1.attn.{n}"]).astype(np.float64) for n in ("mul", "k_proj"))
    made: np.ndarray = q @ k.transpose(0, 1, 3, 2)
    return made


def softmax(v: Arrays) -> np.ndarray:
    x = v[MASKED].astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    made: np.ndarray = e / e.sum(-1, keepdims=True)
    return made


def add(v: Arrays) -> np.ndarray:
    return v["layers.0.add_1"] + v["layers.1.attn.out_proj"]


def gelu(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return made


def straight(v: Arrays, step: float) -> np.ndarray:
    x = v[FC1].astype(np.float64)
    low = np.floor(x / step) * step
    part = (x - low) / step
    return gelu(low) * (1 - part) + gelu(low + step) * part


def flushed(y: np.ndarray, least: float) -> np.ndarray:
    return np.where(np.abs(y) < least, 0, y)


def pruned(p: np.ndarray, *, shared: bool) -> np.ndarray:
    kept = np.where(p < 0.3 * p.max(-1, keepdims=True), 0, p)
    made: np.ndarray = kept / kept.sum(-1, keepdims=True) if shared else kept
    return made


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str, dict[str, Any]]] = {
    "straight lines": (GELU, lambda v, _: straight(v, 0.25), "wrong_variant", {"number": 0.25}),
    "straight lines, finer": (GELU, lambda v, _: straight(v, 1 / 32), "wrong_variant", {"number": 1 / 32}),
    "small ones dropped": (ADD, lambda v, _: flushed(add(v), 0.05), "wrong_variant", {"number": 0.05}),
    "small shares dropped": (SOFTMAX, lambda v, _: pruned(softmax(v), shared=False), "wrong_variant", {"number": 0.3}),
    "and shared": (SOFTMAX, lambda v, _: pruned(softmax(v), shared=True), "wrong_variant", {"number": 0.3}),
    "a slope": (
        SCORES,
        lambda v, _: scores(v) - 0.05 * np.abs(APART),
        "extra_op",
        {"op": "slope by distance", "number": -0.05},
    ),
    "a slope for each head": (
        SCORES,
        lambda v, _: scores(v) - SLOPES[:, None, None] * np.abs(APART),
        "extra_op",
        {"op": "slope by distance for each head", "numbers": (-SLOPES).tolist()},
    ),
    "a term by distance": (
        SCORES,
        lambda v, _: scores(v) + BY_DISTANCE[APART],
        "extra_op",
        {"op": "a term of its own for each distance"},
    ),
    "a sum of its own": (
        SOFTMAX,
        lambda v, _: softmax(v) / (1 + 0.1 * np.arange(T) / T)[:, None],
        "wrong_variant",
        {"variant": "another sum to divide by: 92 rows add up to 0.9125 to 0.9959"},
    ),
    "a bias from nowhere": (
        Q,
        lambda v, w: q_proj(v, w) + COLUMNS,
        "extra_op",
        {"op": "a term of its own for each column"},
    ),
    "a gain from nowhere": (
        Q,
        lambda v, w: q_proj(v, w) * (1 + COLUMNS),
        "extra_op",
        {"op": "a factor of its own for each column"},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_law_is_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, kind, detail = WRONG[case]
    cause = fault(name, wrong).cause
    assert cause.kind == kind, cause.statement
    found = {k: cause.detail.get(k) for k in detail}
    assert found == {k: v if isinstance(v, str) else pytest.approx(v, rel=1e-3) for k, v in detail.items()}


NOISE = np.random.default_rng(4).standard_normal((1, H, T, T)) * 0.1


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_no_law_is_read_into_noise(scale: float, fault: Callable[..., Any]) -> None:
    """A number of its own for every element is no law, however large its cells."""
    assert fault(SCORES, lambda v, _: scores(v) + scale * NOISE).cause.kind == "unknown"


def test_a_law_is_proved_on_other_elements(fault: Callable[..., Any]) -> None:
    """A bias that is off by a little in one element only explains all others and is not claimed."""

    def wrong(v: Arrays, w: Arrays) -> np.ndarray:
        y = q_proj(v, w) + COLUMNS
        y[0, 3, 5] += 1e-3
        return y

    assert fault(Q, wrong).cause.kind == "unknown"
