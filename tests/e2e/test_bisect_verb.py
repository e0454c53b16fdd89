"""firstbad bisect on the small Whisper: the fault of a full capture, in two runs and for a part of its bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from firstbad.probes import edits
from firstbad.probes.plan import save

from .conftest import MICRO, Bench, Command

RESIDUAL, NORM = "model.encoder.add", "model.encoder.layers.0.self_attn_layer_norm"

FAULTS = {
    "model.encoder.layers.0.self_attn.v_proj": lambda p, op: edits.rewire(p, "encode", op, "x", RESIDUAL),
    "model.decoder.layers.1.fc1": lambda p, op: edits.rewire(
        p, "decode", op, "x", "model.decoder.layers.1.add_1", planned_anew=True
    ),
}


def broken(micro: Bench, tmp_path: Path, op: str) -> Path:
    path = tmp_path / "plan.json"
    save(FAULTS[op](micro.plan, op), path)
    return path


@pytest.mark.parametrize("op", list(FAULTS))
def test_the_fault_of_a_full_capture_in_two_runs(micro: Bench, firstbad: Command, tmp_path: Path, op: str) -> None:
    plan = broken(micro, tmp_path, op)
    said = firstbad("bisect", *MICRO, "--max-tokens", 3, "--candidate", f"c:{plan}", "-o", tmp_path / "out", "--json")
    result = json.loads(said.out)
    assert said.code == 1
    assert [f["value"] for f in result["faults"]] == [op]
    assert result["first_bad"]["cause"]["kind"] == "wrong_input"
    search = result["extra"]["bisect"]
    assert len(search["runs"]) == 2
    assert sum(run["bytes"] for run in search["runs"]) < 0.4 * search["full_bytes"]
    assert any("2 runs of the candidate" in note for note in result["notes"])
    assert (tmp_path / "out" / "report.html").is_file()

    again = firstbad("bisect", *MICRO, "--max-tokens", 3, "--candidate", f"c:{plan}", "-o", tmp_path / "out", "--json")
    assert json.loads(again.out)["extra"]["bisect"] == search, "finished runs are taken up, not made again"


def test_a_right_engine_takes_one_run(micro: Bench, firstbad: Command, tmp_path: Path) -> None:
    said = firstbad("bisect", *MICRO, "--max-tokens", 3, "-o", tmp_path, "--json")
    assert said.code == 0
    assert len(json.loads(said.out)["extra"]["bisect"]["runs"]) == 1


def test_one_value_a_run(micro: Bench, firstbad: Command, tmp_path: Path) -> None:
    op = next(iter(FAULTS))
    plan = broken(micro, tmp_path, op)
    where = tmp_path / "out"
    said = firstbad(
        "bisect", *MICRO, "--max-tokens", 2, "--candidate", f"c:{plan}", "-o", where, "--one-value", "--json"
    )
    result = json.loads(said.out)
    runs = result["extra"]["bisect"]["runs"]
    assert [f["value"] for f in result["faults"]] == [op]
    assert max(run["values"] for run in runs) == 1
    assert len(runs) <= math.log2(150) + 3


@pytest.mark.parametrize("text", ["0", "-3M", "5 apples", "%"])
def test_a_budget_that_is_no_size_is_a_usage_error(firstbad: Command, tmp_path: Path, text: str) -> None:
    said = firstbad("bisect", *MICRO, "--budget", text, "-o", tmp_path)
    assert said.code == 2
    assert "is no size" in said.err or "expected one argument" in said.err
