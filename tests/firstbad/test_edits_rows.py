"""What belongs to another row, head or column, planted by NumPy and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

Arrays = Mapping[str, np.ndarray]
NORM, RESIDUAL, V_ = "layers.1.norm", "layers.1.add", "layers.1.attn.v_proj"
X, SOFTMAX, MIX = "layers.1.attn_norm", "layers.1.attn.softmax", "layers.1.attn.matmul_1"


def linear(v: Arrays, w: Arrays, name: str, x: str) -> np.ndarray:
    made: np.ndarray = v[x].astype(np.float64) @ w[f"{name}.weight"].T.astype(np.float64) + w[f"{name}.bias"]
    return made


def normed(v: Arrays, w: Arrays, mean_of: Any, deviation_of: Any) -> np.ndarray:
    x = v[RESIDUAL].astype(np.float64)
    rows = np.arange(x.shape[-2])
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    mean, variance = mean[..., mean_of(rows), :], variance[..., deviation_of(rows), :]
    made: np.ndarray = (x - mean) / np.sqrt(variance + 1e-5) * w[f"{NORM}.weight"] + w[f"{NORM}.bias"]
    return made


def same(rows: np.ndarray) -> np.ndarray:
    return rows


def heads(v: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Shares [H, T, T] and values [H, T, K]."""
    T, H = v[V_].shape[-2], v[SOFTMAX].shape[-3]
    return v[SOFTMAX].reshape(H, T, T).astype(np.float64), v[V_].reshape(T, H, -1).transpose(1, 0, 2)


def mixed(v: Arrays, at: list[int]) -> np.ndarray:
    shares, values = heads(v)
    return shares @ values[at]


def averaged(v: Arrays) -> np.ndarray:
    shares, values = heads(v)
    return np.broadcast_to(values.mean(1, keepdims=True), (*shares.shape[:2], values.shape[-1]))


def with_neighbour(v: Arrays, w: Arrays) -> np.ndarray:
    y = linear(v, w, V_, X)
    y[..., 3::4] += 0.5 * y[..., 2::4]
    return y


WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], np.ndarray], str, str]] = {
    "mean of the row before": (
        NORM,
        lambda v, w: normed(v, w, lambda r: np.maximum(r - 1, 0), same),
        "wrong_variant",
        "mean of the row before",
    ),
    "deviation of the last row": (
        NORM,
        lambda v, w: normed(v, w, same, lambda r: r * 0 + r[-1]),
        "wrong_variant",
        "deviation of the last row",
    ),
    "all of the first row": (
        NORM,
        lambda v, w: normed(v, w, lambda r: r * 0, lambda r: r * 0),
        "wrong_variant",
        "mean and deviation of the first row",
    ),
    "one head with another's values": (MIX, lambda v, _: mixed(v, [0, 1, 1, 3]), "heads", "2 with 1"),
    "every key alike": (MIX, lambda v, _: averaged(v), "wrong_variant", "with the mean over the columns of"),
    "a column added to the next": (V_, with_neighbour, "extra_op", "columns -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_whose_it_was_is_named(case: str, fault: Callable[..., Any]) -> None:
    name, wrong, kind, words = WRONG[case]
    cause = fault(name, wrong).cause
    assert cause.kind == kind, cause.statement
    assert any(words in str(v) for v in cause.detail.values()), cause.detail
    assert cause.reproduces_to < 1e-6
