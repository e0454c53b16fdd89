"""One bug for each of ten families, planted into a copy of the reference: torch:faults.py:NAME.

Each function gets the model and returns it changed. They are bugs that engines of these families have had.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn


def llama(model: Any) -> Any:
    """Grouped heads in turn (0 1 0 1) and not in groups (0 0 1 1)."""
    from transformers.models.llama import modeling_llama

    modeling_llama.repeat_kv = lambda states, n: states.repeat(1, n, 1, 1)
    return model


def qwen2_moe(model: Any) -> Any:
    """The shared expert comes in without its gate."""
    block = model.model.layers[1].mlp

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        rows = x.view(-1, D)
        shared = self.shared_expert(rows)
        _, weights, places = self.gate(rows)
        return (self.experts(rows, places, weights) + shared).reshape(B, T, D)

    block.forward = types.MethodType(forward, block)
    return model


def gemma2(model: Any) -> Any:
    """The norm's gain taken as w, where this family means 1 + w."""
    norm = model.model.layers[1].pre_feedforward_layernorm

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return (self._norm(x.float()) * self.weight.float()).type_as(x)

    norm.forward = types.MethodType(forward, norm)
    return model


def gpt2(model: Any) -> Any:
    """The exact GELU in the place of its tanh form."""
    model.transformer.h[0].mlp.act = nn.GELU()
    return model


def mistral(model: Any) -> Any:
    """A window of one token less."""
    model.config.sliding_window -= 1
    return model


def mixtral(model: Any) -> Any:
    """The weights of the chosen experts do not add up to 1 again."""
    gate = model.model.layers[0].mlp.gate

    def forward(self: Any, x: torch.Tensor) -> Any:
        logits = nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
        top = torch.topk(nn.functional.softmax(logits.float(), dim=-1), self.top_k, dim=-1)
        return logits, top.values, top.indices

    gate.forward = types.MethodType(forward, gate)
    return model


def mamba(model: Any) -> Any:
    """An epsilon of the norm that is too large."""
    model.backbone.layers[1].norm.variance_epsilon = 1e-2
    return model


def bert(model: Any) -> Any:
    """An epsilon of the layer norm that is too large."""
    model.encoder.layer[0].attention.output.LayerNorm.eps = 1e-3
    return model


def vit(model: Any) -> Any:
    """Position embeddings one patch late."""
    embeddings = model.embeddings
    table = embeddings.position_embeddings
    embeddings.position_embeddings = nn.Parameter(table.roll(1, 1), requires_grad=False)
    return model


def clip(model: Any) -> Any:
    """GELU in the place of its sigmoid form."""
    model.vision_model.encoder.layers[1].mlp.activation_fn = nn.GELU()
    return model
