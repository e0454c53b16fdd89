"""The gate and its baselines by command: green twice, red for what matters, told for what does not."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path

import pytest

from firstbad import waivers
from firstbad.cli import main
from firstbad.probes import edits, planner
from firstbad.probes import plan as plans
from firstbad.run import ModelSpec

from .conftest import CLIP, Command

GUILTY = "model.encoder.layers.1.self_attn.v_proj"
CASE = f"""
[case.micro]
random_weights = 1
size = "micro"
audio_context = 40
audio = ["{CLIP.name}"]
max_tokens = 2
inputs = 2
threads = 1
candidate = "CANDIDATE"
"""


def write_case(folder: Path, candidate: str = "c", extra: str = "") -> Path:
    path = folder / "firstbad.toml"
    path.write_text(CASE.replace("CANDIDATE", candidate) + extra)
    return path


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one case, its baseline, and plans of broken engines."""
    folder = tmp_path_factory.mktemp("gate")
    shutil.copy(CLIP, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CI", raising=False)
        patch.delenv("GITHUB_ACTIONS", raising=False)
        config = write_case(folder)
        command = ["accept", "--config", str(config), "--jobs", "1", "--repeat", "2", "--yes"]
        assert main([*command, "-o", str(folder / "out")]) == 0
    from firstbad import session

    _, prepared = session.prepare(ModelSpec("whisper", None, random_weights=1, audio_context=40, size="micro"))
    healthy = planner.plan(prepared.config, 40)
    wire = edits.rewire(healthy, "encode", GUILTY, "x", "model.encoder.layers.0.add_1")
    plans.save(wire, folder / "wire.json")
    return folder


@pytest.fixture
def case(accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, where this test may do as it likes."""
    for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    for path in accepted.iterdir():
        if path.name != "out":
            (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gate(firstbad: Command, *words: object) -> tuple[int, dict, str]:  # type: ignore[type-arg]
    said = firstbad("gate", "--jobs", 1, *words)
    result = Path("firstbad-out/gate.json")
    return said.code, json.loads(result.read_text()) if result.is_file() else {}, said.out + said.err


def kinds(result: dict) -> list[str]:  # type: ignore[type-arg]
    return [finding["kind"] for finding in result["cases"][0]["findings"]]


def test_green_with_the_reference_from_the_cache(case: Path, firstbad: Command) -> None:
    code, result, out = gate(firstbad)
    assert code == 0, out
    assert "✓ gate passed" in out
    assert [one["verdict"] for one in result["cases"][0]["inputs"]] == ["match", "match"]
    assert result["cases"][0]["references_cached"] == 2
    assert kinds(result) == []
    assert list(Path("firstbad-out").rglob("*.h5")) == []  # clean runs leave nothing


def test_a_fault_is_red_with_its_cause_and_its_share_of_the_inputs(case: Path, firstbad: Command) -> None:
    write_case(case, "c:wire.json")
    code, result, out = gate(firstbad)
    assert code == 1
    first = result["cases"][0]["findings"][0]
    assert (first["kind"], first["value"], first["step"]) == ("fault", GUILTY, "encode")
    assert first["file"].endswith("matmul.c")
    assert first["cause"].startswith("wrong_input")
    assert first["inputs"] == [CLIP.name, "made:0"]
    assert "shows in 2 of 2 inputs" in out
    assert (Path(result["cases"][0]["inputs"][0]["folder"]) / "report.html").is_file()
    assert "creep" not in kinds(result)


def test_a_waived_fault_is_shown_and_green_until_its_day(
    case: Path, firstbad: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(case, "c:wire.json")
    said = firstbad("accept", "--fault", "*.1.self_attn.v_proj", "--reason", "issue 12", "--until", "2999-01-31")
    assert said.code == 0, said.err
    code, result, out = gate(firstbad, "--inputs", 1)
    # the tokens that the fault changes are the baseline's no more: that is not waived with it
    assert "waived" in kinds(result)
    assert "waived until 2999-01-31: issue 12" in out
    assert [f["kind"] for f in result["cases"][0]["findings"] if f["kind"] == "fault"] == []
    monkeypatch.setattr(waivers, "today", lambda: datetime.date(2999, 2, 1))
    code, result, out = gate(firstbad, "--inputs", 1)
    assert code == 1
    assert "its waiver ran out on 2999-01-31 (issue 12)" in out


def test_no_baseline_is_wrong_usage_and_says_what_to_type(case: Path, firstbad: Command) -> None:
    Path("baselines/micro.jsonl").unlink()
    code, _, out = gate(firstbad, "--inputs", 1)
    assert code == 2
    assert "make it with `firstbad accept micro`" in out


def test_a_spoilt_baseline_is_one_line(case: Path, firstbad: Command) -> None:
    path = Path("baselines/micro.jsonl")
    path.write_text(path.read_text().replace("linear", "Linear", 1))
    said = firstbad("gate")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "was edited or merged" in said.err


def test_accept_shows_and_writes_only_when_told(case: Path, firstbad: Command) -> None:
    path = Path("baselines/micro.jsonl")
    before = path.read_text()
    write_case(case, extra="growth = 1.5\n")
    said = firstbad("accept", "--jobs", 1, "--repeat", 1, "--inputs", 1)
    assert said.code == 0
    assert path.read_text() == before
    said = firstbad("accept", "--jobs", 1, "--repeat", 1, "--inputs", 1, "--yes")
    assert said.code == 0
    text = path.read_text()
    assert '"made:0"' in text  # not seen, not deleted


def test_accept_refuses_a_fault_and_ci(case: Path, firstbad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write_case(case, "c:wire.json")
    before = Path("baselines/micro.jsonl").read_text()
    said = firstbad("accept", "--jobs", 1, "--repeat", 1, "--inputs", 1, "--yes")
    assert said.code == 1
    assert "is not clean: mend it, or waive the fault" in said.out
    assert GUILTY in said.out
    assert Path("baselines/micro.jsonl").read_text() == before
    monkeypatch.setenv("CI", "true")
    said = firstbad("accept", "--yes")
    assert said.code == 2
    assert "does not run in CI" in said.err


def test_a_baseline_of_no_case_is_reported(case: Path, firstbad: Command) -> None:
    shutil.copy("baselines/micro.jsonl", "baselines/old.jsonl")
    _, result, out = gate(firstbad, "--inputs", 1)
    assert result["unused"] == ["old.jsonl"]
    assert "the baseline old.jsonl belongs to no case" in out


def test_tokens_and_recordings_of_the_baseline(case: Path, firstbad: Command) -> None:
    from firstbad.baseline import InputRecord, read, to_text

    path = Path("baselines/micro.jsonl")
    base = read(path)
    assert base is not None
    from dataclasses import replace

    first = base.inputs[0]
    other = InputRecord(first.name, "0" * 32, (first.tokens[0] + 1, *first.tokens[1:]))
    path.write_text(to_text(replace(base, inputs=(other, *base.inputs[1:]), weights="1" * 32)))
    code, result, out = gate(firstbad, "--inputs", 1)
    assert code == 1
    assert set(kinds(result)) >= {"tokens", "input", "weights"}
    assert f"token 0 is {first.tokens[0]}, {first.tokens[0] + 1} in the baseline: no near-tie" in out


def test_without_a_file_the_options_make_one_case(tmp_path: Path, firstbad: Command, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    said = firstbad("gate", "--candidate", "cc", "--model", "no-such-model", "--jobs", 1)
    assert said.code == 2
    said = firstbad("gate")
    assert said.code == 2
    assert "cannot read `firstbad.toml`" in said.err


def test_other_options_than_the_file(case: Path, firstbad: Command) -> None:
    shutil.move("baselines", "elsewhere")
    code, result, out = gate(firstbad, "--candidate", "c:wire.json", "--baselines", "elsewhere", "--inputs", 1)
    assert code == 1
    assert result["cases"][0]["repeats"] == 2
    assert GUILTY in out


def test_every_report_at_once(case: Path, firstbad: Command) -> None:
    words = [
        word
        for name in ("junit", "sarif", "gitlab:q/quality.json", "github", "history:h.jsonl")
        for word in ("--report", name)
    ]
    code, _, _ = gate(firstbad, "--inputs", 1, *words)
    assert code == 0
    for path in ("firstbad-out/junit.xml", "firstbad-out/firstbad.sarif", "q/quality.json", "firstbad-out/summary.md"):
        assert Path(path).stat().st_size, path
    gate(firstbad, "--inputs", 1, "--report", "history:h.jsonl")
    assert Path("h.jsonl").read_text().count("\n") == 2  # it adds
    said = firstbad("gate", "--report", "junt", "--inputs", 1, "--jobs", 1)
    assert said.code == 2
    assert "did you mean `junit`" in said.err
