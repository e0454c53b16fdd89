"""`firstbad show` on a small trace with all kinds of values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from firstbad.cli import main
from firstbad.graph import Op, Read, Value
from firstbad.trace import TraceWriter

Out = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.h5"
    scores = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    scores[0, 0, 0, 0], scores[0, 1, 2, 3] = np.nan, -np.inf
    kept: list[tuple[Value, np.ndarray | None]] = [
        (Value(0, "weights", "model.fc.weight", "weight", (2, 2), "float32"), None),
        (Value(1, "encode", "input_features", "input", (1, 3), "float32"), np.array([[-3, 0, 4]], np.float32)),
        (Value(2, "encode", "model.attn.matmul", "value", (1, 2, 3, 4), "float32", op=0), scores),
        (Value(3, "encode", "model.attn.view", "view", (24,), "float32"), None),
        (Value(4, "encode", "model.attn.mul", "value", (1, 2, 3, 4), "float32", op=1, same_as=2), None),
        (Value(5, "decode.0", "model.attn.matmul", "value", (2,), "bfloat16"), np.array([0x3F80, 0xC000], np.uint16)),
        (Value(6, "decode.0", "generate.done:bool", "value", (), "bool"), np.array(True)),
    ]
    with TraceWriter(path, role="candidate", engine="c") as writer:
        for value, array in kept:
            writer.value(value, array)
        writer.op(Op(0, "encode", "model.attn.matmul", "matmul", (Read(1, "x"),), (2,), {}, "kernels.c", 42))
        writer.op(Op(1, "encode", "model.attn.mul", "mul", (Read(2, "x"),), (4,)))
        writer.outputs({"text": "hello", "tokens": [7]})
    return str(path)


def show(capsys: Out, *words: str) -> str:
    assert main(["show", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_list_in_execution_order(trace: str, capsys: Out) -> None:
    first, *lines = show(capsys, trace).splitlines()
    assert first == f"{trace}: candidate c, 2 ops, complete"
    rows = [line.split() for line in lines[:-2]]
    assert [row[:5] for row in rows] == [
        ["encode", "input_features", "1x3", "float32", "input"],
        ["encode", "model.attn.matmul", "1x2x3x4", "float32", "matmul"],
        ["encode", "model.attn.mul", "1x2x3x4", "float32", "mul"],
        ["decode.0", "model.attn.matmul", "2", "bfloat16", "value"],
        ["decode.0", "generate.done:bool", "scalar", "bool", "value"],
    ]
    assert rows[0][5:] == ["min", "-3", "max", "4", "rms", "2.887"]  # sqrt(25 / 3)
    assert rows[1][-4:] == ["1", "NaN,", "1", "inf"]
    assert rows[3][5:] == ["min", "-2", "max", "1", "rms", "1.581"]  # sqrt(5 / 2)
    assert lines[-2] == "5 values; 2 views and weights not shown: --all"


def test_all_and_filters(trace: str, capsys: Out) -> None:
    assert "model.fc.weight" in show(capsys, trace, "--all")
    assert "7 values" in show(capsys, trace, "--all")
    assert "not stored: a view of another value" in show(capsys, trace, "--all", "--step", "encode")
    assert "2 values" in show(capsys, trace, "--step", "decode.0")
    assert "2 values" in show(capsys, trace, "model.attn.m*", "--step", "encode")
    assert "2 values" in show(capsys, trace, "attn.matmul")
    assert "rms" not in show(capsys, trace, "--no-stats")


def test_one_value(trace: str, capsys: Out) -> None:
    out = show(capsys, trace, "attn.matmul", "--step", "encode")
    for text in (
        "[1, 2, 3, 4] float32",
        "matmul kernels.c:42",
        "reads       input_features",
        "read by     model.attn.mul",
        "/values/encode/model/attn/matmul",
        "1 at [0, 0, 0, 1]",
        "22 at [0, 1, 2, 2]",
        "1 NaN, 1 inf",
        "[0, 0, :3, :4]  (another: --slice INDEX)",
    ):
        assert text in out
    assert show(capsys, trace, "/values/encode/model/attn/matmul") == out


def test_a_slice(trace: str, capsys: Out) -> None:
    out = show(capsys, trace, "attn.matmul", "--step", "encode", "--slice", "0,1,:2,1:3")
    assert out.endswith("[0, 1, :2, 1:3]\n    [[13. 14.]\n     [17. 18.]]\n")


def test_what_is_stored_elsewhere(trace: str, capsys: Out) -> None:
    out = show(capsys, trace, "model.attn.mul")
    assert "same bytes as model.attn.matmul" in out
    assert "22 at [0, 1, 2, 2]" in out
    assert "not stored: not captured" in show(capsys, trace, "model.fc.weight", "--all")


def test_json(trace: str, capsys: Out) -> None:
    document = json.loads(show(capsys, trace, "--json"), parse_constant=pytest.fail)
    assert document["complete"] is True
    assert document["outputs"] == {"text": "hello", "tokens": [7]}
    assert [value["id"] for value in document["values"]] == [1, 2, 4, 5, 6]
    assert document["values"][1]["source"] == "kernels.c:42"
    one = json.loads(show(capsys, trace, "attn.matmul", "--step", "encode", "--json", "--slice", "0,:,::2,-1"))["value"]
    assert one["elements"] == [[3, 11], [15, "-inf"]]
    assert one["nans"] == one["infs"] == 1


def test_tree(trace: str, capsys: Out) -> None:
    lines = show(capsys, trace, "--tree", "--step", "encode").splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["encode", "├─ input_features", "└─ model.attn", "", ""]
    assert "█     █        █" in lines[2]
    assert "├─ matmul" in lines[4]
    assert "1x2x3x4" in lines[4]


def test_two_traces_beside_each_other(trace: str, tmp_path: Path, capsys: Out) -> None:
    other = str(tmp_path / "other.h5")
    with TraceWriter(other, role="reference", engine="torch") as writer:
        writer.value(
            Value(0, "encode", "input_features", "input", (1, 3), "float32"), np.array([[-3, 0, 5]], np.float32)
        )
    out = show(capsys, trace, "--with", other)
    assert "input_features      differs by 0.17, at most 1 at [0, 2]" in out
    assert "model.attn.matmul   only here" in out
    one = show(capsys, trace, "input_features", "--with", other, "--heat")
    assert "0.171 of its size, at most 1 at [0, 2]" in one
    assert "reference   [0:1, 0:3]" in one
    assert one.count("to ±4") == 2  # one scale for both
    record = json.loads(show(capsys, trace, "--with", other, "--json"))["values"][0]
    assert (record["largest"], record["index"], record["why"]) == (1.0, [0, 2], "")


def test_a_heat_map(trace: str, capsys: Out) -> None:
    lines = show(capsys, trace, "attn.matmul", "--step", "encode", "--heat").splitlines()
    assert lines[-7].strip().startswith("candidate   each character the largest of its block, to ±22")
    assert "?" in "".join(lines[-6:])
    assert "!" in "".join(lines[-6:])


def test_a_dead_run_says_so(tmp_path: Path, capsys: Out) -> None:
    writer = TraceWriter(tmp_path / "t.h5", role="candidate", engine="c")
    writer.value(Value(0, "encode", "x", "input", (2,), "float32"), np.zeros(2, np.float32))
    writer.close(complete=False, death="killed by SIGSEGV in op 1")
    assert "incomplete: killed by SIGSEGV in op 1" in show(capsys, str(tmp_path / "t.h5"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["model.atn.matmul"], 2, "did you mean `model.attn.matmul`?"),
        (["zzz"], 2, "no value `zzz` in"),
        (["--step", "encod"], 2, "did you mean `encode`?"),
        (["attn.matmul", "--slice", "0"], 2, "--slice needs one value"),
        (["attn.matmul", "--heat"], 2, "--heat needs one value"),
        (["input_features", "--slice", "5"], 2, "5 is outside of shape [1, 3]"),
        (["model.fc.weight", "--slice", "0"], 2, "`model.fc.weight` of weights is not stored"),
    ],
)
def test_wrong_usage(words: list[str], code: int, message: str, trace: str, capsys: Out) -> None:
    assert main(["show", trace, *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_no_trace(tmp_path: Path, capsys: Out) -> None:
    assert main(["show", str(tmp_path / "none.h5")]) == 3
    (tmp_path / "text.h5").write_text("not HDF5")
    assert main(["show", str(tmp_path / "text.h5")]) == 3
    assert capsys.readouterr().err.count("firstbad: error: ") == 2
