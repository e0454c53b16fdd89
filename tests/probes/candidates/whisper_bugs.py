"""Whispers with one bug each, made by changing transformers' model from outside: `torch:whisper_bugs.py:NAME`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def healthy(model: nn.Module) -> nn.Module:
    return model


def mask_off_by_one(model: Any) -> nn.Module:
    """A token of the prompt sees the one after it."""
    for layer in model.model.decoder.layers:
        attention = layer.self_attn
        plain = attention.forward

        def forward(*args: Any, attention_mask: Any = None, plain: Any = plain, **kwargs: Any) -> Any:
            if attention_mask is not None and attention_mask.dim() == 4 and attention_mask.shape[-2] > 1:
                later = torch.triu(torch.ones_like(attention_mask), diagonal=2).bool()
                lowest = torch.finfo(torch.float32).min
                attention_mask = torch.zeros_like(attention_mask).masked_fill(later, lowest)
            return plain(*args, attention_mask=attention_mask, **kwargs)

        attention.forward = forward
    return model


def norm_eps(model: Any) -> nn.Module:
    model.model.encoder.layers[1].final_layer_norm.eps = 1e-3
    return model


def late_slot(model: Any) -> nn.Module:
    """In a decode step the newest value slot of the first decoder layer still holds the row of the step before."""
    from transformers.cache_utils import DynamicLayer

    plain = DynamicLayer.update

    def update(self: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        first = not self.is_initialized
        keys, values = plain(self, keys, values, *args, **kwargs)
        if not first and self is caches[0]:
            values = torch.cat([values[:, :, :-1], values[:, :, -2:-1]], -2)
        if first:
            caches.append(self)
        return keys, values

    caches: list[Any] = []
    DynamicLayer.update = update
    return model
