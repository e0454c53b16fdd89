"""Ten engines that nobody has, each laid out in its own way, each with one fault to choose: see ENGINES.

A Llama whose parts are overridden, and a ViT. Values have names of their own. No edges are told, as by a mere dump.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import firstbad
from firstbad.probes.py import Given

f32 = np.float32


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


class Llama:
    """The plain one: prompt and one token, values as [B, T, D] or [B, H, T, K]. Its fault: another residual."""

    def __init__(self, given: Given, fault: bool) -> None:
        self.w, self.c, self.fault = dict(given.weights), given.config, fault
        self.H, self.G, self.K = self.c["num_attention_heads"], self.c["num_key_value_heads"], self.c["head_dim"]
        self.L, self.F = self.c["num_hidden_layers"], self.c["intermediate_size"]
        self.ids = np.asarray(given.inputs["input_ids"])
        self.tokens = 1 if len(self.ids) > 1 else 2
        self.caches: list[list[np.ndarray]] = [[] for _ in range(self.L)]

    def laid(self, a: np.ndarray) -> np.ndarray:
        """How the engine keeps a value."""
        return a

    def tap(self, name: str, a: np.ndarray) -> np.ndarray:
        firstbad.tap(name, np.ascontiguousarray(self.laid(a)))
        return a

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ self.w[f"{name}.weight"].T)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + f32(1e-6)) * self.w[f"{name}.weight"])

    def heads(self, x: np.ndarray) -> np.ndarray:  # [B, T, H*K] -> [B, H, T, K]
        return np.asarray(x.reshape(*x.shape[:2], -1, self.K).transpose(0, 2, 1, 3))

    def split(self, i: int, h: np.ndarray) -> tuple[np.ndarray, ...]:
        """Query, key and value of a layer by heads."""
        p = f"model.layers.{i}.self_attn."
        return tuple(self.heads(self.tap(f"b{i}.{n}", self.linear(h, f"{p}{n}_proj"))) for n in "qkv")

    def rope(self, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        angle = at[:, None].astype(f32) * self.w["model.rotary_emb.inv_freq"]
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[..., : self.K // 2], x[..., self.K // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def cached(self, i: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        was = self.caches[i] or [k[:, :, :0], v[:, :, :0]]
        self.caches[i] = [np.concatenate(two, 2) for two in zip(was, (k, v), strict=True)]
        return self.caches[i][0], self.caches[i][1]

    def scores(self, q: np.ndarray, k: np.ndarray, at: np.ndarray) -> np.ndarray:
        s = q @ k.transpose(0, 1, 3, 2) * f32(self.K**-0.5)
        return np.where(np.arange(k.shape[2]) > at[:, None], f32(-np.inf), s)

    def mixed(self, p: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.asarray(p @ v)

    def attention(self, i: int, h: np.ndarray, at: np.ndarray) -> np.ndarray:
        q, k, v = self.split(i, h)
        q, k = self.tap(f"b{i}.qr", self.rope(q, at)), self.tap(f"b{i}.kr", self.rope(k, at))
        k, v = (np.repeat(a, self.H // self.G, 1) for a in self.cached(i, k, v))
        p = self.tap(f"b{i}.p", softmax(self.tap(f"b{i}.s", self.scores(q, k, at))))
        y = self.tap(f"b{i}.y", self.mixed(p, v)).transpose(0, 2, 1, 3)
        return self.tap(f"b{i}.o", self.linear(y.reshape(*y.shape[:2], -1), f"model.layers.{i}.self_attn.o_proj"))

    def mlp(self, i: int, h: np.ndarray) -> np.ndarray:
        p = f"model.layers.{i}.mlp."
        gate, up = (self.tap(f"b{i}.{n}", self.linear(h, f"{p}{n}_proj")) for n in ("gate", "up"))
        act = self.tap(f"b{i}.act", gate / (1 + np.exp(-gate)) * up)
        return self.tap(f"b{i}.down", self.linear(act, f"{p}down_proj"))

    def layer(self, i: int, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        p = f"model.layers.{i}."
        h = self.tap(f"b{i}.n1", self.norm(x, f"{p}input_layernorm"))
        y = self.tap(f"b{i}.x", x + self.attention(i, h, at))
        h = self.tap(f"b{i}.n2", self.norm(y, f"{p}post_attention_layernorm"))
        return self.tap(f"b{i}.z", (x if self.residual(i) else y) + self.mlp(i, h))

    def residual(self, i: int) -> bool:
        """Whether the layer's input is added in place of what the attention made of it."""
        return self.fault and i == 1 and type(self) in (Llama, TimeMajor)

    def last(self, x: np.ndarray) -> np.ndarray:
        return self.tap("logits", self.linear(self.tap("n", self.norm(x, "model.norm")), "lm_head"))

    def run(self) -> list[int] | None:
        ids, start, chosen = self.ids, 0, []
        for step in range(self.tokens):
            firstbad.step(f"decode.{step - 1}" if step else "prefill")
            at = np.arange(start, start + ids.shape[1])
            x = self.tap("emb", self.w["model.embed_tokens.weight"][ids])
            for i in range(self.L):
                x = self.layer(i, x, at)
            chosen.append(self.last(x)[:, -1].argmax(-1))
            ids, start = chosen[-1][:, None], start + ids.shape[1]
        return [int(c[0]) for c in chosen] if len(self.ids) == 1 else None


