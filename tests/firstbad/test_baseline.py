"""Baselines: what is written is read, and a file that no run made is one clear line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from firstbad.baseline import Baseline, InputRecord, from_text, merged, read, rounded, to_text
from firstbad.errors import UsageError
from firstbad.measured import Row


def row(name: str = "a.q_proj", step: str = "encode", error: float = 0.5, samples: int = 1000) -> Row:
    errors = (error,) * 6
    return Row(step, name, "linear", (1, "n", 64), "float32", (1, 0, 2), False, errors, (1.0,) * 6, samples)


def baseline(*rows: Row, inputs: tuple[InputRecord, ...] = (InputRecord("made:0", "", (1, 2)),)) -> Baseline:
    rows = rows or (row(), Row("encode", "a.max", "argmax", (1,), "int64", (), True, (), ()))
    return Baseline(
        case="micro",
        model="a model",
        weights="f00",
        weights_compared=3,
        reads_checked=True,
        repeats=3,
        environment={"torch": "2.13.0", "cores": "2"},
        inputs=inputs,
        rows=rows,
        highest={r.key: r.error for r in rows},
    )


TEXT = to_text(baseline())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "micro.jsonl").write_text(TEXT, "utf-8")
    assert read(tmp_path / "micro.jsonl") == baseline()
    assert read(tmp_path / "none.jsonl") is None


def test_three_digits_and_one_line_a_value() -> None:
    text = to_text(baseline(row(error=0.123456)))
    assert text.count("\n") == 1 + 1 + 1 + 1 + 1  # head, environment, input, value, foot
    assert "0.123," in text
    assert "0.1234" not in text
    assert rounded(baseline(row(error=0.123456))).rows[0].error[0] == 0.123


def test_line_ends_of_windows_change_nothing() -> None:
    assert from_text(TEXT.replace("\n", "\r\n"), "x") == baseline()


CONFLICT = TEXT.replace('{"value"', '<<<<<<< HEAD\n{"value"', 1)

HOSTILE = {
    "edited": (TEXT.replace("0.5", "0.9", 1), "was edited or merged"),
    "a line taken out": ("\n".join(line for line in TEXT.split("\n") if "argmax" not in line), "edited or merged"),
    "newer": (TEXT.replace('"baseline": 1', '"baseline": 2'), "has schema 2, this firstbad reads 1: update firstbad"),
    "older": (TEXT.replace('"baseline": 1', '"baseline": 0'), "has schema 0, this firstbad reads 1: make it again"),
    "cut in a line": (TEXT[: len(TEXT) // 2], "is cut or edited at line"),
    "cut after a line": (TEXT[: TEXT.rindex('{"foot"')], "is cut: its last line is no foot"),
    "conflict": (CONFLICT, "has a merge conflict at line 4"),
    "empty": ("", "is empty"),
    "other JSON": ('{"a": 1}\n', "is no baseline of firstbad"),
    "no JSON": ("hello\n", "is cut or edited at line 1"),
    "a list": ("[1]\n", "is cut or edited at line 1"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_no_run_made(what: str, tmp_path: Path) -> None:
    text, words = HOSTILE[what]
    path = tmp_path / "micro.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "micro.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not text"):
        read(tmp_path / "micro.jsonl")


def test_a_partial_run_keeps_what_it_did_not_see() -> None:
    two = (InputRecord("made:0", "", (1, 2)), InputRecord("made:1", "", (3,)))
    old = baseline(row("a"), row("b", "prefill"), inputs=two)
    new = baseline(row("a", error=0.7), inputs=(InputRecord("made:0", "", (9,)),))
    kept = merged(old, new, partial=True)
    assert [(one.name, one.tokens) for one in kept.inputs] == [("made:0", (9,)), ("made:1", (3,))]
    assert [(r.step, r.name, r.error[0]) for r in kept.rows] == [("encode", "a", 0.7), ("prefill", "b", 0.5)]
    assert set(kept.highest) == {("encode", "a"), ("prefill", "b")}
    assert merged(old, new, partial=False) == new
    assert merged(None, new, partial=True) == new


def test_a_value_that_a_whole_step_lost_is_gone() -> None:
    old, new = baseline(row("a"), row("b")), baseline(row("a"))
    assert [r.name for r in merged(old, new, partial=True).rows] == ["a"]


def test_numbers_that_are_missing_are_told() -> None:
    broken = replace(baseline(), highest={("encode", "a.q_proj"): (0.5, 0.5)})
    with pytest.raises(UsageError, match="lacks something"):
        from_text(to_text(broken), "x")
