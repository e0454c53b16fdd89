"""The reference of the bisected engine: a model room in a user's own file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from firstbad.reference.executor import Executor
from firstbad.reference.recorder import Recorder
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput

T, D, F = 8, 32, 64


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.up, self.gate, self.down = nn.Linear(D, F), nn.Linear(D, F), nn.Linear(F, D)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        return x + self.down(self.act(self.gate(hidden)) * self.up(hidden))


def prepare(spec: ModelSpec) -> Prepared:
    model = Gated().requires_grad_(False)
    flat = torch.from_numpy(np.fromfile(Path("weights.bin"), np.float32))
    names = [f"{part}.{kind}" for part in ("norm", "up", "gate", "down") for kind in ("weight", "bias")]
    parameters, at = dict(model.named_parameters()), 0
    for name in names:
        p = parameters[name]
        p.copy_(flat[at : at + p.numel()].reshape(p.shape))
        at += p.numel()
    weights = {name: p.numpy() for name, p in parameters.items()}
    return Prepared(
        "gated",
        "a gated block",
        "weights.bin",
        {},
        {},
        (),
        0,
        (),
        (),
        weights,
        lambda _: "",
        spec=spec,
        model_object=model,
    )


def another(prepared: Prepared, *, audio_file: Path | None = None, seed: int = 0) -> Prepared:
    from dataclasses import replace

    x = np.random.Generator(np.random.PCG64(seed)).standard_normal((1, T, D)).astype(np.float32)
    return replace(prepared, inputs={"x": x})


def capture(prepared: Prepared, writer: Any, *, tokens: Sequence[int] | None, options: CaptureOptions) -> RunOutput:
    with torch.inference_mode(), Recorder(prepared.model_object, writer) as recorder:
        recorder.begin("forward")
        prepared.model_object(recorder.input("x", torch.from_numpy(prepared.inputs["x"])))
    return RunOutput((), "")


def executor(prepared: Prepared) -> Executor:
    return Executor(prepared.weights)
