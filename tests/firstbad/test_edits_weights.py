"""Another weight, no bias, a bias twice: planted as the wrong product, named by what was used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import V_, Arrays, Q, T, X, linear

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