class TimeMajor(Llama):
    """[T, B, D], as in recurrent networks."""

    def laid(self, a: np.ndarray) -> np.ndarray:
        return a.transpose(1, 0, 2) if a.ndim == 3 else a.transpose(2, 0, 1, 3) if a.shape[-1] == self.K else a


class Folded(Llama):
    """The batch is part of the sequence: [B * T, D]. Its fault: all sequences mix the values of the first."""

    def laid(self, a: np.ndarray) -> np.ndarray:
        if a.ndim == 4 and a.shape[-1] == self.K:
            a = a.transpose(0, 2, 1, 3).reshape(a.shape[0], a.shape[2], -1)
        return a.reshape(-1, a.shape[-1])

    def mixed(self, p: np.ndarray, v: np.ndarray) -> np.ndarray:
        return super().mixed(p, v[:1] if self.fault else v)


class FeatureMajor(Llama):
    """Weights are kept transposed, so values are [D, T]. Its fault: the gate is what is not gated."""

    def laid(self, a: np.ndarray) -> np.ndarray:
        if a.ndim == 4 and a.shape[-1] == self.K:
            a = a.transpose(0, 2, 1, 3).reshape(a.shape[0], a.shape[2], -1)
        return a[0].T if a.ndim == 3 else a[0]

    def mlp(self, i: int, h: np.ndarray) -> np.ndarray:
        p = f"model.layers.{i}.mlp."
        gate, up = (self.tap(f"b{i}.{n}", self.linear(h, f"{p}{n}_proj")) for n in ("gate", "up"))
        if self.fault and i == 1:
            gate, up = up, gate
        act = self.tap(f"b{i}.act", gate / (1 + np.exp(-gate)) * up)
        return self.tap(f"b{i}.down", self.linear(act, f"{p}down_proj"))


class Padded(Llama):
    """Heads of 12 in rows of 16. Its fault: the scale is that of 16."""

    def laid(self, a: np.ndarray) -> np.ndarray:
        return np.pad(a, [(0, 0)] * 3 + [(0, 4)])[0] if a.ndim == 4 and a.shape[-1] == self.K else a[0]

    def scores(self, q: np.ndarray, k: np.ndarray, at: np.ndarray) -> np.ndarray:
        return super().scores(q * f32((self.K / (self.K + 4)) ** 0.5 if self.fault else 1), k, at)


