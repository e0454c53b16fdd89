"""`firstbad capture` for each side and `firstbad compare` of the files: the answer of `diff`, without an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from firstbad.probes import edits
from firstbad.probes.plan import save
from firstbad.schema import validate
from firstbad.trace import open_trace

from .conftest import MICRO, Bench, Command

PLACES = ("files", "timings", "command", "environment", "extra")
"""What says where and when a comparison was made, not what came out."""


def answer(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text("utf-8"))
    return {key: entry for key, entry in result.items() if key not in PLACES}


def plan_of(micro: Bench, folder: Path, kind: str) -> str:
    if kind == "healthy":
        return "c"
    wired = edits.rewire(micro.plan, "decode", "model.decoder.layers.1.fc1", "x", "model.decoder.layers.0.add_2")
    save(wired, folder / "plan.json")
    return f"c:{folder / 'plan.json'}"


@pytest.mark.parametrize(("kind", "code"), [("healthy", 0), ("broken", 1)])
def test_files_give_what_the_run_gave(micro: Bench, tmp_path: Path, firstbad: Command, kind: str, code: int) -> None:
    candidate = plan_of(micro, tmp_path, kind)
    ran, again, apart = tmp_path / "diff", tmp_path / "compare", tmp_path / "capture"
    assert firstbad("diff", *MICRO, "--max-tokens", 3, "--candidate", candidate, "-o", ran).code == code

    said = firstbad("compare", ran / "reference.h5", ran / "candidate.h5", "-o", again)
    assert said.code == code
    assert said.err == ""
    assert answer(again) == answer(ran)

    words = (*MICRO, "--max-tokens", 3)
    theirs, ours = apart / "candidate.h5", apart / "reference.h5"
    said = firstbad("capture", *words, "--candidate", candidate, "-o", theirs)
    assert said.code == 0
    assert said.out.startswith(f"{theirs}: 3 tokens, ")
    assert firstbad("capture", *words, "--reference", "--tokens-of", theirs, "-o", ours).code == 0
    assert [validate(path) for path in (ours, theirs)] == [[], []]
    assert firstbad("compare", ours, theirs, "-o", apart).code == code
    assert _without_places(answer(apart)) == _without_places(answer(ran))


def _without_places(data: Any) -> Any:
    """Another process of the engine has other addresses."""
    if isinstance(data, dict):
        return {key: _without_places(entry) for key, entry in data.items() if key != "address"}
    return [_without_places(entry) for entry in data] if isinstance(data, list) else data


def test_compare_writes_nothing_unless_asked(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    trace, output = micro.run()
    ours, theirs = tmp_path / "ours.h5", tmp_path / "theirs.h5"
    shutil.copy(micro.reference(output.tokens), ours)
    shutil.copy(trace, theirs)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    said = firstbad("compare", ours, theirs, "--json")
    assert said.code == 0
    assert json.loads(said.out)["verdict"] == "match"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_reference_alone_chooses_its_own_tokens(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    said = firstbad("capture", *MICRO, "--max-tokens", 3, "--reference", "-o", tmp_path / "ours.h5")
    assert said.code == 0
    _, output = micro.run()
    with open_trace(tmp_path / "ours.h5") as trace:
        assert (trace.role, trace.complete) == ("reference", True)
        assert trace.outputs["tokens"] == list(output.tokens)


def test_a_dead_candidate_is_captured_and_compared(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    save(edits.set_attr(micro.plan, "decode", "model.decoder.layers.0.fc1", "trap", 9), tmp_path / "plan.json")
    theirs, ours = tmp_path / "theirs.h5", tmp_path / "ours.h5"
    said = firstbad("capture", *MICRO, "--candidate", f"c:{tmp_path}/plan.json", "-o", theirs)
    assert said.code == 3
    assert "killed by SIGKILL in op" in said.out
    assert firstbad("capture", *MICRO, "--reference", "--tokens-of", theirs, "-o", ours).code == 0
    said = firstbad("compare", ours, theirs, "--json")
    assert said.code == 3
    result = json.loads(said.out)
    assert (result["verdict"], result["faults"]) == ("incomplete", [])
    assert "decode.0" in result["values"]["step"]
