"""A fault in a value that the candidate keeps in pieces: named, and its arrays are laid out like any other's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from firstbad.comparison import compare
from firstbad.confirm import break_alike
from firstbad.convict import convict
from firstbad.graph import Value
from firstbad.reference.function import executor, record
from firstbad.trace import TraceWriter, open_trace

T, D = 12, 16


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, z = self.both(x).chunk(2, -1)
        made: torch.Tensor = self.out(u.tanh() * z.sigmoid())
        return made


def test_halves_that_are_exchanged(tmp_path: Path) -> None:
    torch.manual_seed(5)
    module, x = Gated().eval().requires_grad_(False), torch.randn(1, T, D)
    with TraceWriter(tmp_path / "r.h5", "reference", "torch") as writer:
        record(module, [("x", x)], writer)
    with torch.no_grad():
        z, u = module.both(x[0]).chunk(2, -1)  # the other way round
        h = u.tanh() * z.sigmoid()
        made = {"upper": u, "gate": z, "mixed": h, "end": module.out(h)}
    with TraceWriter(tmp_path / "c.h5", "candidate", "py") as writer:
        writer.value(Value(0, "call", "x", "input", (T, D), "float32"), x[0].numpy())
        for n, (name, array) in enumerate(made.items(), 1):
            writer.value(Value(n, "call", name, "value", tuple(array.shape), "float32"), array.numpy())
    with open_trace(tmp_path / "r.h5") as ours, open_trace(tmp_path / "c.h5") as theirs:
        run = executor({n: p.numpy() for n, p in module.named_parameters()})
        found = compare(ours, theirs, run)
        (fault,) = found.result.faults
        assert fault.value == "both"
        assert len(found.alignment.joins) == 1
        (written,) = convict(found, theirs, None, tmp_path)
        given = np.load(Path(written["folder"]) / "given.npy")
        expected = np.load(Path(written["folder"]) / "expected.npy")
        again = break_alike(found, ours, theirs)
    right = module.both(x[0]).numpy()
    assert np.allclose(expected.reshape(T, 2 * D), right, atol=1e-6)
    assert np.array_equal(given.reshape(T, 2 * D), np.concatenate([right[:, D:], right[:, :D]], 1))
    assert again["breaks_alike"] == (fault.cause.kind != "unknown")
