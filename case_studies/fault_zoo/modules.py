"""Wrong PyTorch modules, for `--candidate torch:modules.py:NAME`: each takes the model and gives the broken one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def gelu_tanh(model: Any) -> Any:
    class Tanh(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(x, approximate="tanh")

    model.model.encoder.layers[1].activation_fn = Tanh()
    return model


def eps(model: Any) -> Any:
    model.model.encoder.layers[0].final_layer_norm.eps = 1e-3
    return model


def no_bias(model: Any) -> Any:
    model.model.decoder.layers[1].fc2.bias = None
    return model


def other_layer(model: Any) -> Any:
    layers = model.model.decoder.layers
    layers[1].self_attn.v_proj.weight = layers[0].self_attn.v_proj.weight
    return model


def transposed(model: Any) -> Any:
    out = model.model.encoder.layers[1].self_attn.out_proj
    out.weight = nn.Parameter(out.weight.detach().T.contiguous(), requires_grad=False)
    return model


def scale(model: Any) -> Any:
    attn = model.model.encoder.layers[0].self_attn
    attn.scaling = attn.embed_dim**-0.5
    return model


def norm_gain(model: Any) -> Any:
    norm = model.model.decoder.layers[0].encoder_attn_layer_norm
    norm.weight = nn.Parameter(torch.ones_like(norm.weight), requires_grad=False)
    return model


def dead_column(model: Any) -> Any:
    fc1 = model.model.encoder.layers[1].fc1
    weight, bias = fc1.weight.detach().clone(), fc1.bias.detach().clone()
    weight[5], bias[5] = 0, 0
    fc1.weight, fc1.bias = (nn.Parameter(p, requires_grad=False) for p in (weight, bias))
    return model


def rounded(model: Any) -> Any:
    fc1 = model.model.decoder.layers[0].fc1
    fc1.weight = nn.Parameter(fc1.weight.detach().bfloat16().float(), requires_grad=False)
    return model


def conv_flipped(model: Any) -> Any:
    conv = model.model.encoder.conv2
    conv.weight = nn.Parameter(conv.weight.detach().flip(-1).contiguous(), requires_grad=False)
    return model


def position(model: Any) -> Any:
    table = model.model.decoder.embed_positions
    table.weight = nn.Parameter(table.weight.detach().roll(-1, 0).contiguous(), requires_grad=False)
    return model


def heads(model: Any) -> Any:
    proj = model.model.encoder.layers[0].self_attn.v_proj
    H = model.config.encoder_attention_heads
    weight, bias = proj.weight.detach().clone(), proj.bias.detach().clone()
    parts, offsets = weight.view(H, -1, weight.shape[1]), bias.view(H, -1)
    parts[[0, 1]], offsets[[0, 1]] = parts[[1, 0]].clone(), offsets[[1, 0]].clone()
    proj.weight, proj.bias = (nn.Parameter(p, requires_grad=False) for p in (weight, bias))
    return model
