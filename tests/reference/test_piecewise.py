"""Large weights by some of their rows: what the whole weight gives, in the replay's dtypes, and nothing kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from firstbad.graph import Graph, Op
from firstbad.reference import piecewise
from firstbad.reference.executor import Executor
from firstbad.reference.function import record
from firstbad.reference.piecewise import Piecewise
from firstbad.trace import TraceWriter, open_trace


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.up, self.down = nn.Embedding(70, 24), nn.Linear(24, 101), nn.Linear(101, 24, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.tanh(self.up(self.table(ids))))
        return y


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Graph, dict[str, np.ndarray], dict[int, np.ndarray]]:
    model = Model().eval().requires_grad_(False)
    with TraceWriter(tmp_path / "x.h5", "reference", "torch") as writer:
        record(model, [("ids", torch.tensor([[3, 69, 0], [7, 7, 1]]))], writer)
    with open_trace(tmp_path / "x.h5") as trace:
        arrays = {v.id: np.array(trace.array(v)) for v in trace.graph.values if trace.stored(v)}
        return trace.graph, {n: t.numpy() for n, t in model.state_dict().items()}, arrays


def by_kind(graph: Graph, word: str) -> list[Op]:
    return [op for op in graph.ops if op.kind.startswith(f"aten.{word}.")]


@pytest.mark.parametrize("piece", [1, 50, 24 * 7, 24 * 100])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_same_as_whole(
    recorded: tuple[Graph, dict[str, np.ndarray], dict[int, np.ndarray]],
    monkeypatch: pytest.MonkeyPatch,
    piece: int,
    dtype: str,
) -> None:
    graph, weights, arrays = recorded
    monkeypatch.setattr(piecewise, "PIECE", piece)
    whole, pieces = Executor(weights), Piecewise(weights)
    ops = [*by_kind(graph, "linear"), *by_kind(graph, "embedding")]
    assert len(ops) == 3
    for op in ops:
        inputs = {r.value: arrays[r.value] for r in op.reads if r.value in arrays}
        (a,), (b,) = whole.run(op, inputs, dtype), pieces.run(op, inputs, dtype)
        assert a.shape == b.shape and a.dtype == b.dtype
        if "embedding" in op.kind:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-14 if dtype == "float64" else 1e-6)
        scales = whole.scale(op, inputs, a), pieces.scale(op, inputs, b)
        assert scales[0] is not None and scales[1] is not None
        np.testing.assert_allclose(scales[0], scales[1], rtol=1e-6)
    assert all(t.nbytes <= 4 * piecewise.KEPT for t in pieces._cache.values())
    assert not any(name == "up.weight" for name, _ in pieces._cache), "a piece must never be kept as the weight"


def test_a_weight_that_is_given_is_the_one_that_is_used(
    recorded: tuple[Graph, dict[str, np.ndarray], dict[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit hands over another weight: it stands for the model's."""
    graph, weights, arrays = recorded
    monkeypatch.setattr(piecewise, "PIECE", 60)
    op = by_kind(graph, "linear")[1]
    weight = op.attrs["args"][1]["v"]
    inputs = {r.value: arrays[r.value] for r in op.reads if r.value in arrays}
    given = {**inputs, weight: 2 * weights["down.weight"]}
    (double,), (single,) = Piecewise(weights).run(op, given, "float64"), Piecewise(weights).run(op, inputs, "float64")
    np.testing.assert_allclose(double, 2 * single, rtol=1e-14)


def test_ids_outside_the_table_are_refused_as_ever(
    recorded: tuple[Graph, dict[str, np.ndarray], dict[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstbad.errors import CompareError

    graph, weights, arrays = recorded
    monkeypatch.setattr(piecewise, "PIECE", 60)
    (op,) = by_kind(graph, "embedding")
    inputs = {r.value: arrays[r.value] + 70 for r in op.reads if r.value in arrays}
    with pytest.raises(CompareError, match="cannot replay"):
        Piecewise(weights).run(op, inputs, "float32")
