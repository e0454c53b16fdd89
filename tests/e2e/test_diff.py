"""`firstbad diff`, as a user types it: exit codes, both streams, the folder, the JSON, the files for other tools."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import jsonschema
import numpy as np
import pytest

from firstbad.probes import edits
from firstbad.probes.plan import save
from firstbad.result import SCHEMA
from firstbad.schema import validate

from .conftest import MICRO, Bench, Command, Said

WIRE = ("model.encoder.layers.1.self_attn.v_proj", "model.encoder.layers.0.add_1")


def broken(micro: Bench, folder: Path) -> str:
    op, wired = WIRE
    save(edits.rewire(micro.plan, "encode", op, "x", wired), folder / "plan.json")
    return f"c:{folder / 'plan.json'}"


def document(said: Said) -> Any:
    """What --json printed, checked against the schema; nothing else is on stdout."""
    data = json.loads(said.out, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(data)
    return data


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text("utf-8")))


def test_a_healthy_engine(tmp_path: Path, firstbad: Command) -> None:
    said = firstbad("diff", *MICRO, "--max-tokens", 4, "-o", tmp_path / "out")
    assert said.code == 0
    assert said.err == ""
    assert "✓ match  all 255 values are right given their own inputs" in said.out
    assert "encode 37, prefill 59, decode 159" in said.out
    assert "of the candidate's 260 values none was left out" in said.out
    times = next(line for line in said.out.splitlines() if line.startswith("time "))
    for part in ("import and load", "candidate", "reference", "replay", "writing reference.h5"):
        assert part in times
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert left == {"candidate.h5", "reference.h5", "result.json", "report.html"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_wrong_wire(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    op, wired = WIRE
    out = tmp_path / "out"
    said = firstbad("diff", *MICRO, "--max-tokens", 4, "--candidate", broken(micro, tmp_path), "-o", out)
    assert said.code == 1
    assert said.err == ""
    assert f"✗ diverged  first bad: {op} (encode), op linear, probes/engine/matmul.c:" in said.out
    cause = next(line for line in said.out.splitlines() if line.startswith("cause "))
    assert "wrong_input" in cause
    assert wired in cause
    assert (out / "report.html").is_file()


def test_json_is_alone_on_stdout_and_keeps_to_its_schema(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    said = firstbad("diff", *MICRO, "--max-tokens", 2, "-o", tmp_path / "healthy", "--json")
    assert said.code == 0
    healthy = document(said)
    assert healthy["verdict"] == "match"
    assert healthy["first_bad"] is None
    assert healthy["coverage"]["only_candidate"] == []
    said = firstbad(
        "diff", *MICRO, "--max-tokens", 2, "--candidate", broken(micro, tmp_path), "-o", tmp_path / "broken", "--json"
    )
    assert said.code == 1
    result = document(said)
    (fault,) = result["faults"]
    assert fault == result["first_bad"]
    assert (fault["value"], fault["step"]) == (WIRE[0], "encode")
    assert fault["cause"]["kind"] == "wrong_input"
    assert (fault["cause"]["detail"]["input"], fault["cause"]["detail"]["read"]) == (
        "model.encoder.layers.1.self_attn_layer_norm",
        WIRE[1],
    )
    assert result == json.loads((tmp_path / "broken" / "result.json").read_text("utf-8"))


def test_both_traces_open_in_other_readers(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    said = firstbad(
        "diff", *MICRO, "--max-tokens", 2, "--candidate", broken(micro, tmp_path), "-o", tmp_path / "out", "--json"
    )
    assert said.code == 1
    ours, theirs = (tmp_path / "out" / name for name in ("reference.h5", "candidate.h5"))
    for path in (ours, theirs):
        assert validate(path) == []
    with h5py.File(ours) as a, h5py.File(theirs) as b:
        first = f"values/encode/{WIRE[0].replace('.', '/')}"
        assert a[first].shape == b[first].shape
        assert not np.allclose(a[first][()], b[first][()], atol=0.1)
        shared: list[str] = []
        b["values"].visititems(lambda name, item: shared.append(name) if isinstance(item, h5py.Dataset) else None)
        assert [name for name in shared if name not in a["values"]] == []
    if shutil.which("h5diff") is None:
        pytest.skip("h5diff is not installed: hdf5-tools")
    same = f"/values/encode/{'model.encoder.layers.0.add_1'.replace('.', '/')}"
    assert h5diff(ours, theirs, same) == 0
    assert h5diff(ours, theirs, f"/{first}") == 1


def h5diff(a: Path, b: Path, dataset: str) -> int:
    """0 where no element differs by more than 1e-3, 1 where one does; 2 and more: it could not read a file."""
    words = ["h5diff", "-q", "-d", "1e-3", a, b, dataset]
    return subprocess.run(words, capture_output=True, check=False).returncode


def test_only_the_steps_asked_for(tmp_path: Path, firstbad: Command) -> None:
    said = firstbad("diff", *MICRO, "--max-tokens", 3, "--steps", "prefill,decode.1", "-o", tmp_path, "--json")
    assert said.code == 0
    assert set(document(said)["values"]["step"]) == {"prefill", "decode.1"}
    said = firstbad("diff", *MICRO, "--max-tokens", 3, "--steps", "prefil", "-o", tmp_path)
    assert (said.code, said.out) == (2, "")
    assert "no step `prefil` in this run: did you mean `prefill`?" in said.err
