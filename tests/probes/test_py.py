"""Python functions as candidates, by tap: NumPy and JAX (inside jit), with names that say nothing to the reference."""

from __future__ import annotations

import importlib.util
import timeit
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import firstbad
from firstbad.comparison import compare
from firstbad.errors import UsageError
from firstbad.probes import py
from firstbad.reference import whisper
from firstbad.result import Result
from firstbad.run import CaptureOptions, Prepared
from firstbad.session import capture_candidate, capture_reference
from firstbad.tapping import listening
from firstbad.trace import TraceWriter, open_trace

OPTIONS = CaptureOptions(max_tokens=1, threads=2)
LAYER = Path(__file__).parent / "candidates/encoder_layer.py"
WITHOUT_JAX = importlib.util.find_spec("jax") is None

Diff = Callable[[str], Result]


@pytest.fixture
def diff(prepared: Prepared, tmp_path: Path) -> Diff:
    def diff(function: str) -> Result:
        answer = capture_candidate(f"py:{LAYER}:{function}", prepared, tmp_path / "candidate.h5", OPTIONS)
        assert answer.death == ""
        capture_reference(whisper, prepared, tmp_path / "reference.h5", OPTIONS, answer.tokens)
        with open_trace(tmp_path / "reference.h5") as reference, open_trace(tmp_path / "candidate.h5") as other:
            return compare(reference, other, whisper.executor(prepared), budget=3).result

    return diff


def test_numpy_matches(diff: Diff) -> None:
    result = diff("numpy_layer")
    assert result.verdict == "match", result.first_bad
    assert result.coverage.only_candidate == ()
    assert len(result.values["name"]) == 19


def test_numpy_eps_is_named_with_its_line(diff: Diff) -> None:
    result = diff("numpy_eps")
    assert result.first_bad is not None
    assert result.first_bad.value == "model.encoder.layers.0.final_layer_norm"
    assert result.first_bad.cause.kind == "wrong_constant"
    line = LAYER.read_text().splitlines()[result.first_bad.source.line - 1]
    assert 'tap("h2"' in line
    assert len(result.faults) == 1


@pytest.mark.skipif(WITHOUT_JAX, reason="jax is not installed: `pip install jax` to test it")
def test_jax_matches(diff: Diff) -> None:
    result = diff("jax_layer")
    assert result.verdict == "match", result.first_bad
    assert len(result.values["name"]) == 19


@pytest.mark.skipif(WITHOUT_JAX, reason="jax is not installed: `pip install jax` to test it")
def test_jax_scale_is_named(diff: Diff) -> None:
    result = diff("jax_scale")
    assert result.first_bad is not None
    assert result.first_bad.value == "model.encoder.layers.0.self_attn.matmul"
    assert result.first_bad.cause.kind == "wrong_constant"


def test_tap_is_free_when_nobody_listens() -> None:
    array = np.zeros(1 << 20, np.float32)
    seconds = min(timeit.repeat(lambda: firstbad.tap("x", array), number=1000, repeat=5)) / 1000
    assert firstbad.tap("x", array) is array
    assert seconds < 2e-6


def test_another_answer_when_somebody_listens_is_seen(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the gate compares: the answer of the recorded run, and that of a run with no listener."""
    shy = "import firstbad.tapping as t\ndef shy(given): return [7, 8 if t._listener else 9]\n"
    (tmp_path / "shy.py").write_text(shy)
    monkeypatch.setenv("FIRSTBAD_APART", "1")  # as in the child
    argument = f"{tmp_path / 'shy.py'}:shy"
    py.capture(argument, prepared, tmp_path / "t.h5", OPTIONS)
    with open_trace(tmp_path / "t.h5") as trace:
        assert trace.outputs["printed"] == "7 8"
    assert py.bare(argument, prepared, OPTIONS, tmp_path) == "7 9"


def test_taps_of_one_name_are_counted_and_edges_kept(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.h5", role="candidate", engine="py") as writer, listening(writer, "encode"):
        firstbad.tap("a", np.ones(3, np.float32))
        firstbad.tap("a", np.ones(3, np.float16))
        firstbad.step("prefill")
        firstbad.tap("a", np.ones(2, np.float32))
        firstbad.tap("b", np.ones(2, np.float32), reads=("a",))
    with open_trace(tmp_path / "t.h5") as trace:
        names = [(v.step, v.name, v.dtype) for v in trace.graph.values]
        assert names == [
            ("encode", "a", "float32"),
            ("encode", "a_1", "float16"),
            ("prefill", "a", "float32"),
            ("prefill", "b", "float32"),
        ]
        assert [v.name for v in trace.graph.inputs_of(trace.graph.values[3])] == ["a"]
        assert trace.graph.ops[0].file == __file__


def test_wrong_arguments_are_one_line(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"py:FILE\.py:function"):
        py.capture("x", prepared, tmp_path / "t.h5", OPTIONS)
    with pytest.raises(UsageError, match=r"no file `nowhere\.py`"):
        py.capture("nowhere.py:f", prepared, tmp_path / "t.h5", OPTIONS)
