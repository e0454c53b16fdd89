"""Names and sizes of layer 1 of the model in planted.py, and the parts of it that are worked out by hand: by NumPy in
float64, from the values and weights that a run recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
T, D, H, K = 24, 32, 4, 8  # positions, width, heads, width of a head
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
