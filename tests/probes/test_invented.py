"""Engines of layouts that nobody told firstbad of: healthy they match, and one fault in each is named at its value."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from firstbad.comparison import Comparison, compare
from firstbad.probes.py import Given
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_reference, meta_of, prepare
from firstbad.tapping import listening
from firstbad.trace import TraceWriter, open_trace
from tests.probes.candidates import invented

MODELS = {
    "llama": ModelSpec("causal:llama", random_weights=1, tokens=((345, 32, 87, 471, 9, 112, 300),)),
    "batch": ModelSpec("causal:llama", random_weights=1, tokens=((345, 32, 87, 471, 9), (300, 6, 77, 2, 41))),
    "vit": ModelSpec("vit", random_weights=1),
}


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[ModuleType, Prepared]]:
    return {name: prepare(spec) for name, spec in MODELS.items()}


def run(models: dict[str, tuple[ModuleType, Prepared]], name: str, fault: bool, folder: Path) -> Comparison:
    room, prepared = models[invented.ENGINES[name][0]]
    options = CaptureOptions(max_tokens=1 if invented.ENGINES[name][0] == "batch" else 2, threads=1)
    given = Given(prepared.inputs, prepared.weights, prepared.config, prepared.prompt, options.max_tokens)
    with TraceWriter(folder / "c.h5", role="candidate", engine="py", meta=meta_of(prepared)) as writer:
        with listening(writer, prepared.first_step) as listener:
            for key, array in prepared.inputs.items():
                listener.value(key, array, kind="input")
            tokens = invented.run(name, given, fault)
        writer.outputs({"tokens": tokens, "text": ""} if tokens else {})
        writer.close(complete=True)
    capture_reference(room, prepared, folder / "r.h5", options, tuple(tokens or ()))
    with open_trace(folder / "r.h5") as reference, open_trace(folder / "c.h5") as candidate:
        return compare(reference, candidate, room.executor(prepared), budget=0)


@pytest.mark.parametrize("name", invented.ENGINES)
def test_a_healthy_engine_matches(models: dict[str, tuple[ModuleType, Prepared]], name: str, tmp_path: Path) -> None:
    done = run(models, name, False, tmp_path)
    assert done.result.verdict == "match", done.result.first_bad
    assert len(done.alignment.pairs) == invented.ENGINES[name][2], done.result.coverage.only_candidate


@pytest.mark.parametrize("name", invented.ENGINES)
def test_its_fault_is_named(models: dict[str, tuple[ModuleType, Prepared]], name: str, tmp_path: Path) -> None:
    done = run(models, name, True, tmp_path)
    assert done.result.first_bad is not None
    assert tuple(fault.value for fault in done.result.faults) == invented.ENGINES[name][3]
