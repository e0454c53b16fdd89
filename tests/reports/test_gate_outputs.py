"""What CI servers read of a gate: GitHub, GitLab, SARIF, the history; each within its server's rules."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from firstbad.finding import Finding
from firstbad.reports import github, gitlab, history, sarif

from .gate_example import FAULT, NASTY, VALUE, case, everything, gate


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_WORKSPACE", "GITHUB_REPOSITORY", "GITHUB_SHA", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)


def unescaped(text: str) -> str:
    """As the runner reads it."""
    for code, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, sign)
    return text


def test_annotation_at_the_line_of_the_first_bad_only(tmp_path: Path) -> None:
    lines = list(github.commands(everything(tmp_path)))
    errors = [line for line in lines if line.startswith("::error ")]
    assert errors[0].startswith(f"::error file=engine.c,line=12,title=firstbad%3A {VALUE}::red: {FAULT.message}")
    assert len(errors) == 3  # one for each case that failed
    assert len([line for line in lines if line.startswith("::warning ")]) == 1
    assert all("\n" not in line and "\r" not in line for line in lines)


def test_annotations_say_what_was_meant(tmp_path: Path) -> None:
    nasty = Finding("creep", "50% of\nit: a, b", "v")
    (line,) = github.commands(gate(tmp_path, case(nasty)))
    match = re.fullmatch(r"::error title=([^:]*)::(.*)", line)
    assert match
    assert unescaped(match[1]) == "firstbad: v"
    assert unescaped(match[2]) == "micro: 50% of\nit: a, b"


def test_no_more_annotations_than_github_shows(tmp_path: Path) -> None:
    many = gate(tmp_path, *(case(FAULT, name=f"case{n}") for n in range(40)))
    assert len(list(github.commands(many))) == 10


def test_a_file_outside_the_repository_is_not_annotated(tmp_path: Path) -> None:
    finding = replace(FAULT, file="/usr/lib/engine.c")
    (line,) = github.commands(gate(tmp_path, case(finding)))
    assert "file=" not in line


def test_paths_are_from_the_top_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    result = gate(tmp_path / "sub", case(FAULT))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    (line,) = github.commands(result)
    assert line.startswith("::error file=sub/engine.c,line=12,")


def test_published_where_github_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("STEP_SUMMARY", "OUTPUT"):
        monkeypatch.setenv(f"GITHUB_{name}", str(tmp_path / name))
    github.publish(everything(tmp_path))
    captured = capsys.readouterr()
    assert captured.out == ""  # stdout may be JSON
    assert captured.err.count("::error ") == 3
    assert (tmp_path / "OUTPUT").read_text() == f"first-bad={VALUE}\n"
    summary = (tmp_path / "STEP_SUMMARY").read_text("utf-8", "surrogatepass")
    assert summary.startswith("## firstbad gate: ❌ 3 of 4 cases failed")
    assert f"| red | ❌ failed | `{VALUE.replace('_', chr(92) + '_')}` | 1 | 4 |" in summary
    table = [line for line in summary.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {6}


def test_the_summary_stays_under_its_limit(tmp_path: Path) -> None:
    long = Finding("note", "ü" * 40_000)
    text = github.render(gate(tmp_path, *(case(long, name=f"case{n}") for n in range(30))))
    assert len(text.encode()) <= 1 << 20
    assert text.endswith("cut at GitHub's limit of 1 MiB; gate.json has all\n")


def test_code_quality_of_gitlab(tmp_path: Path) -> None:
    entries = json.loads(gitlab.render(everything(tmp_path)))
    assert len(entries) == 6
    assert len({entry["fingerprint"] for entry in entries}) == 6
    for entry in entries:
        assert set(entry) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert entry["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert not entry["location"]["path"].startswith(("/", "./"))
        assert entry["location"]["lines"]["begin"] >= 1
    assert entries[0]["location"] == {"path": "engine.c", "lines": {"begin": 12}}
    assert entries[1]["location"]["path"] == "firstbad.toml"  # the file of this one is not in the repository


def test_fingerprints_outlive_the_numbers(tmp_path: Path) -> None:
    prints = [
        json.loads(gitlab.render(gate(tmp_path, case(replace(FAULT, message=text)))))[0]["fingerprint"]
        for text in ("error 0.5", "error 0.6")
    ]
    assert prints[0] == prints[1]


def test_sarif_by_the_rules_of_its_schema(tmp_path: Path) -> None:
    log = json.loads(sarif.render(everything(tmp_path)))
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert len(run["results"]) == 6
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["region"]["startLine"] >= 1
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[\w./%-]+", uri)
        assert not uri.startswith("/")
    first = run["results"][0]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "engine.c"},
        "region": {"startLine": 12},
    }
    assert first["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == VALUE
    waived = [result for result in run["results"] if result["ruleId"] == "waived"]
    assert [result["suppressions"][0]["kind"] for result in waived] == ["external"]
    assert NASTY.replace("\ud800", "?") in waived[0]["message"]["text"]


def test_history_has_a_line_a_case(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in history.render(everything(tmp_path)).splitlines()]
    assert [line["case"] for line in lines] == ["green", "red", "dead", "new"]
    assert lines[1]["first_bad"] == VALUE
    assert lines[1]["errors"]["encode/model.encoder.conv1"] == 0.5
    assert lines[1]["commit"] == "c0ffee" * 6
