"""A dump that C-Kernel-Engine's own writer made: read whole, aligned without a map, and a wrong record in it named."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from firstbad.comparison import Comparison, compare
from firstbad.errors import CompareError
from firstbad.probes import dump
from firstbad.probes.dump_cke import HEADER
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_reference, prepare
from firstbad.trace import open_trace

DATA = Path(__file__).parents[1] / "data/cke"
OPTIONS = CaptureOptions(max_tokens=2)


@pytest.fixture(scope="module")
def model() -> tuple[ModuleType, Prepared]:
    return prepare(ModelSpec("causal:llama", random_weights=1, tokens=((345, 32, 87, 471, 9, 112, 300),)))


def compared(model: tuple[ModuleType, Prepared], folder: Path, scratch: Path) -> Comparison:
    room, prepared = model
    output = dump.capture(str(folder), prepared, scratch / "c.h5", OPTIONS)
    capture_reference(room, prepared, scratch / "r.h5", OPTIONS, output.tokens)
    with open_trace(scratch / "r.h5") as reference, open_trace(scratch / "c.h5") as candidate:
        return compare(reference, candidate, room.executor(prepared), budget=0)


def test_its_prompt_and_its_decoded_token_match(model: tuple[ModuleType, Prepared], tmp_path: Path) -> None:
    done = compared(model, DATA, tmp_path)
    assert done.result.verdict == "match", done.result.first_bad
    assert done.result.coverage.only_candidate == ()
    assert done.result.coverage.compared == {"prefill": 33, "decode": 33}
    found = {p.reference.name: p.candidate.name for p in done.alignment.pairs if p.reference.step == "decode.0"}
    assert found["model.layers.1.mlp.up_proj"] == "layer.1.ffn_gate_up"
    assert found["model.layers.0.self_attn.add_1"] == "layer.0.Kcur_rope"
    assert found["lm_head"] == "logits"


def record(data: bytes, name: bytes, layer: int) -> tuple[int, int]:
    """Where the first such record's numbers begin, and how many there are."""
    at = 0
    while at < len(data):
        head = HEADER.unpack_from(data, at)
        if (head[2], head[3].rstrip(b"\0")) == (layer, name):
            return at + HEADER.size, head[10]
        at += HEADER.size + 4 * head[10]
    raise AssertionError(name)


def test_a_wrong_record_is_named(model: tuple[ModuleType, Prepared], tmp_path: Path) -> None:
    """One number of the last value: of what nothing follows, nothing else can say that it was right."""
    shutil.copytree(DATA, tmp_path / "d")
    data = bytearray((tmp_path / "d/dump.bin").read_bytes())
    at, count = record(data, b"logits", -1)
    numbers = np.frombuffer(data, "<f4", count, at).copy()
    numbers[100] += 0.5
    data[at : at + 4 * count] = numbers.tobytes()
    (tmp_path / "d/dump.bin").write_bytes(data)
    result = compared(model, tmp_path / "d", tmp_path).result
    assert result.first_bad is not None
    assert (result.first_bad.value, result.first_bad.step) == ("lm_head", "prefill")


@pytest.mark.parametrize("at", [60, 128 + 50, 40_000])
def test_a_dump_that_was_cut_is_one_line(model: tuple[ModuleType, Prepared], tmp_path: Path, at: int) -> None:
    (tmp_path / "dump.bin").write_bytes((DATA / "dump.bin").read_bytes()[:at])
    with pytest.raises(CompareError, match="cut short") as error:
        dump.capture(str(tmp_path), model[1], tmp_path / "c.h5", OPTIONS)
    assert "\n" not in str(error.value)