class Interleaved(Llama):
    """Rotary pairs are neighbours: the rows of query and key are kept so. Its fault: those of the value as well."""

    def __init__(self, given: Given, fault: bool) -> None:
        super().__init__(given, fault)
        for i in range(self.L):
            for n in "qkv" if fault and i == 0 else "qk":
                name = f"model.layers.{i}.self_attn.{n}_proj.weight"
                halves = self.w[name].reshape(-1, 2, self.K // 2, self.w[name].shape[1])
                self.w[name] = halves.transpose(0, 2, 1, 3).reshape(self.w[name].shape)

    def rope(self, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        angle = at[:, None].astype(f32) * self.w["model.rotary_emb.inv_freq"]
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


class GammaFolded(Llama):
    """The gains of the norms are in the weights behind them. Its fault: one of those was forgotten."""

    def __init__(self, given: Given, fault: bool) -> None:
        super().__init__(given, fault)
        for i in range(self.L):
            p = f"model.layers.{i}."
            for norm, names in (
                ("input_layernorm", ("self_attn.q", "self_attn.k", "self_attn.v")),
                ("post_attention_layernorm", ("mlp.gate", "mlp.up")),
            ):
                for name in names:
                    if not (fault and (i, name) == (1, "mlp.up")):
                        weight = f"{p}{name}_proj.weight"
                        self.w[weight] = self.w[weight] * self.w[f"{p}{norm}.weight"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        y = np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + f32(1e-6)))
        return y * self.w["model.norm.weight"] if name == "model.norm" else y


class Half(Llama):
    """Values are kept in float16, sums are of float32. Its fault: the eps of one norm."""

    def tap(self, name: str, a: np.ndarray) -> np.ndarray:
        a = a.astype(np.float16)
        firstbad.tap(name, a)
        return a.astype(f32)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        eps = 1e-1 if self.fault and name == "model.layers.1.input_layernorm" else 1e-6
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + f32(eps)) * self.w[f"{name}.weight"])


