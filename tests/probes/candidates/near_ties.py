"""Language models that choose another token: at a near-tie, and because of a bug."""

from __future__ import annotations

from typing import Any

import torch


def swapped(model: Any) -> Any:
    """The two highest scores in each other's place where they are closer than rounding."""

    def hook(_module: Any, _args: Any, logits: torch.Tensor) -> torch.Tensor:
        top = logits.topk(2, dim=-1)
        close = (top.values[..., :1] - top.values[..., 1:]) < 3e-6 * top.values[..., :1].abs()
        turned = torch.where(close, top.values.flip(-1), top.values)
        return logits.scatter(-1, top.indices, turned)

    model.lm_head.register_forward_hook(hook)
    return model


def broken(model: Any) -> Any:
    """A gate of another activation."""
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()
    return swapped(model)
