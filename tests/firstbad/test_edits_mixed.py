"""Rows that leak into the next, columns turned, scattered zeros, bends: each planted by its own formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import MASKED, SCORES, SOFTMAX, Arrays, D, Q, T, q_proj

FC1, GELU, ADD, NORM = "layers.1.fc1", "layers.1.gelu", "layers.1.add", "layers.1.norm"
FIRST, BRANCH = "layers.0.add_1", "layers.1.attn.out_proj"
CHANCE = np.random.default_rng(8).random((1, T, D)) < 0.1


def add(v: Arrays) -> np.ndarray:
    return v[FIRST].astype(np.float64) + v[BRANCH]


def leaking(y: np.ndarray, share: float) -> np.ndarray:
    made = y.copy()
    for t in range(1, T):
        made[:, t] += share * made[:, t - 1]
    return made


def smoothed(y: np.ndarray) -> np.ndarray:
    made = y.copy()
    made[:, 1:] = (y[:, 1:] + y[:, :-1]) / 2
    return made


def softmax(v: Arrays) -> np.ndarray:
    x = v[MASKED].astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    made: np.ndarray = e / e.sum(-1, keepdims=True)
    return made


def best(p: np.ndarray, count: int) -> np.ndarray:
    return np.where(p >= np.sort(p, -1)[..., -count][..., None], p, 0)


def turned(y: np.ndarray, *, apart: bool) -> np.ndarray:
    pairs = y.reshape(1, T, 2, D // 2).swapaxes(2, 3) if apart else y.reshape(1, T, D // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    made = np.stack([(a + b) / math.sqrt(2), (a - b) / math.sqrt(2)], -1)
    return (made.swapaxes(2, 3) if apart else made).reshape(1, T, D)


def down(v: Arrays, w: Arrays, axes: tuple[int, ...]) -> np.ndarray:
    x = v[ADD].astype(np.float64)
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    made: np.ndarray = y * w[f"{NORM}.weight"] + w[f"{NORM}.bias"]
    return made


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str, dict[str, Any]]] = {
    "rows leak": (
        ADD,
        lambda v, _: leaking(add(v), 0.1),
        "extra_op",
        {"op": "share of the row before it as that had become", "number": 0.1, "keeps": 1.0},
    ),
    "rows smoothed": (
        ADD,
        lambda v, _: smoothed(add(v)),
        "extra_op",
        {"op": "share of the row before it", "number": 0.5, "keeps": 0.5},
    ),
    "pairs turned": (
        Q,
        lambda v, w: turned(q_proj(v, w), apart=False),
        "extra_op",
        {"op": "a matrix on each 2 columns"},
    ),
    "halves turned": (
        Q,
        lambda v, w: turned(q_proj(v, w), apart=True),
        "extra_op",
        {"op": "a matrix on each 2 columns 16 apart"},
    ),
    "the best only": (
        SOFTMAX,
        lambda v, _: best(softmax(v), 3),
        "wrong_variant",
        {"variant": "zero for all but the 3 largest of each row"},
    ),
    "dropout": (Q, lambda v, w: np.where(CHANCE, 0, q_proj(v, w) / 0.9), "wrong_variant", {"number": 0.1}),
    "another constant": (
        GELU,
        lambda v, _: v[FC1] / (1 + np.exp(-1.7 * v[FC1].astype(np.float64))),
        "wrong_variant",
        {"variant": "x sigmoid(a x), a = 1.7"},
    ),
    "a branch gated": (
        ADD,
        lambda v, _: v[FIRST].astype(np.float64) + np.where(v[BRANCH] < 0, v[BRANCH] / 2, v[BRANCH]),
        "extra_op",
        {"op": "leaky relu", "input": BRANCH, "slope": 0.5},
    ),
    "a norm over the rows": (
        NORM,
        lambda v, w: down(v, w, (1,)),
        "wrong_variant",
        {"variant": "mean and variance of each channel over the rows"},
    ),
    "a norm of everything": (
        NORM,
        lambda v, w: down(v, w, (1, 2)),
        "wrong_variant",
        {"variant": "mean and variance of all rows together"},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_was_mixed_in_is_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, kind, detail = WRONG[case]
    cause = fault(name, wrong).cause
    assert cause.kind == kind, cause.statement
    found = {k: cause.detail.get(k) for k in detail}
    assert found == {k: v if isinstance(v, str) else pytest.approx(v, rel=1e-5) for k, v in detail.items()}


def test_zeros_that_no_rule_chose_are_no_dropout(fault: Callable[..., Any]) -> None:
    """A tenth is zero, and the others are as they were, or larger by something else than a tenth."""
    for factor in (1.0, 1.02, 1.5):
        cause = fault(Q, lambda v, w, factor=factor: np.where(CHANCE, 0, q_proj(v, w) * factor)).cause
        assert "dropout" not in cause.statement


def test_the_scores_are_not_turned_by_noise(fault: Callable[..., Any]) -> None:
    noise = np.random.default_rng(9).standard_normal((1, 4, T, T)) * 0.01

    def wrong(v: Arrays, _: Arrays) -> np.ndarray:
        q, k = (v[f"layers.1.attn.{n}"].reshape(1, T, 4, 8).transpose(0, 2, 1, 3) for n in ("mul", "k_proj"))
        return q.astype(np.float64) @ k.transpose(0, 1, 3, 2) + noise

    assert fault(SCORES, wrong).cause.kind == "unknown"
