"""Language models (mistral) whose runs do not agree with each other: one bug each."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import torch


def healthy(model: Any) -> Any:
    return model


def position_reset(model: Any) -> Any:
    """One-token steps count their position from 0 again."""
    rotary = model.model.rotary_emb
    plain = rotary.forward

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return plain(x, position_ids * 0 if position_ids.shape[-1] == 1 else position_ids)

    rotary.forward = forward
    return model


def kv_late(model: Any) -> Any:
    """In a step the newest row of the keys still shows the one before."""
    from transformers import cache_utils

    for layer in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):
        plain = layer.update

        def update(self: Any, k: torch.Tensor, v: torch.Tensor, *a: Any, _plain: Any = plain, **kw: Any) -> Any:
            keys, values = _plain(self, k, v, *a, **kw)
            if k.shape[-2] == 1:
                keys = torch.cat([keys[..., :-1, :], keys[..., -2:-1, :]], -2)
            return keys, values

        layer.update = update
    return model


def state_kept(model: Any) -> Any:
    """The second layer's norm adds what it saw last, whoever's request that was."""
    seen: list[torch.Tensor] = []

    def hook(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        added = out + seen[-1] * 1e-3 if seen and out.shape[1] > 1 else out
        seen.append(out.mean((0, 1)))
        return added

    model.model.layers[1].input_layernorm.register_forward_hook(hook)
    return model


def window_narrow(model: Any) -> Any:
    model.config.sliding_window -= 1
    return model


def window_wide(model: Any) -> Any:
    model.config.sliding_window += 1
    return model


def padding_seen(model: Any) -> Any:
    """The mask of the padding is not applied; positions are."""
    plain = model.model.forward

    def forward(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return plain(*args, attention_mask=None if attention_mask is None else attention_mask * 0 + 1, **kwargs)

    model.model.forward = forward
    return model


def race(model: Any) -> Any:
    """A thread writes the second half of a projection; nobody waits for it."""
    projection = model.model.layers[0].mlp.down_proj

    def hook(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        half = out.shape[-1] // 2
        early = torch.cat([out[..., :half], torch.zeros_like(out[..., half:])], -1)
        done: list[bool] = []

        def late(seconds: float) -> None:
            time.sleep(seconds)
            done.append(True)

        threading.Thread(target=late, args=(0.03 * (os.urandom(1)[0] % 2),)).start()
        time.sleep(0.01)
        return out if done else early

    projection.register_forward_hook(hook)
    return model


def future_seen(model: Any) -> Any:
    """The norm of the second layer takes the mean over all tokens, later ones among them."""
    norm = model.model.layers[1].input_layernorm

    def hook(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + 1e-3 * out.mean(1, keepdim=True)

    norm.register_forward_hook(hook)
    return model


def _off(model: Any, by: float) -> Any:
    """One-token steps make a projection a little too large."""

    def hook(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * (1 + by) if out.shape[1] == 1 else out

    model.model.layers[1].mlp.down_proj.register_forward_hook(hook)
    return model


def off_by_noise(model: Any) -> Any:
    return _off(model, 2e-7)


def off_by_more(model: Any) -> Any:
    return _off(model, 3e-5)
