"""Norms computed another way: each form by its own formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import Arrays, D

NORM, INPUT = "layers.1.norm", "layers.1.add"


def form(v: Arrays, w: Arrays, *, eps: float = 1e-5, gain: Any = None, offset: Any = None, **how: Any) -> np.ndarray:
    x = v[INPUT].astype(np.float64)
    less = x - x.mean(-1, keepdims=True)
    second = (x if how.get("square") else less) ** 2
    size = second.sum(-1, keepdims=True) / (D - 1 if how.get("unbiased") else D)
    root = np.sqrt(size) + eps if how.get("outside") else np.sqrt(size + eps)
    top = x if how.get("uncentred") else less
    gain = w[f"{NORM}.weight"] if gain is None else gain
    offset = w[f"{NORM}.bias"] if offset is None else offset
    made: np.ndarray = top / root * gain + offset
    return made


VARIANTS: dict[str, Callable[[Arrays, Arrays], np.ndarray]] = {
    "RMS norm (the mean is not subtracted)": lambda v, w: form(v, w, square=True, uncentred=True),
    "sample variance (D - 1)": lambda v, w: form(v, w, unbiased=True),
    "the mean is not subtracted, the variance is": lambda v, w: form(v, w, uncentred=True),
    "the mean is subtracted, the mean square is divided by": lambda v, w: form(v, w, square=True),
    "no gain": lambda v, w: form(v, w, gain=1.0),
    "gain + 1": lambda v, w: form(v, w, gain=w[f"{NORM}.weight"] + 1),
    "offset before the gain": lambda v, w: form(v, w, offset=w[f"{NORM}.bias"] * w[f"{NORM}.weight"]),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_form_is_named(variant: str, fault: Callable[..., Any]) -> None:
    cause = fault(NORM, VARIANTS[variant]).cause
    assert (cause.kind, cause.detail["variant"]) == ("wrong_variant", variant)


@pytest.mark.parametrize("eps", [1e-3, 1e-4, 1e-6])
def test_another_eps_is_solved_for(eps: float, fault: Callable[..., Any]) -> None:
    cause = fault(NORM, lambda v, w: form(v, w, eps=eps)).cause
    assert (cause.kind, cause.detail["what"], cause.detail["number"]) == ("wrong_constant", "eps", eps)
    assert "where the model has 1e-05" in cause.statement


def test_no_offset_is_a_missing_bias(fault: Callable[..., Any]) -> None:
    cause = fault(NORM, lambda v, w: form(v, w, offset=0.0)).cause
    assert (cause.kind, cause.detail["weight"]) == ("missing_bias", f"{NORM}.bias")


def test_the_gain_of_another_norm_is_a_wrong_weight(fault: Callable[..., Any]) -> None:
    cause = fault(NORM, lambda v, w: form(v, w, gain=w["layers.1.attn_norm.weight"])).cause
    assert (cause.kind, cause.detail["read"]) == ("wrong_weight", "layers.1.attn_norm.weight")


def test_statistics_in_half_precision(fault: Callable[..., Any]) -> None:
    def wrong(v: Arrays, w: Arrays) -> np.ndarray:
        x = v[INPUT].astype(np.float64)
        mean = x.mean(-1, keepdims=True).astype(np.float16).astype(np.float64)
        second = x.var(-1, keepdims=True).astype(np.float16).astype(np.float64)
        made: np.ndarray = (x - mean) / np.sqrt(second + 1e-5) * w[f"{NORM}.weight"] + w[f"{NORM}.bias"]
        return made

    cause = fault(NORM, wrong).cause
    assert (cause.kind, cause.detail["what"], cause.detail["dtype"]) == ("precision", "mean and variance", "float16")
