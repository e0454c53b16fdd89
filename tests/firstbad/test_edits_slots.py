"""The newest row of a cache that is put together on the way to the only value that an engine shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.firstbad.shown import fault

H, N, K = 2, 6, 8


class Step(nn.Module):
    """A decode step: the key of one token behind those of earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(H * K, H * K)

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        q = x.view(1, 1, H, K).transpose(1, 2)
        new = self.key(x).view(1, 1, H, K).transpose(1, 2)
        return torch.softmax(q @ torch.cat([past, new], -2).transpose(2, 3), -1)


@pytest.mark.parametrize("left", ["the row before", "nothing"])
def test_a_row_that_was_not_stored_is_stale(left: str, tmp_path: Path) -> None:
    torch.manual_seed(4)
    module = Step().requires_grad_(False)
    given = {"x": torch.randn(1, 1, H * K), "past": torch.randn(1, H, N, K)}
    row = given["past"][:, :, -1:] if left == "the row before" else torch.zeros(1, H, 1, K)
    keys = torch.cat([given["past"], row], -2)
    wrong = torch.softmax(given["x"].view(1, 1, H, K).transpose(1, 2) @ keys.transpose(2, 3), -1)
    cause = fault(module, wrong, given, tmp_path).cause
    assert cause.kind == "stale"
    held = f"the row of position {N - 1}" if left == "the row before" else "nothing"
    assert f"finds {held} where position {N} of cat should be" in cause.statement
