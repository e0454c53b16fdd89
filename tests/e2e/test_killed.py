"""A candidate that dies on the way, by a signal or by silence: exit 3, the last op named, what came before kept."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from firstbad.probes import edits
from firstbad.probes.plan import STEPS, save
from firstbad.result import load
from firstbad.schema import validate

from .conftest import MICRO, Bench, Command

POINTS = [
    ("encode", 0),
    ("encode", 3),
    ("encode", 17),
    ("encode", 36),
    ("prefill", 0),
    ("prefill", 21),
    ("prefill", 58),
    ("decode", 0),
    ("decode", 25),
    ("decode", 52),
]
"""Step and place in its call list: the ends of each step among them."""

ENDS = {"SIGSEGV": int(signal.SIGSEGV), "SIGKILL": int(signal.SIGKILL), "hang": 0}

CASES = [
    pytest.param(step, index, end, marks=() if (i + j) % 3 == 0 else pytest.mark.slow)
    for i, (step, index) in enumerate(POINTS)
    for j, end in enumerate(ENDS)
]
"""Each end at each point; one end a point where time is short."""


@pytest.mark.parametrize(("step", "index", "end"), CASES)
def test_a_death_is_told_and_what_came_before_is_kept(
    micro: Bench, tmp_path: Path, firstbad: Command, step: str, index: int, end: str
) -> None:
    plan = micro.plan
    op = plan.steps[step].ops[index]
    save(edits.set_attr(plan, step, op.name, "trap", ENDS[end]), tmp_path / "plan.json")
    out = tmp_path / "out"
    limit = ("--timeout", 0.5) if end == "hang" else ()
    said = firstbad("diff", *MICRO, "--max-tokens", 3, "--candidate", f"c:{tmp_path}/plan.json", "-o", out, *limit)

    ran = [
        (s if s != "decode" else "decode.0", o.name)
        for s in STEPS[: STEPS.index(step) + 1]
        for o in plan.steps[s].ops[: index if s == step else None]
    ]
    shown = "decode.0" if step == "decode" else step
    how = "silent for 0.5 s in" if end == "hang" else f"killed by {end} in"
    message = f"{how} op {len(ran) + 1} `{op.name}` of {shown} (probes/engine/"
    assert said.code == 3
    assert said.err == ""
    assert f"? incomplete  no fault in what was compared; the candidate {message}" in said.out
    result = load(out / "result.json")
    assert result["verdict"] == "incomplete"
    assert result["faults"] == []
    assert result["death"].startswith(message)
    assert sum(result["coverage"]["compared"].values()) == len(ran)

    assert validate(out / "candidate.h5") == []
    healthy, _ = micro.run()
    with h5py.File(out / "candidate.h5") as dead, h5py.File(healthy) as alive:
        assert not dead.attrs["complete"]
        assert len(dead["graph/ops"]) == len(ran)
        for where, name in ran:
            dataset = f"values/{where}/{name.replace('.', '/')}"
            np.testing.assert_array_equal(dead[dataset][()], alive[dataset][()])


def test_a_fault_before_the_death_counts(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    wired = edits.rewire(micro.plan, "decode", "model.decoder.layers.0.fc1", "x", "model.decoder.layers.0.add")
    last = "model.decoder.layers.1.fc1"
    save(edits.set_attr(wired, "decode", last, "trap", int(signal.SIGKILL)), tmp_path / "plan.json")
    out = tmp_path / "out"
    said = firstbad("diff", *MICRO, "--candidate", f"c:{tmp_path}/plan.json", "-o", out)
    assert said.code == 1
    result = load(out / "result.json")
    assert [(f["value"], f["step"]) for f in result["faults"]] == [("model.decoder.layers.0.fc1", "decode.0")]
    assert f"`{last}` of decode.0" in result["death"]
    assert "then the candidate killed by SIGKILL" in said.out


def test_another_reader_opens_what_a_killed_run_left(micro: Bench) -> None:
    op = micro.plan.steps["prefill"].ops[10]
    trace, _ = micro.run(edits.set_attr(micro.plan, "prefill", op.name, "trap", int(signal.SIGKILL)))
    last = micro.plan.steps["prefill"].ops[9].name.replace(".", "/")
    words = ["h5dump", "-d", f"/values/prefill/{last}", trace]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("h5dump is not installed: hdf5-tools")
    assert done.returncode == 0, done.stderr
    assert "(0,0,0,0): " in done.stdout