class LastOnly(Llama):
    """Of the last layer only the last position, as nobody reads the others. Its fault: a query for the first."""

    def layer(self, i: int, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        if i < self.L - 1:
            return super().layer(i, x, at)
        p = f"model.layers.{i}."
        h = self.tap(f"b{i}.n1", self.norm(x, f"{p}input_layernorm"))
        q, k, v = self.split(i, h)
        end = slice(0, 1) if self.fault and len(at) > 1 else slice(-1, None)
        q, k = self.tap(f"b{i}.qr", self.rope(q[:, :, end], at[-1:])), self.tap(f"b{i}.kr", self.rope(k, at))
        k, v = (np.repeat(a, self.H // self.G, 1) for a in self.cached(i, k, v))
        s = self.tap(f"b{i}.p", softmax(self.tap(f"b{i}.s", self.scores(q, k, at[-1:]))))
        y = self.tap(f"b{i}.y", s @ v).transpose(0, 2, 1, 3)
        o = self.tap(f"b{i}.o", self.linear(y.reshape(1, 1, -1), f"{p}self_attn.o_proj"))
        x = self.tap(f"b{i}.x", x[:, -1:] + o)
        h = self.tap(f"b{i}.n2", self.norm(x, f"{p}post_attention_layernorm"))
        return self.tap(f"b{i}.z", x + self.mlp(i, h))


class Ring(Llama):
    """Keys and values in a ring of 12 places that starts anywhere. Its fault: a decoded key goes one place too far."""

    def cached(self, i: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.caches[i]:
            self.caches[i] = [np.zeros((1, self.G, 12, self.K), f32) for _ in "kv"] + [np.array(7)]
        start = int(self.caches[i][2])
        at = (start + np.arange(k.shape[2])) % 12
        late = self.fault and i == 1 and len(at) == 1
        self.caches[i][0][:, :, (at + late) % 12], self.caches[i][1][:, :, at] = k, v
        self.caches[i][2] = np.array(start + len(at))
        keys = (self.tap(f"b{i}.{n}", a) for n, a in zip(("keys", "values"), self.caches[i], strict=False))
        seen = (7 + np.arange(start + len(at) - 7)) % 12
        return tuple(a[:, :, seen] for a in keys)  # type: ignore[return-value]  # two


def vit(given: Given, fault: bool) -> None:
    """Channels last: pictures [height, width, channel], no batch. Its fault: patches are taken column by column."""
    w, c = given.weights, given.config
    P, H, D = c["patch_size"], c["num_attention_heads"], c["hidden_size"]
    x = np.asarray(given.inputs["pixel_values"])[0].transpose(1, 2, 0)  # [Y, X, C]
    n = x.shape[0] // P
    patches = x.reshape(n, P, n, P, -1).transpose(0, 2, 1, 3, 4)  # [n, n, P, P, C]
    kernel = w["embeddings.patch_embeddings.projection.weight"].transpose(2, 3, 1, 0).reshape(-1, D)
    bias = w["embeddings.patch_embeddings.projection.bias"]
    x = firstbad.tap("patches", patches.reshape(n, n, -1) @ kernel + bias)
    x = (x.transpose(1, 0, 2) if fault else x).reshape(-1, D)
    x = firstbad.tap("sequence", np.concatenate([w["embeddings.cls_token"][0], x]))
    x = firstbad.tap("emb", x + w["embeddings.position_embeddings"][0])
    erf = np.vectorize(math.erf, otypes=[f32])

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        d = x - x.mean(-1, keepdims=True)
        d = d / np.sqrt((d * d).mean(-1, keepdims=True) + f32(c["layer_norm_eps"]))
        return np.asarray(d * w[f"{name}.weight"] + w[f"{name}.bias"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."

        def tap(name: str, a: Any, i: int = i) -> Any:
            return firstbad.tap(f"b{i}.{name}", a)

        h = tap("n1", norm(x, f"{p}layernorm_before"))
        q, k, v = (tap(a, linear(h, f"{p}attention.{a}_proj")).reshape(-1, H, D // H) for a in "qkv")
        s = tap("p", softmax(tap("s", np.einsum("thk,nhk->thn", q, k) * f32((D // H) ** -0.5))))
        y = tap("y", np.einsum("thn,nhk->thk", s, v)).reshape(-1, D)
        x = tap("x", x + tap("o", linear(y, f"{p}attention.o_proj")))
        f = tap("f", linear(tap("n2", norm(x, f"{p}layernorm_after")), f"{p}mlp.fc1"))
        f = tap("g", f * f32(0.5) * (1 + erf(f / f32(math.sqrt(2)))))
        x = tap("z", x + tap("d", linear(f, f"{p}mlp.fc2")))
    firstbad.tap("n", norm(x, "layernorm"))


ATTENTION = "model.layers.{}.self_attn."
ENGINES: dict[str, tuple[str, Any, int, tuple[str, ...]]] = {
    "time major": ("batch", TimeMajor, 38, ("model.layers.1.add_1",)),
    "batch folded": ("batch", Folded, 38, tuple(ATTENTION.format(i) + "matmul_1" for i in (0, 1))),
    "feature major": ("llama", FeatureMajor, 75, ("model.layers.1.mlp.mul",)),
    "padded heads": ("llama", Padded, 75, tuple(ATTENTION.format(i) + n for n in ("add_2", "mul_4") for i in (0, 1))),
    "interleaved rope": ("llama", Interleaved, 75, ("model.layers.0.self_attn.v_proj",)),
    "gamma folded": ("llama", GammaFolded, 75, ("model.layers.1.mlp.up_proj",)),
    "float16": ("llama", Half, 75, ("model.layers.1.input_layernorm.mul_1",)),
    "last position": ("llama", LastOnly, 75, ("model.layers.1.self_attn.add",)),
    "ring": ("llama", Ring, 75, ("model.layers.1.self_attn.mul_4",)),
    "channels last": ("vit", vit, 33, ("embeddings.cat",)),
}
"""Name: the model, what runs it, how many values are aligned, and where its fault is; decoded steps mask nothing."""


def run(name: str, given: Given, fault: bool) -> list[int] | None:
    made = ENGINES[name][1](given, fault)
    return made.run() if isinstance(made, Llama) else None
