"""Near-ties: choices that noise alone can turn, and those that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firstbad.comparison import compare
from firstbad.graph import Op
from firstbad.reference.executor import Executor
from firstbad.reference.recorder import Recorder
from firstbad.ties import is_tie, slack_of
from firstbad.trace import TraceWriter, open_trace


def argmax(axis: int | None = -1) -> Op:
    return Op(0, "s", "argmax", "aten.argmax.default", attrs={"args": [{"v": 0}, axis, False]})


SCORES = np.array([[1.0, 3.0, 3.0 - 1e-7, 2.0]])


@pytest.mark.parametrize(
    ("chosen", "slack", "tie"), [(1, 0.0, True), (2, 1e-6, True), (2, 0.0, False), (3, 1e-6, False)]
)
def test_a_choice_is_a_tie_within_the_slack(chosen: int, slack: float, tie: bool) -> None:
    assert is_tie(argmax(), SCORES, np.array([chosen]), np.array([1]), slack) is tie
    assert is_tie(argmax(None), SCORES, np.array(chosen), np.array(1), slack) is tie


def test_a_place_that_does_not_exist_is_no_tie() -> None:
    assert not is_tie(argmax(), SCORES, np.array([9]), np.array([1]), 1.0)
    assert not is_tie(argmax(), SCORES, np.array([0.5]), np.array([1]), 1.0)


def test_slack_grows_with_the_scores() -> None:
    assert slack_of(np.array([100.0, -np.inf]), 2.0**-24) == pytest.approx(4 * 100 * 2.0**-24)
    assert slack_of(np.array([]), 2.0**-24) == 0.0


class Chooser(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(x * 2, -1)


@pytest.fixture
def chosen(tmp_path: Path, planted: ModuleType) -> Callable[..., Any]:
    """The result where the candidate chose `place` of scores `x`."""

    def run(x: list[float], place: int) -> Any:
        path = tmp_path / "reference.h5"
        with TraceWriter(path, role="reference", engine="torch", meta={}) as writer:
            with torch.inference_mode(), Recorder(Chooser(), writer) as recorder:
                recorder.begin("forward")
                Chooser()(recorder.input("x", torch.tensor([x])))
            writer.close(complete=True)
        recorded = planted.Recorded(path, {})
        faults = {"argmax:int64": lambda _v, _w: np.array([place])}
        other = planted.plant(recorded, faults, tmp_path / "candidate.h5")
        with open_trace(path) as ours, open_trace(other) as theirs:
            return compare(ours, theirs, Executor({})).result

    return run


def test_the_other_of_two_equal_scores_is_no_fault(chosen: Callable[..., Any]) -> None:
    result = chosen([1.0, 5.0, 5.0, 2.0], 2)
    assert (result.verdict, result.faults) == ("match", ())
    assert "near-tie" in result.values["verdict"]


def test_a_smaller_score_is_a_fault(chosen: Callable[..., Any]) -> None:
    result = chosen([1.0, 5.0, 4.9, 2.0], 2)
    assert [f.value for f in result.faults] == ["argmax:int64"]
