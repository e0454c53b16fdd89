"""Another weight, no bias, a bias twice: planted as the wrong product, named by what was used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

Arrays = Mapping[str, np.ndarray]
T, D, H, K = 24, 32, 4, 8  # of the model in planted.py
X, Q, V_ = "layers.1.attn_norm", "layers.1.attn.q_proj", "layers.1.attn.v_proj"
SCORES, MASKED, SOFTMAX, MIX = (f"layers.1.attn.{n}" for n in ("matmul", "add", "softmax", "matmul_1"))


def linear(x: np.ndarray, weight: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    made: np.ndarray = (x.astype(np.float64) @ weight.T.astype(np.float64) + bias).astype(np.float32)
    return made


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str, dict[str, Any]]] = {
    "no bias": (V_, lambda v, w: linear(v[X], w[f"{V_}.weight"]), "missing_bias", {"weight": f"{V_}.bias"}),
    "bias twice": (
        V_,
        lambda v, w: linear(v[X], w[f"{V_}.weight"], 2 * w[f"{V_}.bias"]),
        "extra_op",
        {"op": "bias", "times": 2},
    ),
    "bias of q": (
        V_,
        lambda v, w: linear(v[X], w[f"{V_}.weight"], w[f"{Q}.bias"]),
        "wrong_weight",
        {"weight": f"{V_}.bias", "read": f"{Q}.bias"},
    ),
    "weight of the other layer": (
        V_,
        lambda v, w: linear(v[X], w["layers.0.attn.v_proj.weight"], w[f"{V_}.bias"]),
        "wrong_weight",
        {"weight": f"{V_}.weight", "read": "layers.0.attn.v_proj.weight"},
    ),
    "module of the other layer": (
        V_,
        lambda v, w: linear(v[X], w["layers.0.attn.v_proj.weight"], w["layers.0.attn.v_proj.bias"]),
        "wrong_weight",
        {"slot": "weight and bias", "read": "layers.0.attn.v_proj.weight"},
    ),
    "transposed": (
        V_,
        lambda v, w: linear(v[X], w[f"{V_}.weight"].T, w[f"{V_}.bias"]),
        "wrong_weight",
        {"transposed": True},
    ),
    "head from the tokens": (
        "head",
        lambda v, w: linear(v["norm"], w["tokens.weight"]),
        "wrong_weight",
        {"weight": "head.weight", "read": "tokens.weight"},
    ),
    "rows of another table": (
        "positions",
        lambda _v, w: w["tokens.weight"][:T],
        "wrong_weight",
        {"weight": "positions.weight", "read": "tokens.weight"},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_weight_that_was_used_is_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, kind, detail = WRONG[case]
    cause = fault(name, wrong).cause
    assert (cause.kind, {k: cause.detail.get(k) for k in detail}) == (kind, detail)
    assert cause.reproduces_to < 1e-6
