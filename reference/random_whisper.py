"""Whispers with random weights: a seed is all they need, so tests and bug reports carry no files.

Biases and the gains of the norms are random too, or an edit that drops one would change nothing; sizes are chosen
so that activations stay near 1 through every layer and the chosen tokens vary. NumPy's generator, so that a seed
means the same weights everywhere. Leaves out a tokenizer: a text is its ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Random:
    """A size, and the tokens of its prompt and answer."""

    config: Mapping[str, Any]
    prompt: tuple[int, ...]
    eos: int
    suppress: tuple[int, ...]
    begin_suppress: tuple[int, ...]


def _config(V: int, D: int, layers: int, heads: int) -> dict[str, Any]:
    F = 4 * D if D > 64 else 2 * D
    return {
        "vocab_size": V,
        "d_model": D,
        "num_mel_bins": 80,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": F,
        "decoder_ffn_dim": F,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    }


CONFIGS: Mapping[str, Random] = {
    # tiny.en's own sizes and tokens
    "tiny": Random(_config(51864, 384, 4, 6), (50257, 50362), 50256, tuple(range(50257, 50363)), (220, 50256)),
    "micro": Random(_config(1000, 64, 2, 4), (997, 998), 996, (997, 998, 999), (220, 996)),
}


def weights(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Every parameter by its Hugging Face name, float32."""
    generator = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, shape in _shapes(config):
        array = generator.standard_normal(shape, dtype=np.float32)
        if "norm" in name:
            array *= np.float32(0.2)
            if name.endswith("weight"):
                array += np.float32(1)
        elif name.endswith("bias"):
            array *= np.float32(0.2)
        elif "embed" in name:
            array *= np.float32(next(size for part, size in EMBEDDING.items() if part in name))
        else:
            fan_in = math.prod(shape[1:])
            array *= np.float32(GAIN.get(name.split(".")[-2], 1.0) / math.sqrt(fan_in))
        made[name] = array
    return made


GAIN = {"q_proj": 1.5, "k_proj": 1.5, "out_proj": 2.0}
"""Sharper scores than noise, and attention that weighs against the residual stream."""

EMBEDDING = {"encoder.embed_positions": 0.5, "decoder.embed_positions": 2.0, "embed_tokens": 0.3}
"""Position outweighs the token in the decoder: the projection is tied to the embedding, so a token would only repeat
itself.
"""


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    D, M = config["d_model"], config["num_mel_bins"]
    yield "model.encoder.conv1.weight", (D, M, 3)
    yield "model.encoder.conv1.bias", (D,)
    yield "model.encoder.conv2.weight", (D, D, 3)
    yield "model.encoder.conv2.bias", (D,)
    yield "model.encoder.embed_positions.weight", (config["max_source_positions"], D)
    yield "model.decoder.embed_tokens.weight", (config["vocab_size"], D)
    yield "model.decoder.embed_positions.weight", (config["max_target_positions"], D)
    for stack in ("encoder", "decoder"):
        F = config[f"{stack}_ffn_dim"]
        for i in range(config[f"{stack}_layers"]):
            layer = f"model.{stack}.layers.{i}"
            for attention in ("self_attn", "encoder_attn") if stack == "decoder" else ("self_attn",):
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield f"{layer}.{attention}.{part}.weight", (D, D)
                    if part != "k_proj":
                        yield f"{layer}.{attention}.{part}.bias", (D,)
                yield from _pair(f"{layer}.{attention}_layer_norm", (D,))
            yield from _pair(f"{layer}.fc1", (F, D))
            yield from _pair(f"{layer}.fc2", (D, F))
            yield from _pair(f"{layer}.final_layer_norm", (D,))
        yield from _pair(f"model.{stack}.layer_norm", (D,))


def _pair(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
