"""Activations, softmax and convolution done another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import MASKED, SOFTMAX, Arrays, D, T

GELU, FC1 = "layers.1.gelu", "layers.1.fc1"


def sigmoid(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = 1 / (1 + np.exp(-x.astype(np.float64)))
    return made


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    made: np.ndarray = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return made


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu (tanh)": tanh_gelu,
    "gelu (sigmoid 1.702)": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("variant", ACTIVATIONS)
def test_the_activation_is_named(variant: str, fault: Callable[..., Any]) -> None:
    cause = fault(GELU, lambda v, _: ACTIVATIONS[variant](v[FC1])).cause
    assert (cause.kind, cause.detail["variant"], cause.detail["model"]) == ("wrong_variant", variant, "gelu (erf)")


def exponents(v: Arrays, axis: int = -1, base: float = np.e) -> np.ndarray:
    x = np.where(v[MASKED] < -1e9, -np.inf, v[MASKED].astype(np.float64))
    made: np.ndarray = base ** (x - x.max(axis, keepdims=True))
    return made


SOFTMAXES: dict[str, Callable[[Arrays], np.ndarray]] = {
    "softmax over axis 2": lambda v: exponents(v, -2) / exponents(v, -2).sum(-2, keepdims=True),
    "softmax without the division by the sum": exponents,
    "softmax in base 2": lambda v: exponents(v, base=2.0) / exponents(v, base=2.0).sum(-1, keepdims=True),
}


@pytest.mark.parametrize("variant", SOFTMAXES)
def test_the_softmax_is_named(variant: str, fault: Callable[..., Any]) -> None:
    cause = fault(SOFTMAX, lambda v, _: SOFTMAXES[variant](v)).cause
    assert (cause.kind, cause.detail["variant"]) == ("wrong_variant", variant)


def convolved(x: np.ndarray, w: np.ndarray, b: Any) -> np.ndarray:
    """Three taps over an input [1, M, T + 2] that is padded already."""
    parts = (np.einsum("dm,mt->dt", w[:, :, i].astype(np.float64), x[0, :, i : i + T]) for i in range(3))
    made: np.ndarray = (sum(parts) + np.asarray(b)[:, None])[None]
    return made


def padded(x: np.ndarray, left: int, right: int, **how: Any) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (left, right)), **how)


CONVOLUTIONS: dict[str, tuple[Callable[[np.ndarray, Arrays], np.ndarray], str, dict[str, Any]]] = {
    "pads (2, 0)": (
        lambda x, w: convolved(padded(x, 2, 0), w["conv.weight"], w["conv.bias"]),
        "position",
        {"variant": "padding of 2 and 0 samples"},
    ),
    "kernel turned": (
        lambda x, w: convolved(padded(x, 1, 1), w["conv.weight"][..., ::-1], w["conv.bias"]),
        "layout",
        {"how": "reversed along the taps"},
    ),
    "edges repeated": (
        lambda x, w: convolved(padded(x, 1, 1, mode="edge"), w["conv.weight"], w["conv.bias"]),
        "wrong_variant",
        {"variant": "padding by replication"},
    ),
    "no bias": (lambda x, w: convolved(padded(x, 1, 1), w["conv.weight"], np.zeros(D)), "missing_bias", {}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_convolution_is_named(case: str, fault: Callable[..., Any], recorded: Any) -> None:
    wrong, kind, detail = CONVOLUTIONS[case]
    mels = recorded.values()["mels"]
    cause = fault("conv", lambda _, w: wrong(mels, w)).cause
    assert (cause.kind, {k: cause.detail.get(k) for k in detail}) == (kind, detail)
