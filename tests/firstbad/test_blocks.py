"""Values replayed and judged a block of rows at a time are those replayed as a whole."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad import blocks
from firstbad.alignment import align
from firstbad.judge import Rows, judge
from firstbad.local import Local, measure
from firstbad.reference.function import executor, record
from firstbad.trace import TraceWriter, open_trace


class Every(nn.Module):
    """The ops that are cut, rows that are broadcast, and some that cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: torch.Tensor, row: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.fc(x)) + places
        q = h.view(1, 40, 3, 8).transpose(1, 2).contiguous()
        scores = torch.matmul(q, q.transpose(2, 3) * 0.5)
        mixed = torch.matmul(torch.softmax(scores, -1), q)
        h = h * row + mixed.transpose(1, 2).reshape(1, 40, 24)
        return torch.softmax(F.gelu(h), 1) * h.mean(1, keepdim=True)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Every]:
    folder = tmp_path_factory.mktemp("blocks")
    generator = torch.Generator().manual_seed(3)
    inputs = [
        (name, torch.randn(shape, generator=generator))
        for name, shape in (("x", (1, 40, 24)), ("row", (24,)), ("places", (40, 24)))
    ]
    torch.manual_seed(4)
    module = Every()
    paths = folder / "reference.h5", folder / "candidate.h5"
    for path in paths:
        with TraceWriter(path, path.stem, "torch") as writer:
            record(module, inputs, writer)
    with h5py.File(paths[1], "r+") as file:  # a candidate with rounding of its own, and one wrong element
        rng = np.random.default_rng(5)

        def shake(name: str, node: object) -> None:
            if isinstance(node, h5py.Dataset) and node.dtype == np.float32 and name.startswith("values/call"):
                node[()] = node[()] * (1 + 2.0**-24 * rng.standard_normal(node.shape)).astype(np.float32)

        file.visititems(shake)
        file["values/call/softmax"][0, 2, 33, 5] += 0.25
    return *paths, module


def judged(traces: tuple[Path, Path, Every], monkeypatch: pytest.MonkeyPatch, block: int) -> tuple[Local, set[str]]:
    monkeypatch.setattr(blocks, "BLOCK", block)
    cut: set[str] = set()
    original = blocks.size

    with monkeypatch.context() as patch, open_trace(traces[0]) as ours, open_trace(traces[1]) as theirs:
        kinds = {v.shape: ours.graph.ops[v.op].kind for v in ours.graph.values if v.op >= 0}
        patch.setattr(blocks, "size", lambda shape, axis: (cut.add(kinds[shape]), original(shape, axis))[1])
        alignment = align(ours.graph, theirs.graph, ours.array, theirs.array)
        weights = {name: t.detach().numpy() for name, t in traces[2].named_parameters()}
        return measure(ours, theirs, alignment, executor(weights)), cut


def test_blocks_find_what_the_whole_finds(traces: tuple[Path, Path, Every], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, none = judged(traces, monkeypatch, 1 << 20)
    assert not none
    assert any(j.bad for j in whole.values)
    for block in (24, 100, 400):
        parts, cut = judged(traces, monkeypatch, block)
        assert cut
        assert [(j.name, j.bad, j.length, j.exact) for j in parts.values] == [
            (j.name, j.bad, j.length, j.exact) for j in whole.values
        ]
        for a, b in zip(parts.values, whole.values, strict=True):
            assert a.sums.candidate == pytest.approx(b.sums.candidate, rel=1e-5), a.name
            # the twin's own rounding depends on how a library sums, which depends on sizes
            assert a.sums.twin == pytest.approx(b.sums.twin, rel=0.5, abs=0.05), a.name
            assert (a.sums.element_index, a.sums.count) == (b.sums.element_index, b.sums.count)
            np.testing.assert_allclose(a.sums.row_rms, b.sums.row_rms, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(a.sums.column_rms, b.sums.column_rms, rtol=1e-4, atol=1e-6)
            assert a.cumulative == b.cumulative


@pytest.mark.parametrize("shape", [(2, 3, 50, 16), (70, 9), (1, 4, 33, 1)])
@pytest.mark.parametrize("step", [1, 7, 64])
def test_rows_in_blocks_are_the_sums_of_all(shape: tuple[int, ...], step: int) -> None:
    rng = np.random.default_rng(1)
    y = rng.standard_normal(shape)
    t, s = y.astype(np.float32), np.abs(y).astype(np.float32) + np.float32(0.1)
    c = (y * (1 + 1e-7 * rng.standard_normal(shape))).astype(np.float32)
    c.reshape(-1)[[5, 60]] = [np.nan, -np.inf]
    expected = judge(c, y, t, s, u=2.0**-24)
    C = shape[-1]
    rows, flat = Rows(shape, 2.0**-24), [a.reshape(-1, C) for a in (c, y, t, s)]
    for start in range(0, len(flat[0]), step):
        rows.add(start, *(a[start : start + step] for a in flat))  # type: ignore[arg-type]  # their types differ
    sums = rows.sums()
    for name in ("count", "element", "element_index", "bad_nonfinite", "bad_masked", "first_bad", "rows", "columns"):
        assert getattr(sums, name) == getattr(expected, name), name
    for name in ("candidate", "twin", "gain", "offset", "local_error", "twin_error"):
        assert getattr(sums, name) == pytest.approx(getattr(expected, name), rel=1e-12), name
    np.testing.assert_array_equal(sums.row_rms, expected.row_rms)
    np.testing.assert_allclose(sums.column_rms, expected.column_rms, rtol=1e-14)
