"""Causal language models with one bug each: `torch:language_bugs.py:NAME`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def padding_ignored(model: Any) -> nn.Module:
    """The padding is attended to as if it were text; positions stay right."""
    plain = model.forward

    def forward(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return plain(*args, attention_mask=torch.ones_like(attention_mask), **kwargs)

    model.forward = forward
    return model
