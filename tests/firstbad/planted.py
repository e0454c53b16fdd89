"""A small recorded model, and copies of its trace with one fault planted by NumPy: what the explainer's tests look at.

The copy is a candidate as a dump of files would be: values by name and nothing else. What is downstream of the fault is
computed anew from the wrong value, in float32. Leaves out everything that the explainer uses: a fault is written as
the wrong arithmetic itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad.comparison import compare
from firstbad.reference.executor import Executor
from firstbad.reference.recorder import Recorder
from firstbad.result import FaultResult, Result
from firstbad.trace import Trace, TraceWriter, open_trace

T, D, H, F_, V, M, POSITIONS = 24, 32, 4, 48, 50, 8, 64
K = D // H


class Attention(nn.Module):
    """Self-attention as Whisper writes it: q scaled, k without bias, a mask added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(D, D)
        self.k_proj = nn.Linear(D, D, bias=False)
        self.v_proj = nn.Linear(D, D)
        self.out_proj = nn.Linear(D, D)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = self.q_proj(x) * K**-0.5
        q, k, v = (t.view(1, T, H, K).transpose(1, 2) for t in (q, self.k_proj(x), self.v_proj(x)))
        p = torch.matmul(q, k.transpose(2, 3)) + mask
        y = torch.matmul(torch.softmax(p, -1), v)
        made: torch.Tensor = self.out_proj(y.transpose(1, 2).reshape(1, T, D))
        return made


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(D)
        self.attn = Attention()
        self.norm = nn.LayerNorm(D)
        self.fc1 = nn.Linear(D, F_)
        self.fc2 = nn.Linear(F_, D)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x), mask)
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class Model(nn.Module):
    """A convolution over time, learned positions, tokens beside the sound, two blocks, logits over a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(M, D, 3, padding=1)
        self.tokens = nn.Embedding(V, D)
        self.positions = nn.Embedding(POSITIONS, D)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, mels: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv(mels)).transpose(1, 2)
        x = x + self.tokens(ids) + self.positions(torch.arange(T))
        mask = torch.full((T, T), torch.finfo(torch.float32).min).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        made: torch.Tensor = self.head(self.norm(x))
        return made


@dataclass(frozen=True)
class Recorded:
    """The reference's trace, and what a fault is written with."""

    path: Path
    weights: Mapping[str, np.ndarray]

    def values(self) -> dict[str, np.ndarray]:
        with open_trace(self.path) as trace:
            return {v.name: np.array(trace.array(v)) for v in trace.graph.values if v.dataset or v.same_as >= 0}


def record(folder: Path) -> Recorded:
    torch.manual_seed(3)
    torch.set_num_threads(1)  # threads cost more than these sizes are worth
    model = Model().eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # trained norms have no unit gain
            parameter.add_(0.2 * torch.randn(parameter.shape))
        elif parameter.dim() > 1:
            parameter.mul_(2.0)
    path = folder / "reference.h5"
    mels, ids = torch.randn(1, M, T), torch.randint(0, V, (1, T))
    with TraceWriter(path, role="reference", engine="torch", meta={}) as writer:
        with torch.inference_mode(), Recorder(model, writer) as recorder:
            recorder.begin("forward")
            model(recorder.input("mels", mels), recorder.input("ids", ids))
        writer.close(complete=True)
    return Recorded(path, {name: p.numpy() for name, p in model.named_parameters()})


Fault = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], np.ndarray]
"""(values by name, weights by name) → the wrong value."""


def plant(
    recorded: Recorded, faults: Mapping[str, Fault], path: Path, instead: Mapping[str, np.ndarray | None] | None = None
) -> Path:
    """A candidate's trace: each named value is what its fault makes of the values before it.

    `instead`: what the trace holds in the place of a value, of any shape; None: nothing.
    """
    instead = instead or {}
    executor = Executor(recorded.weights)
    with open_trace(recorded.path) as trace, TraceWriter(path, role="candidate", engine="dump", meta={}) as writer:
        known: dict[int, np.ndarray] = {}
        named: dict[str, np.ndarray] = {}
        count = 0
        for value in trace.graph.values:
            if value.kind in ("input", "constant"):
                known[value.id] = np.array(trace.array(value))
        for op in trace.graph.ops:
            inputs = {r.value: known[r.value] for r in op.reads if r.value in known}
            for written, right in zip(op.writes, executor.run(op, inputs, "float32"), strict=True):
                name, array = trace.graph.values[written].name, right
                if name in faults:
                    array = np.asarray(faults[name](named, recorded.weights), right.dtype).reshape(right.shape)
                known[written] = named[name] = np.array(array)
        for value in trace.graph.values:
            if value.kind in ("value", "input") and (value.dataset or value.same_as >= 0):
                array = instead.get(value.name, known[value.id])
                if array is None:
                    continue
                copy = replace(value, id=count, op=-1, same_as=-1, dataset="", hash=0, strides=(), shape=array.shape)
                writer.value(copy, np.ascontiguousarray(array))
                count += 1
        writer.close(complete=True)
    return path


def rightly(recorded: Recorded, name: str, dtype: str = "float64") -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """How a value follows from the values before it (views are made anew)."""
    executor = Executor(recorded.weights)
    with open_trace(recorded.path) as trace:
        graph = trace.graph
        value = next(v for v in graph.values if v.name == name and v.kind == "value")
        plain = {v.id: np.array(trace.array(v)) for v in graph.values if v.kind in ("input", "constant")}

    def right(named: Mapping[str, np.ndarray]) -> np.ndarray:
        def held(i: int) -> np.ndarray | None:
            known = graph.values[i]
            if i in plain or known.kind == "weight":
                return plain.get(i)
            if known.name in named and known.kind == "value":
                return named[known.name]
            return made(i)

        def made(i: int) -> np.ndarray:
            op = graph.ops[graph.values[i].op]
            inputs = {r.value: a for r in op.reads if (a := held(r.value)) is not None}
            return executor.run(op, inputs, dtype)[op.writes.index(i)]

        return made(value.id)

    return right


def explained(recorded: Recorded, candidate: Path, **options: Any) -> Result:
    with open_trace(recorded.path) as ours, open_trace(candidate) as theirs:
        return run(ours, theirs, recorded, **options)


def run(ours: Trace, theirs: Trace, recorded: Recorded, **options: Any) -> Result:
    options = {"budget": 10.0, **options}
    return compare(ours, theirs, Executor(recorded.weights), **options).result


def one_fault(recorded: Recorded, name: str, fault: Fault, folder: Path, **options: Any) -> FaultResult:
    """The only fault of a run with `fault` planted at `name`."""
    result = explained(recorded, plant(recorded, {name: fault}, folder / "candidate.h5"), **options)
    assert [f.value for f in result.faults] == [name]
    return result.faults[0]
