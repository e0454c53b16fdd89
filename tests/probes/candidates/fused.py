"""Two decoders in NumPy that lay everything out in another way than the models do, each with faults to choose from.

No batch; a Llama whose query, key and value are one product, and gate and up another; a GPT-2 that holds query, key and
value apart, head by head, where the model has one projection. Values lie under names of their own, some are extra.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import firstbad
from firstbad.probes.py import Given

Rename = Callable[[str], str]
f32 = np.float32


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def llama(given: Given, fault: str = "", rename: Rename = str) -> list[int]:
    w, c = given.weights, given.config
    H, G, K = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    L, F, inv = c["num_hidden_layers"], c["intermediate_size"], w["model.rotary_emb.inv_freq"]
    qkv_w, gu_w = [], []
    for i in range(L):
        p = f"model.layers.{i}."
        qkv_w.append(np.concatenate([w[f"{p}self_attn.{n}_proj.weight"] for n in "qkv"]).T.copy())
        gu_w.append(np.concatenate([w[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up")]).T.copy())
    keys, values = np.zeros((2, L, G, 40, K), f32)

    def rms(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        eps = 1e-3 if fault == "eps" else 1e-6
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + f32(eps)) * gain)

    def rope(x: np.ndarray, at: np.ndarray) -> np.ndarray:  # [T, H, K]
        angle = at[:, None].astype(f32) * inv
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        pairs = (x[..., 0::2], x[..., 1::2]) if fault == "rope" else (x[..., : K // 2], x[..., K // 2 :])
        turned = pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin
        return np.stack(turned, -1).reshape(x.shape) if fault == "rope" else np.concatenate(turned, -1)

    chosen: list[int] = []
    ids, start = np.array(given.prompt), 0
    for step in range(given.max_tokens or 2):
        firstbad.step(f"decode.{step - 1}" if step else "prefill")
        n = start + len(ids)
        at = np.arange(start, n) + (fault == "position" and step > 0)
        x = firstbad.tap(rename("emb"), w["model.embed_tokens.weight"][ids])
        for i in range(L):
            p = f"model.layers.{i}."

            def tap(name: str, a: Any, i: int = i) -> Any:
                return firstbad.tap(rename(f"b{i}.{name}"), a)

            h = tap("n1", rms(x, w[f"{p}input_layernorm.weight"]))
            qkv = tap("qkv", (x if fault == "wire" and i == 1 else h) @ qkv_w[i]).reshape(len(ids), -1, K)
            if fault == "split" and i == 0:  # as if key and value stood side by side in each group
                pairs = qkv[:, H:].reshape(len(ids), G, 2, K).transpose(0, 2, 1, 3)
                qkv = np.concatenate([qkv[:, :H], pairs.reshape(len(ids), 2 * G, K)], 1)
            q, k = tap("q", rope(qkv[:, :H], at)), tap("k", rope(qkv[:, H : H + G], at))
            keys[i, :, start:n], values[i, :, start:n] = k.transpose(1, 0, 2), qkv[:, H + G :].transpose(1, 0, 2)
            s = np.einsum("thk,hnk->htn", q, np.repeat(keys[i, :, :n], H // G, 0)) * f32(K**-0.5)
            if fault == "scale":
                s = s * f32(K**0.5)
            s = tap("s", np.where(np.arange(n) > np.arange(start, n)[:, None], f32(-np.inf), s))
            y = np.einsum("htn,hnk->thk", tap("p", softmax(s)), np.repeat(values[i, :, :n], H // G, 0))
            y = tap("y", y.reshape(len(ids), H * K))
            x = tap("x", x + tap("o", y @ w[f"{p}self_attn.o_proj.weight"].T))
            gu = tap("gu", tap("n2", rms(x, w[f"{p}post_attention_layernorm.weight"])) @ gu_w[i])
            gate, up = (gu[:, F:], gu[:, :F]) if fault == "swap" and i == 0 else (gu[:, :F], gu[:, F:])
            act = tap("act", gate / (1 + np.exp(-gate)) * up)
            tap("debug", np.abs(act))  # of no use to anybody
            x = tap("z", x + tap("d", act @ w[f"{p}mlp.down_proj.weight"].T))
        x = firstbad.tap(rename("n"), rms(x, w["model.norm.weight"]))
        chosen.append(int(firstbad.tap(rename("lg"), x @ w["lm_head.weight"].T)[-1].argmax()))
        ids, start = np.array(chosen[-1:]), n
    return chosen


LLAMA = {
    "n1": "input_layernorm.mul_1",
    "q": "self_attn.add",
    "k": "self_attn.add_1",
    "p": "self_attn.softmax",
    "y": "self_attn.matmul_1",
    "o": "self_attn.o_proj",
    "x": "add",
    "n2": "post_attention_layernorm.mul_1",
    "act": "mlp.mul",
    "d": "mlp.down_proj",
    "z": "add_1",
}
"""What the model calls the Llama's values: by hand."""


