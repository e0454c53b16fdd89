"""Ops left out, done twice, put in: planted as the wrong arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import Arrays, Q, X, linear

ADD = "layers.1.add"
RESIDUAL, MIXED = "layers.0.add_1", "layers.1.attn.out_proj"


def norm(x: np.ndarray, w: Arrays, name: str) -> np.ndarray:
    x = x.astype(np.float64)
    less = x - x.mean(-1, keepdims=True)
    made: np.ndarray = (
        less / np.sqrt((less**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]
    )
    return made


def gelu(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / 2**0.5))


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str, dict[str, Any]]] = {
    "residual dropped": (ADD, lambda v, _: v[MIXED], "missing_op", {"drops": RESIDUAL, "keeps": MIXED}),
    "residual doubled": (ADD, lambda v, _: v[MIXED] + 2 * v[RESIDUAL], "extra_op", {"adds": RESIDUAL}),
    "subtracted": (ADD, lambda v, _: v[RESIDUAL] - v[MIXED], "wrong_variant", {"input": MIXED}),
    "activation left out": ("layers.1.gelu", lambda v, _: v["layers.1.fc1"], "missing_op", {"op": "gelu"}),
    "activation twice": ("layers.1.gelu", lambda v, _: gelu(gelu(v["layers.1.fc1"])), "extra_op", {"times": 2}),
    "last norm left out": ("norm", lambda v, _: v["layers.1.add_1"], "missing_op", {"op": "layer_norm"}),
    "scale left out": ("layers.1.attn.mul", lambda v, _: v[Q], "missing_op", {"op": "mul"}),
    "norm after the sum": (
        ADD,
        lambda v, w: norm(v[RESIDUAL] + v[MIXED], w, "layers.1.norm"),
        "extra_op",
        {"of": "layers.1.norm", "where": "after"},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_op_that_is_missing_or_too_much_is_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, kind, detail = WRONG[case]
    cause = fault(name, wrong).cause
    assert (cause.kind, {k: cause.detail.get(k) for k in detail}) == (kind, detail)


def test_a_residual_taken_after_the_norm_is_a_wrong_input(fault: Callable[..., Any]) -> None:
    cause = fault(ADD, lambda v, _: v[X] + v[MIXED]).cause
    assert (cause.kind, cause.detail["input"], cause.detail["read"]) == ("wrong_input", RESIDUAL, X)


def test_an_op_swapped_with_the_one_before_it(fault: Callable[..., Any]) -> None:
    """The norm's own input goes through the projection first, and the norm comes after."""

    def wrong(v: Arrays, w: Arrays) -> np.ndarray:
        return norm(linear(v[RESIDUAL], w[f"{Q}.weight"], w[f"{Q}.bias"]), w, X)

    cause = fault(Q, wrong).cause
    assert (cause.kind, cause.detail["op"], cause.detail["before"]) == ("order", "linear", "layer_norm")
