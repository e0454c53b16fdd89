"""Another activation where the model writes its own out in single ops, behind a product that is not shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from tests.firstbad.shown import fault

OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu (erf)": F.gelu,
    "silu": F.silu,
    "gelu (sigmoid 1.702)": lambda x: x * torch.sigmoid(1.702 * x),
}


class Written(nn.Module):
    """As GPT-2 has it: a product, then gelu by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))


@pytest.mark.parametrize("variant", OTHERS)
def test_the_activation_behind_a_product_is_named(variant: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    module, x = Written().requires_grad_(False), 2 * torch.randn(1, 10, 8)
    cause = fault(module, OTHERS[variant](module.fc(x)), x, tmp_path).cause
    assert (cause.kind, cause.detail["variant"]) == ("wrong_variant", variant)
