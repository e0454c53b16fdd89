"""Lint of one traced run, on records written by hand; and the verb, by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.cli import main
from firstbad.graph import READ_CHANGED, READ_OK, READ_UNWRITTEN, Graph, Op, Read, Value
from firstbad.lint import Finding, extra, lint_trace
from firstbad.trace import TraceWriter


def value(id_: int, name: str, hash_: int, *, op: int = -1, address: int = 0, **more: Any) -> Value:
    more = {"step": "encode", "kind": "value", "shape": (4,), "dtype": "float32", **more}
    return Value(id_, name=name, op=op, hash=hash_, address=address or 64 * (id_ + 1), extent=16, **more)


def op(id_: int, name: str, reads: list[Read], writes: tuple[int, ...], kind: str = "linear") -> Op:
    return Op(id_, "encode", name, kind, tuple(reads), writes)


def lint(values: list[Value], ops: list[Op], **outputs: Any) -> tuple[Finding, ...]:
    return lint_trace(Graph(tuple(values), tuple(ops)), outputs)


def test_a_plain_run_is_silent() -> None:
    values = [value(0, "in", 1, kind="input"), value(1, "a", 2, op=0), value(2, "b", 3, op=1)]
    ops = [op(0, "a", [Read(0, "x", READ_OK)], (1,)), op(1, "b", [Read(1, "x", READ_OK)], (2,))]
    assert lint(values, ops) == ()


def test_an_op_that_gave_its_input_back() -> None:
    values = [value(0, "in", 1, kind="input"), value(1, "a", 1, op=0)]
    (finding,) = lint(values, [op(0, "a", [Read(0, "x", READ_OK)], (1,))])
    assert (finding.rule, finding.op, finding.other) == ("changed_nothing", "a", "in")
    assert lint(values, [op(0, "a", [Read(0, "x", READ_OK)], (1,), kind="contiguous")]) == ()


def test_an_op_that_wrote_nothing() -> None:
    values = [value(0, "in", 1, kind="input"), value(1, "a", 2, op=0, address=640), value(2, "b", 2, op=1, address=640)]
    reads = [Read(0, "x", READ_OK)]
    (finding,) = lint(values, [op(0, "a", reads, (1,)), op(1, "b", [Read(0, "x", READ_OK)], (2,))])
    assert (finding.rule, finding.op, finding.other) == ("changed_nothing", "b", "a")
    # the same op with the same input may well give the same
    again = [value(1, "a", 2, op=0, address=640), value(2, "a", 2, op=1, address=640, step="decode.0")]
    assert lint([values[0], *again], [op(0, "a", reads, (1,)), op(1, "a", reads, (2,))]) == ()


def test_a_token_may_repeat() -> None:
    token = {"dtype": "int64", "shape": (1,)}
    values = [
        value(0, "in", 1, kind="input"),
        value(1, "argmax", 2, op=0, address=640, **token),
        value(2, "other", 3, kind="input"),
        value(3, "argmax", 2, op=1, address=640, **token),
    ]
    ops = [op(0, "argmax", [Read(0, "x", READ_OK)], (1,)), op(1, "argmax", [Read(2, "x", READ_OK)], (3,))]
    assert lint(values, ops) == ()


def test_reads_of_bytes_that_somebody_changed() -> None:
    values = [value(i, name, i + 1, op=i - 1) for i, name in enumerate(["in", "a", "b", "c", "d"])]
    good = [op(0, "a", [Read(0, "x", READ_OK)], (1,)), op(1, "b", [Read(1, "x", READ_OK)], (2,))]
    by_write = op(2, "c", [Read(1, "x", READ_CHANGED, overwritten_by=(2,))], (3,))
    (finding,) = lint(values[:4], [*good, by_write])
    assert (finding.rule, finding.op, finding.value, finding.other) == ("in_place", "c", "a", "b")
    silently = op(3, "d", [Read(2, "x", READ_CHANGED)], (4,))
    third = op(2, "c", [Read(2, "x", READ_OK)], (3,))
    (finding,) = lint(values, [*good, third, silently])
    assert (finding.rule, finding.value, finding.other) == ("undeclared_write", "b", "c")


def test_unwritten_bytes_and_changed_weights() -> None:
    values = [value(0, "a", 1, op=0)]
    ops = [op(0, "a", [Read(-1, "x", READ_UNWRITTEN, extent=128)], (0,))]
    assert [f.rule for f in lint(values, ops, weights_changed=["fc1.weight"])] == ["weight_changed", "unwritten"]


def fault(name: str, **detail: str) -> dict[str, Any]:
    return {"value": name, "step": "encode", "sites": [{"step": "encode"}], "cause": {"detail": detail}}


def test_a_finding_stands_beside_the_fault_that_it_predicts() -> None:
    unread = Finding("never_read", "encode", "norm", "norm", "norm is made and nobody reads it")
    rows = extra([unread], [fault("gelu"), fault("v_proj", input="norm", read="add")])
    assert [row["fault"] for row in rows] == ["v_proj"]
    elsewhere = Finding("never_read", "decode", "norm", "norm", "norm is made and nobody reads it")
    assert [row["fault"] for row in extra([elsewhere], [fault("v_proj", input="norm")])] == [""]


def test_the_verb_on_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.h5"
    with TraceWriter(path, role="candidate", engine="exec", meta={}) as writer:
        given = value(0, "in", 7, kind="input")
        writer.value(given, np.ones(4, np.float32))
        writer.value(value(1, "a", 7, op=0), np.ones(4, np.float32))
        writer.op(op(0, "a", [Read(0, "x", READ_OK)], (1,)))
        writer.close(complete=True)
    assert main(["lint", str(path)]) == 0
    assert "changed_nothing (encode): a gave back in bit for bit" in capsys.readouterr().out
    assert main(["lint", str(path), "--strict", "--json"]) == 1
    assert [f["rule"] for f in json.loads(capsys.readouterr().out)] == ["changed_nothing"]


def test_the_verb_on_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Path(__file__).parents[2] / "case_studies" / "whisper_buffer_wiring" / "plan.broken.json"
    assert main(["lint", str(plan)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("siblings (encode): model.encoder.layers.3.self_attn.v_proj has the layer before's add_1")
    assert "1 finding in the plan" in said
    assert main(["lint", str(plan.with_name("nowhere.json"))]) == 2
