"""Noise of a region of several ops: a right engine that adds up in another order stays far from the limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad.comparison import compare
from firstbad.graph import Value
from firstbad.reference.function import executor, record
from firstbad.trace import TraceWriter, open_trace

T, D, M = 64, 4, 32
Function = Callable[[torch.Tensor], torch.Tensor]


class Activated(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.fc, self.function = nn.Linear(D, M), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.fc(x))


@pytest.mark.parametrize("function", [F.silu, F.gelu, torch.tanh], ids=["silu", "gelu", "tanh"])
def test_a_sum_next_to_zero_before_an_activation_has_the_noise_of_its_terms(tmp_path: Path, function: Function) -> None:
    """The engine shows the activation alone: where its argument cancels to nearly nothing, so does its own size."""
    worst = 0.0
    for seed in range(16):
        torch.manual_seed(seed)
        module, x = Activated(function).eval().requires_grad_(False), torch.randn(1, T, D)
        with TraceWriter(tmp_path / "r.h5", "reference", "torch") as writer:
            record(module, [("x", x)], writer)
        weight, h = module.fc.weight.numpy(), np.zeros((T, M), np.float32)
        for k in reversed(range(D)):
            h = h + x[0].numpy()[:, k, None] * weight[:, k]
        made = function(torch.from_numpy(h + module.fc.bias.numpy()))
        with TraceWriter(tmp_path / "c.h5", "candidate", "py") as writer:
            writer.value(Value(0, "call", "x", "input", (T, D), "float32"), x[0].numpy())
            writer.value(Value(1, "call", "made", "value", (T, M), "float32"), made.numpy())
        with open_trace(tmp_path / "r.h5") as ours, open_trace(tmp_path / "c.h5") as theirs:
            run = executor({n: p.numpy() for n, p in module.named_parameters()})
            result = compare(ours, theirs, run, budget=0).result
        assert [f.value for f in result.faults] == [], seed
        assert len(result.values["name"]) == 1
        worst = max(worst, *result.values["times_noise"])
    assert worst < 2.5, "noise floors; 3 are a fault"
