"""Norms over groups of channels done over other numbers: each by PyTorch's own function for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from tests.firstbad.shown import fault

C, T, G = 8, 9, 4


def per_position(x: Tensor, m: nn.GroupNorm) -> Tensor:
    return F.layer_norm(x.transpose(1, 2), (C,), m.weight, m.bias, m.eps).transpose(1, 2)


def interleaved(x: Tensor, m: nn.GroupNorm) -> Tensor:
    order = torch.arange(C).reshape(C // G, G).T.reshape(-1)  # group g: channels g, g + G
    made = torch.empty_like(x)
    made[:, order] = F.group_norm(x[:, order], G, m.weight[order], m.bias[order], m.eps)
    return made


GROUPED: dict[str, Callable[[Tensor, nn.GroupNorm], Tensor]] = {
    "layer norm (each position by itself)": per_position,
    "group norm of 1 group": lambda x, m: (
        F.layer_norm(x, x.shape[1:], None, None, m.eps) * m.weight[:, None] + m.bias[:, None]
    ),
    "group norm of 2 groups": lambda x, m: F.group_norm(x, 2, m.weight, m.bias, m.eps),
    "group norm of 8 groups": lambda x, m: F.instance_norm(x, None, None, m.weight, m.bias, eps=m.eps),
    "group norm of interleaved channels": interleaved,
}


@pytest.mark.parametrize("variant", GROUPED)
def test_other_groups_are_named(variant: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module, x = nn.GroupNorm(G, C).requires_grad_(False), torch.randn(1, C, T) * 2 + 1
    module.weight.add_(0.3 * torch.randn(C))
    module.bias.add_(0.3 * torch.randn(C))
    cause = fault(module, GROUPED[variant](x, module), x, tmp_path).cause
    assert (cause.kind, cause.detail["variant"]) == ("wrong_variant", variant)
    assert cause.detail["model"] == "group_norm"


def test_a_batch_norm_by_its_own_batch_is_named(tmp_path: Path) -> None:
    torch.manual_seed(2)
    module, x = nn.BatchNorm1d(C).eval().requires_grad_(False), torch.randn(1, C, T) * 2 + 1
    assert module.running_mean is not None
    assert module.running_var is not None
    module.running_mean.normal_(0, 0.3)
    module.running_var.uniform_(0.5, 2)
    wrong = F.batch_norm(x, None, None, module.weight, module.bias, training=True, eps=module.eps)
    cause = fault(module, wrong, x, tmp_path).cause
    assert (cause.kind, cause.detail["variant"]) == ("wrong_variant", "the statistics of what it is given")
