"""An op that works on parts of what it should work on as a whole, each part worked out by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import MASKED, SOFTMAX, Arrays, D, Q, T, X, linear

NORM, INPUT, CONV = "layers.1.norm", "layers.1.add", "conv"


def norm_in_parts(v: Arrays, w: Arrays, size: int) -> np.ndarray:
    x = v[INPUT].astype(np.float64).reshape(1, T, D // size, size)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    made: np.ndarray = y.reshape(1, T, D) * w[f"{NORM}.weight"] + w[f"{NORM}.bias"]
    return made


def tiles(v: Arrays, size: int) -> list[np.ndarray]:
    x = v[MASKED].astype(np.float64)
    return [np.where(t < -1e8, -1e9, t) for t in np.split(x, range(size, T, size), -1)]


def alone(v: Arrays, size: int) -> np.ndarray:
    """A softmax of each tile; where a tile is masked whole every score of it is the same."""
    e = [np.exp(t - t.max(-1, keepdims=True)) for t in tiles(v, size)]
    return np.concatenate([t / t.sum(-1, keepdims=True) for t in e], -1)


def not_rescaled(v: Arrays, size: int) -> np.ndarray:
    top, e = np.full((1, 4, T, 1), -np.inf), []
    for t in tiles(v, size):
        top = np.maximum(top, t.max(-1, keepdims=True))
        e.append(np.exp(t - top))
    whole = np.concatenate(e, -1)
    made: np.ndarray = whole / whole.sum(-1, keepdims=True)
    return made


def in_groups(w: Arrays, groups: int) -> np.ndarray:
    weight = np.zeros_like(w[f"{Q}.weight"])
    n = D // groups
    for g in range(groups):
        part = slice(g * n, g * n + n)
        weight[part, part] = w[f"{Q}.weight"][part, part]
    return weight


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str]] = {
    "halves of a norm": (
        NORM,
        lambda v, w: norm_in_parts(v, w, 16),
        "layer_norm of each 16 of the 32 channels by themselves",
    ),
    "quarters of a norm": (
        NORM,
        lambda v, w: norm_in_parts(v, w, 8),
        "layer_norm of each 8 of the 32 channels by themselves",
    ),
    "tiles alone": (SOFTMAX, lambda v, _: alone(v, 12), "softmax in tiles of 12 keys, each by itself"),
    "tiles that do not divide": (SOFTMAX, lambda v, _: alone(v, 16), "softmax in tiles of 16 keys, each by itself"),
    "tiles not rescaled": (
        SOFTMAX,
        lambda v, _: not_rescaled(v, 8),
        "softmax in tiles of 8 keys, not rescaled when a larger score comes",
    ),
    "a product in groups": (Q, lambda v, w: linear(v[X], in_groups(w, 4), w[f"{Q}.bias"]), "linear in 4 groups"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_parts_are_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, variant = WRONG[case]
    cause = fault(name, wrong).cause
    assert (cause.kind, cause.detail.get("variant")) == ("wrong_variant", variant), cause.statement
