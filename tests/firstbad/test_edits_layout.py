"""The right numbers in the wrong places: heads, channels, rows, positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.edits_layout import pattern
from tests.firstbad.by_hand import MIX, SCORES, SOFTMAX, V_, Arrays, D, H, K, Q, T, X, heads, linear, q_proj

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