def gpt2(given: Given, fault: str = "", rename: Rename = str) -> list[int]:
    w, c = given.weights, given.config
    D, H, L = c["n_embd"], c["n_head"], c["n_layer"]
    K = D // H

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        d = x - x.mean(-1, keepdims=True)
        variance = (d * d).mean(-1, keepdims=True) * f32(D / (D - 1) if fault == "unbiased" else 1)
        return np.asarray(d / np.sqrt(variance + f32(1e-5)) * w[f"{name}.weight"] + w[f"{name}.bias"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        y = x @ w[f"{name}.weight"]
        return y if fault == "bias" and name.endswith("1.mlp.c_fc") else np.asarray(y + w[f"{name}.bias"])

    def gelu(x: np.ndarray) -> np.ndarray:
        if fault == "gelu":
            return np.asarray(x / (1 + np.exp(f32(-1.702) * x)))
        return np.asarray(f32(0.5) * x * (1 + np.tanh(f32(math.sqrt(2 / math.pi)) * (x + f32(0.044715) * x**3))))

    keys, values = np.zeros((2, L, H, 40, K), f32)
    chosen: list[int] = []
    ids, start = np.array(given.prompt), 0
    for step in range(given.max_tokens or 2):
        firstbad.step(f"decode.{step - 1}" if step else "prefill")
        T, n = len(ids), start + len(ids)
        at = np.arange(start, n) + (fault == "position" and step > 0)
        x = firstbad.tap(rename("emb"), w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][at])
        for i in range(L):
            p = f"transformer.h.{i}."

            def tap(name: str, a: Any, i: int = i) -> Any:
                return firstbad.tap(rename(f"b{i}.{name}"), a)

            h = tap("n1", norm(x, f"{p}ln_1"))
            qkv = linear(h, f"{p}attn.c_attn")
            if fault in ("turns", "unturned"):  # kept so: the three side by side in each head; that is no fault
                qkv = tap("qkv", qkv.reshape(T, 3, H, K).transpose(0, 2, 1, 3).reshape(T, -1))
            if fault == "turns" or (fault == "unturned" and i) or (fault == "split" and i == 0):
                q, k, v = qkv.reshape(T, H, 3, K).transpose(2, 1, 0, 3)
            else:
                q, k, v = qkv.reshape(T, 3, H, K).transpose(1, 2, 0, 3)
            if fault == "query":
                q = q[:, ::-1]  # its rows turned round
            q, k, v = tap("q", q), tap("k", k), tap("v", v)
            keys[i, :, start:n], values[i, :, start:n] = k, v
            s = q @ keys[i, :, :n].transpose(0, 2, 1) / f32(K if fault == "scale" else math.sqrt(K))
            s = np.where(np.arange(n) > np.arange(start, n)[:, None], f32(-1e9), s)
            y = tap("y", (tap("p", softmax(s)) @ values[i, :, :n]).transpose(1, 0, 2).copy()).reshape(T, D)
            x = tap("x", x + tap("o", linear(y, f"{p}attn.c_proj")))
            f = tap("g", gelu(tap("f", linear(tap("n2", norm(x, f"{p}ln_2")), f"{p}mlp.c_fc"))))
            x = tap("z", x + tap("d", linear(f, f"{p}mlp.c_proj")))
        x = firstbad.tap(rename("n"), norm(x, "transformer.ln_f"))
        chosen.append(int(firstbad.tap(rename("lg"), x @ w["transformer.wte.weight"].T)[-1].argmax()))
        ids, start = np.array(chosen[-1:]), n
    return chosen


GPT2 = {
    "n1": "ln_1",
    "p": "attn.softmax",
    "y": "attn.matmul_1",
    "o": "attn.c_proj.addmm",
    "x": "add",
    "n2": "ln_2",
    "f": "mlp.c_fc.addmm",
    "d": "mlp.c_proj.addmm",
    "z": "add_1",
}
"""What the model calls the GPT-2's values: by hand."""
