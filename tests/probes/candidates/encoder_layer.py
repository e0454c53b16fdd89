"""The first encoder layer of Whisper in NumPy and in JAX, with names of its own: `py:encoder_layer.py:numpy_layer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import firstbad
from firstbad.probes.py import Given


def erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float32])(x)


def layer(given: Given, np: Any, erf: Callable[[Any], Any], *, eps: float = 1e-5, scale: float = 1.0) -> None:
    """Stem and one layer; `np` is NumPy or jax.numpy. Nothing here knows how the reference calls its values."""
    w = given.weights
    H = int(given.config["encoder_attention_heads"])

    def norm(x: Any, name: str, eps: float = eps) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(eps))
        return centred * rstd * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x: Any) -> Any:
        return x * np.float32(0.5) * (1 + erf(x / np.float32(math.sqrt(2))))

    def linear(x: Any, name: str) -> Any:
        y = x @ np.asarray(w[f"{name}.weight"]).T
        return y + w[f"{name}.bias"] if f"{name}.bias" in w else y

    def conv(x: Any, name: str, stride: int) -> Any:  # x [T, C]
        padded = np.pad(x, ((1, 1), (0, 0)))
        T = (x.shape[0] - 1) // stride + 1
        columns = np.stack([padded[i : i + stride * (T - 1) + 1 : stride] for i in range(3)], -1)  # [T, C, 3]
        kernel = np.asarray(w[f"{name}.weight"])
        return columns.reshape(T, -1) @ kernel.reshape(kernel.shape[0], -1).T + w[f"{name}.bias"]

    x = np.asarray(given.inputs["input_features"])[0].T
    x = firstbad.tap("stem1", gelu(firstbad.tap("c1", conv(x, "model.encoder.conv1", 1))))
    x = firstbad.tap("stem2", gelu(firstbad.tap("c2", conv(x, "model.encoder.conv2", 2))))
    x = firstbad.tap("x0", x + np.asarray(w["model.encoder.embed_positions.weight"])[: x.shape[0]])
    name = "model.encoder.layers.0"
    T, D = x.shape
    h = firstbad.tap("h1", norm(x, f"{name}.self_attn_layer_norm", 1e-5))
    q = firstbad.tap("q", linear(h, f"{name}.self_attn.q_proj"))
    k = firstbad.tap("k", linear(h, f"{name}.self_attn.k_proj"))
    v = firstbad.tap("v", linear(h, f"{name}.self_attn.v_proj"))
    q, k, v = (a.reshape(T, H, D // H).transpose(1, 0, 2) for a in (q * np.float32((D // H) ** -0.5), k, v))
    s = firstbad.tap("s", q @ k.transpose(0, 2, 1) * np.float32(scale))
    e = np.exp(s - s.max(-1, keepdims=True))
    p = firstbad.tap("p", e / e.sum(-1, keepdims=True))
    y = firstbad.tap("y", (p @ v).transpose(1, 0, 2).reshape(T, D))
    x = firstbad.tap("x1", x + firstbad.tap("o", linear(y, f"{name}.self_attn.out_proj")))
    h = firstbad.tap("h2", norm(x, f"{name}.final_layer_norm"))
    f = firstbad.tap("g", gelu(firstbad.tap("f1", linear(h, f"{name}.fc1"))))
    firstbad.tap("x2", x + firstbad.tap("f2", linear(f, f"{name}.fc2")))


def numpy_layer(given: Given) -> None:
    layer(given, np, erf)


def numpy_eps(given: Given) -> None:
    layer(given, np, erf, eps=1e-2)


def jax_layer(given: Given, **wrong: float) -> None:
    """Inside jit: the taps are called back from the compiled program."""
    import jax
    from jax.scipy.special import erf as jax_erf

    def run(features: Any) -> Any:
        moved = Given({"input_features": features}, given.weights, given.config, given.prompt, given.max_tokens)
        layer(moved, jax.numpy, jax_erf, **wrong)
        return features.sum()

    jax.jit(run)(given.inputs["input_features"]).block_until_ready()
    jax.effects_barrier()


def jax_scale(given: Given) -> None:
    jax_layer(given, scale=1.1)
