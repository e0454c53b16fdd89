"""Dumped values of a module of one's own: they belong to its only step, and need no folder that says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firstbad.comparison import compare
from firstbad.probes import dump
from firstbad.reference import own
from firstbad.run import CaptureOptions, ModelSpec
from firstbad.session import capture_reference
from firstbad.trace import open_trace

MODULE = """
import torch
from torch import nn

def make():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4))
"""


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_flat_folder(tmp_path: Path, factor: float) -> None:
    (tmp_path / "net.py").write_text(MODULE, "utf-8")
    x = np.random.default_rng(1).standard_normal((1, 9, 6)).astype(np.float32)
    np.savez(tmp_path / "in.npz", input=x)
    prepared = own.prepare(ModelSpec(f"{tmp_path / 'net.py'}:make", inputs=tmp_path / "in.npz"))
    w, folder, options = prepared.weights, tmp_path / "d", CaptureOptions()
    a = x[0] @ w["0.weight"].T + w["0.bias"]
    b = np.tanh(a) * np.float32(factor)
    folder.mkdir()
    for name, array in (("first", a), ("bent", b), ("end", b @ w["2.weight"].T + w["2.bias"])):
        np.save(folder / f"{name}.npy", array.astype(np.float32))
    dump.capture(str(folder), prepared, tmp_path / "c.h5", options)
    capture_reference(own, prepared, tmp_path / "r.h5", options)  # type: ignore[arg-type]  # a room
    with open_trace(tmp_path / "r.h5") as ours, open_trace(tmp_path / "c.h5") as theirs:
        found = compare(ours, theirs, own.executor(prepared)).result
    assert dict(found.coverage.compared) == {"forward": 3}
    assert found.verdict == ("match" if factor == 1 else "diverged")
    assert [f.cause.kind for f in found.faults] == ([] if factor == 1 else ["wrong_constant"])
