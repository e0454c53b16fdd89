"""Exports the tests' small models to ONNX: a Whisper as three files with a cache, a GPT-2 as one; made in the test."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache


class Encoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.encoder(input_features)[0]
        return out


class Decoder(nn.Module):
    """Logits and the self-attention's keys and values; the cross-attention's are made anew in every step."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder = model.model.decoder
        self.proj_out = model.proj_out

    def forward(
        self, ids: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        pairs = list(zip(past[::2], past[1::2], strict=True))
        cache = EncoderDecoderCache(DynamicCache(pairs) if pairs else DynamicCache(), DynamicCache())
        out = self.decoder(
            input_ids=ids, encoder_hidden_states=states, past_key_values=cache, position_ids=positions, use_cache=True
        )
        layers = out[1].self_attention_cache.layers
        return self.proj_out(out[0]), *(t for layer in layers for t in (layer.keys, layer.values))


class Language(nn.Module):
    """A causal language model with its cache as plain tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        pairs = list(zip(past[::2], past[1::2], strict=True))
        cache = DynamicCache(pairs) if pairs else DynamicCache()
        out = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return out[0], *(t for layer in out[1].layers for t in (layer.keys, layer.values))


def cache_names(layers: int, word: str) -> list[str]:
    return [f"{word}.{i}.{part}" for i in range(layers) for part in ("key", "value")]


def save(
    module: nn.Module, args: tuple[torch.Tensor, ...], path: Path, inputs: list[str], outputs: list[str], axes: Any
) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what the exporter says of itself
        torch.onnx.export(
            module.eval(), args, str(path), input_names=inputs, output_names=outputs, dynamic_axes=axes, dynamo=False
        )


def whisper(model: Any, folder: Path) -> Path:
    """encoder.onnx, decoder.onnx and decoder_with_past.onnx."""
    config = model.config
    D, H, layers = config.d_model, config.decoder_attention_heads, config.decoder_layers
    T = config.max_source_positions
    features, states = torch.randn(1, config.num_mel_bins, 2 * T), torch.randn(1, T, D)
    save(Encoder(model), (features,), folder / "encoder.onnx", ["input_features"], ["last_hidden_state"], {})
    present, past = cache_names(layers, "present"), cache_names(layers, "past_key_values")
    given = ["decoder_input_ids", "encoder_hidden_states", "position_ids"]
    ids, positions = torch.tensor([[3, 4]]), torch.tensor([[0, 1]])
    save(Decoder(model), (ids, states, positions), folder / "decoder.onnx", given, ["logits", *present], {})
    kept = [torch.randn(1, H, 2, D // H) for _ in past]
    axes = {name: {2: "past"} for name in past}
    step = (torch.tensor([[5]]), states, torch.tensor([[2]]), *kept)
    save(Decoder(model), step, folder / "decoder_with_past.onnx", [*given, *past], ["logits", *present], axes)
    return folder


def language(model: Any, folder: Path, batch: int, T: int) -> Path:
    """decoder.onnx and decoder_with_past.onnx for a batch of this size and prompts of this length."""
    config = model.config
    layers, H = config.num_hidden_layers, config.num_attention_heads
    K = config.hidden_size // H
    present, past = cache_names(layers, "present"), cache_names(layers, "past_key_values")
    given = ["input_ids", "attention_mask", "position_ids"]
    ids, mask = torch.ones(batch, T, dtype=torch.int64), torch.ones(batch, T, dtype=torch.int64)
    mask[-1, 0] = 0
    positions = torch.arange(T).expand(batch, T)
    save(Language(model), (ids, mask, positions), folder / "decoder.onnx", given, ["logits", *present], {})
    kept = [torch.randn(batch, H, T, K) for _ in past]
    mask = torch.cat([mask, torch.ones(batch, 1, dtype=torch.int64)], 1)
    axes = {name: {2: "past"} for name in past} | {"attention_mask": {1: "all"}}
    step = (ids[:, :1], mask, positions[:, :1], *kept)
    save(Language(model), step, folder / "decoder_with_past.onnx", [*given, *past], ["logits", *present], axes)
    return folder
