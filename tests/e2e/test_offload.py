"""A reference larger than the memory that the process may have, and the same answer as with its weights in memory."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import Command

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def offloading(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return pytest.importorskip("offloading")


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all of a process's own memory on Linux alone")
def test_a_model_of_twice_the_memory(offloading: ModuleType, tmp_path: Path) -> None:
    """318 MB of weights where half of that is all there is beyond the imports; one matrix in float64 is 67 MB."""
    size = offloading.make(tmp_path / "model", **offloading.SMALL)
    assert size > 300e6
    done = offloading.child(tmp_path / "model", str(size // 2))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["verdict"] == "match"
    assert found["compared"]["prefill"] > 40
    assert found["weights compared"] > 20
    assert found["anonymous"] < found["limit"] == found["imports"] + size // 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all of a process's own memory on Linux alone")
def test_a_model_of_twice_all_memory(offloading: ModuleType, tmp_path: Path) -> None:
    size = offloading.make(tmp_path / "model", **offloading.LARGE)
    limit = f"={size // 2}"
    done = offloading.child(tmp_path / "model", limit)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == "match"
    whole = offloading.child(tmp_path / "model", limit, "whole")
    assert whole.returncode != 0, "the limit does not bind"


def test_the_same_answer_from_the_command_line(offloading: ModuleType, firstbad: Command, tmp_path: Path) -> None:
    """A weight of the candidate is wrong: named alike, and the traces tell later that weights are to be mapped."""
    offloading.make(tmp_path / "model", hidden=128, wide=192, layers=1, vocabulary=60)
    wrong = tmp_path / "wrong"
    shutil.copytree(tmp_path / "model", wrong)
    data = bytearray((wrong / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:start])["model.layers.0.mlp.up_proj.weight"]["data_offsets"]
    data[start + begin : start + end] = data[start + begin : start + end][::-1]  # NaN and infinities among them
    (wrong / "model.safetensors").write_bytes(data)
    asked = ("--tokens", "3,5,9", "--max-tokens", 2)
    theirs = tmp_path / "candidate.h5"
    assert firstbad("capture", "--model", wrong, *asked, "-o", theirs).code == 0
    answers = []
    for way in ((), ("--offload",)):
        ours = tmp_path / "reference.h5"
        said = firstbad("capture", "--reference", "--model", tmp_path / "model", *asked, *way, "-o", ours)
        assert said.code == 0, said.err
        said = firstbad("compare", ours, theirs, "--json")
        assert said.code == 1, said.err
        result = json.loads(said.out)
        answers.append([(f["value"], f["local_error"], f["times_noise"]) for f in result["faults"]])
        assert result["environment"]["reference"]["spec"]["offload"] is bool(way)
    assert answers[0] == answers[1]
    assert answers[0][0][0] == "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    "model", [("--model", "llama", "--random-weights", 1), ("--model", "whisper", "--random-weights", 1)]
)
def test_a_model_that_no_file_holds(firstbad: Command, tmp_path: Path, model: tuple[str, ...]) -> None:
    said = firstbad("capture", "--reference", *model, "--offload", "-o", tmp_path / "x.h5")
    assert said.code == 2
    assert "--offload leaves weights in safetensors files, and this model has none" in said.err
