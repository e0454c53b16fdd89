"""Too few bits: stored, read, summed; and values held within a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from firstbad.edits_precision import ROUNDINGS
from tests.firstbad.by_hand import Arrays, D, Q, T, X, linear, q_proj


def bfloat16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().float().numpy()


def float16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def int8(x: np.ndarray) -> np.ndarray:
    step = np.abs(x).max() / 127
    made: np.ndarray = (np.round(x / step) * step).astype(np.float32)
    return made


def summed(v: Arrays, w: Arrays, rounding: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Term after term, the sum rounded each time."""
    total = np.zeros((1, T, D), np.float32)
    for k in range(D):
        total = rounding(total + v[X][..., k : k + 1] * w[f"{Q}.weight"][:, k])
    made: np.ndarray = total + w[f"{Q}.bias"]
    return made


WRONG: dict[str, tuple[Callable[[Arrays, Arrays], np.ndarray], dict[str, Any]]] = {
    "stored in bfloat16": (lambda v, w: bfloat16(q_proj(v, w)), {"what": "output", "dtype": "bfloat16"}),
    "stored in float16": (lambda v, w: float16(q_proj(v, w)), {"what": "output", "dtype": "float16"}),
    "read in bfloat16": (
        lambda v, w: linear(bfloat16(v[X]), w[f"{Q}.weight"], w[f"{Q}.bias"]),
        {"what": "input", "input": X, "dtype": "bfloat16"},
    ),
    "both factors in bfloat16": (
        lambda v, w: linear(bfloat16(v[X]), bfloat16(w[f"{Q}.weight"]), w[f"{Q}.bias"]),
        {"what": "operands", "dtype": "bfloat16"},
    ),
    "weight in int8": (
        lambda v, w: linear(v[X], int8(w[f"{Q}.weight"]), w[f"{Q}.bias"]),
        {"what": "weight", "dtype": "int8 for the whole"},
    ),
    "summed in bfloat16": (lambda v, w: summed(v, w, bfloat16), {"what": "sum", "dtype": "bfloat16"}),
    "summed in float16": (lambda v, w: summed(v, w, float16), {"what": "sum", "dtype": "float16"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_narrow_type_is_named(case: str, fault: Callable[..., Any]) -> None:
    wrong, detail = WRONG[case]
    cause = fault(Q, wrong).cause
    assert (cause.kind, {k: cause.detail.get(k) for k in detail}) == ("precision", detail)


def test_values_held_within_a_range(fault: Callable[..., Any]) -> None:
    cause = fault("head", lambda v, w: np.clip(linear(v["norm"], w["head.weight"]), -1.5, 1.5)).cause
    assert (cause.kind, cause.detail["how"], cause.detail["limit"]) == ("overflow", "clipped", 1.5)


def test_noise_alone_is_not_called_precision(fault: Callable[..., Any]) -> None:
    noise = np.random.default_rng(0).standard_normal((1, T, D)).astype(np.float32)
    cause = fault(Q, lambda v, w: q_proj(v, w) + np.float32(0.01) * noise).cause
    assert cause.kind == "unknown"
    assert cause.detail["closest"]


@pytest.mark.parametrize(("name", "mine"), [("bfloat16", bfloat16), ("float16", float16)])
def test_roundings_are_those_of_the_hardware(name: str, mine: Callable[[np.ndarray], np.ndarray]) -> None:
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float32) * 100
    x[:3] = 0.0, np.inf, -np.inf
    np.testing.assert_array_equal(ROUNDINGS[name](x), mine(x))
