"""A comparison as a whole, on a tiny recorded model: the reference must hold before anything is blamed."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from firstbad.comparison import compare
from firstbad.errors import UnstableReferenceError
from firstbad.reference.executor import Executor
from firstbad.reference.recorder import Recorder
from firstbad.trace import TraceWriter, open_trace


def record(model: torch.nn.Module, x: torch.Tensor, path: Path, role: str) -> None:
    with TraceWriter(path, role=role, engine="torch", meta={}) as writer:
        with torch.inference_mode(), Recorder(model, writer) as recorder:
            recorder.begin("forward")
            model(recorder.input("x", x))
        writer.outputs({"tokens": [], "text": ""})
        writer.close(complete=True)


@pytest.fixture
def traces(tmp_path: Path) -> tuple[torch.nn.Module, Path, Path]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)).requires_grad_(False)
    x = torch.randn(3, 8)
    for role in ("reference", "candidate"):
        record(model, x, tmp_path / f"{role}.h5", role)
    return model, tmp_path / "reference.h5", tmp_path / "candidate.h5"


def edit(path: Path, dataset: str, change: float) -> None:
    with h5py.File(path, "r+") as file:
        file[dataset][...] = file[dataset][...] + np.float32(change)


def run(traces: tuple[torch.nn.Module, Path, Path]):  # type: ignore[no-untyped-def]
    model, reference, candidate = traces
    weights = {name: t.numpy() for name, t in model.named_parameters()}
    with open_trace(reference) as a, open_trace(candidate) as b:
        return compare(a, b, Executor(weights)).result


def test_a_run_matches_itself(traces) -> None:  # type: ignore[no-untyped-def]
    result = run(traces)
    assert (result.verdict, result.exit_code, result.faults) == ("match", 0, ())
    assert result.coverage.compared == {"forward": 3}
    assert result.coverage.weights_compared == 4


def test_a_changed_value_is_one_fault_and_what_follows_is_not(traces) -> None:  # type: ignore[no-untyped-def]
    edit(traces[2], "/values/forward/0", 0.5)
    result = run(traces)
    # the value itself does not follow from its inputs; the next one does not follow from it, as it was not recomputed
    assert [f.value for f in result.faults] == ["0", "1.gelu"]
    assert result.first_bad is not None
    assert result.first_bad.worst is not None
    assert result.first_bad.worst.candidate == pytest.approx(result.first_bad.worst.expected + 0.5, abs=1e-6)


def test_a_reference_that_does_not_follow_from_itself_blames_nobody(traces) -> None:  # type: ignore[no-untyped-def]
    edit(traces[1], "/values/forward/0", 0.5)
    edit(traces[2], "/values/forward/0", 0.25)
    with pytest.raises(UnstableReferenceError, match=r"`0` of forward is not what its own inputs give"):
        run(traces)
