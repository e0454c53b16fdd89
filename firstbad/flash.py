"""Fused attention in float16 as ggml computes it on a processor, step by step: every rounding where the engine rounds.

One pass over the keys with a running maximum; what is summed so far is a float16 vector, rounded after each key. Scores
are sums of products in float32 over 4 x 8 lanes, as the kernels for 256-bit vectors take them. With few queries (under
64) engines run this; with more they sum in float32, and nothing needs to be simulated.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LANES, SUMS = 8, 4


def attention(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], scale: float, mask: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """q [H,t,K], k [H,n,K], v [H,n,V], mask [t,n] or None → [H,t,V]."""
    q, k, v = _half(q), _half(k), _half(v)
    H, t, _ = q.shape
    total, largest = np.zeros((H, t), np.float32), np.full((H, t), -np.inf, np.float32)
    y = np.zeros((H, t, v.shape[-1]), np.float32)
    for at in range(k.shape[1]):
        score = _dot(q, k[:, None, at]) * np.float32(scale)
        if mask is not None:
            score = score + np.asarray(mask[None, :, at], np.float32)
        seen = score > -np.inf
        new = score > largest
        reach = np.where(new, score, largest)
        with np.errstate(invalid="ignore"):
            shrink = np.where(new, _exp(largest - reach), np.float32(1))
            share = np.where(new, np.float32(1), _exp(score - reach))
        shrink, share = np.where(seen, shrink, 1).astype(np.float32), np.where(seen, share, 0).astype(np.float32)
        y = np.where(new[..., None], _half(y * shrink[..., None]), y)
        y = _half(_fused(share[..., None], v[:, None, at], y))
        total = (total * shrink + share).astype(np.float32)
        largest = reach
    return np.asarray(y * (np.float32(1) / total)[..., None], np.float32)


def weighted_sum(shares: NDArray[Any], v: NDArray[Any]) -> NDArray[np.float32]:
    """The same accumulation from shares that are known, [..., t, n] and [..., n, V]: its noise, not its bits."""
    shares, v = np.asarray(shares, np.float32), np.asarray(v, np.float32)
    largest = np.maximum.accumulate(shares, axis=-1)
    y = np.zeros((*shares.shape[:-1], v.shape[-1]), np.float32)
    before = np.zeros(shares.shape[:-1], np.float32)
    for at in range(shares.shape[-1]):
        reach = largest[..., at]
        with np.errstate(divide="ignore", invalid="ignore"):
            shrink = np.where(reach > before, before / reach, np.float32(1)).astype(np.float32)
            share = np.where(reach > 0, shares[..., at] / reach, np.float32(0)).astype(np.float32)
        y = _half(y * shrink[..., None])
        y = _half(_fused(share[..., None], v[..., None, at, :], y))
        before = reach
    return np.asarray(y * before[..., None], np.float32)


def _half(x: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def _fused(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[np.float32]:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def _dot(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    size = a.shape[-1]
    block = LANES * SUMS
    if size % block:
        return np.asarray((a.astype(np.float64) * b).sum(-1), np.float32)
    products = a.astype(np.float64) * b.astype(np.float64)
    rows = products.reshape(*products.shape[:-1], size // block, SUMS, LANES)
    sums = np.zeros((*products.shape[:-1], SUMS, LANES), np.float32)
    for n in range(size // block):
        sums = (sums.astype(np.float64) + rows[..., n, :, :]).astype(np.float32)
    lanes = (sums[..., 0, :] + sums[..., 2, :]) + (sums[..., 1, :] + sums[..., 3, :])
    four = lanes[..., :4] + lanes[..., 4:]
    return np.asarray((four[..., 0] + four[..., 1]) + (four[..., 2] + four[..., 3]), np.float32)


@cache
def _expf() -> Callable[[float], float]:
    """The C library's, whose last bit NumPy's need not have."""
    try:
        function = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6").expf
    except (OSError, AttributeError):
        return math.exp
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    found: Callable[[float], float] = function
    return found


def _exp(x: NDArray[np.float32]) -> NDArray[np.float32]:
    exp = _expf()
    return np.array([exp(float(one)) for one in x.ravel()], np.float32).reshape(x.shape)
