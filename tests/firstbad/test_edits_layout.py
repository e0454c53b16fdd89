"""The right numbers in the wrong places: heads, channels, rows, positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from firstbad.edits_layout import pattern

Arrays = Mapping[str, np.ndarray]
T, D, H, K = 24, 32, 4, 8  # of the model in planted.py
X, Q, V_ = "layers.1.attn_norm", "layers.1.attn.q_proj", "layers.1.attn.v_proj"
SCORES, MASKED, SOFTMAX, MIX = (f"layers.1.attn.{n}" for n in ("matmul", "add", "softmax", "matmul_1"))


def linear(x: np.ndarray, weight: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    made: np.ndarray = (x.astype(np.float64) @ weight.T.astype(np.float64) + bias).astype(np.float32)
    return made


def q_proj(v: Arrays, w: Arrays) -> np.ndarray:
    return linear(v[X], w[f"{Q}.weight"], w[f"{Q}.bias"])


def heads(x: np.ndarray) -> np.ndarray:
    """[1, T, D] → [1, H, T, K]"""
    return x.reshape(1, T, H, K).transpose(0, 2, 1, 3)


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str, dict[str, Any]]] = {
    "two heads exchanged": (
        MIX,
        lambda v, _: (v[SOFTMAX] @ heads(v[V_]))[:, [1, 0, 2, 3]],
        "heads",
        {"how": "0 and 1 exchanged"},
    ),
    "pairs of heads share a key": (
        SCORES,
        lambda v, _: (
            heads(v["layers.1.attn.mul"]) @ heads(v["layers.1.attn.k_proj"])[:, [0, 0, 1, 1]].transpose(0, 1, 3, 2)
        ),
        "heads",
        {"input": "layers.1.attn.k_proj", "how": "div 2"},
    ),
    "heads of the weight exchanged, not of its bias": (
        Q,
        lambda v, w: linear(v[X], w[f"{Q}.weight"].reshape(H, K, D)[[1, 0, 2, 3]].reshape(D, D), w[f"{Q}.bias"]),
        "heads",
        {"weight": f"{Q}.weight", "how": "0 and 1 exchanged"},
    ),
    "heads interleaved": (
        MIX,
        lambda v, _: v[SOFTMAX] @ v[V_].reshape(1, T, K, H).transpose(0, 3, 1, 2),
        "heads",
        {"how": "interleaved"},
    ),
    "values not permuted": (
        MIX,
        lambda v, _: v[SOFTMAX] @ v[V_].reshape(1, H, T, K),
        "layout",
        {"how": "reshaped without permuting"},
    ),
    "mixed not permuted": (
        "layers.1.attn.out_proj",
        lambda v, w: linear(
            v[MIX].reshape(1, T, D), w["layers.1.attn.out_proj.weight"], w["layers.1.attn.out_proj.bias"]
        ),
        "layout",
        {"how": "reshaped without permuting"},
    ),
    "channels reversed": (Q, lambda v, w: q_proj(v, w)[..., ::-1], "layout", {"how": "channels reversed"}),
    "input reversed": (
        Q,
        lambda v, w: linear(v[X][..., ::-1], w[f"{Q}.weight"], w[f"{Q}.bias"]),
        "layout",
        {"input": X, "how": "channels reversed"},
    ),
    "pairs for halves": (
        Q,
        lambda v, w: q_proj(v, w).reshape(1, T, D // 2, 2).transpose(0, 1, 3, 2).reshape(1, T, D),
        "layout",
        {},
    ),
    "rows rotated": (Q, lambda v, w: np.roll(q_proj(v, w), 1, 1), "position", {"by": 1}),
    "input a row late": (
        Q,
        lambda v, w: linear(np.roll(v[X], 1, 1) * (np.arange(T) > 0)[:, None], w[f"{Q}.weight"], w[f"{Q}.bias"]),
        "position",
        {"input": X, "by": 1, "edge": "zero"},
    ),
    "positions + 1": ("positions", lambda _, w: w["positions.weight"][1 : T + 1], "position", {"by": 1}),
    "positions all 0": (
        "positions",
        lambda _, w: w["positions.weight"][np.zeros(T, int)],
        "position",
        {"how": "all 0"},
    ),
    "positions in no order": (
        "positions",
        lambda _, w: w["positions.weight"][(np.arange(T) * 7) % T],
        "layout",
        {"what": "rows"},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_place_is_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, kind, detail = WRONG[case]
    cause = fault(name, wrong).cause
    assert (cause.kind, {k: cause.detail.get(k) for k in detail}) == (kind, detail)


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ([1, 2, 3, 4, 5, 5], ("shifted", 1)),
        ([3, 0, 1, 2], ("rotated", -1)),
        ([3, 2, 1, 0], ("reversed", 0)),
        ([0, 4, 1, 5, 2, 6, 3, 7], ("interleaved by 2", 0)),
        ([0, 1, 0, 1, 0, 1], ("mod 2", 0)),
        ([0, 0, 1, 1, 2, 2], ("div 2", 0)),
        ([0, 2, 1, 3, 4], ("1 and 2 exchanged", 0)),
    ],
)
def test_a_permutation_by_its_pattern(found: list[int], name: tuple[str, int]) -> None:
    assert pattern(np.array(found)) == name
