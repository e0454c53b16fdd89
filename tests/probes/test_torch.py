"""torch as a candidate: correct variants match, and what a user's file changed is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from firstbad.comparison import compare
from firstbad.errors import UsageError
from firstbad.probes import torch as probe
from firstbad.reference import causal, whisper
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_candidate, capture_reference
from firstbad.trace import open_trace

OPTIONS = CaptureOptions(max_tokens=3, threads=2)
BUGS = Path(__file__).parent / "candidates/whisper_bugs.py"

Diff = Callable[[str], Result]


def diffed(candidate: str, room: ModuleType, prepared: Prepared, folder: Path) -> Result:
    answer = capture_candidate(candidate, prepared, folder / "candidate.h5", OPTIONS)
    capture_reference(room, prepared, folder / "reference.h5", OPTIONS, answer.tokens)
    with open_trace(folder / "reference.h5") as reference, open_trace(folder / "candidate.h5") as other:
        return compare(reference, other, room.executor(prepared), budget=3).result


@pytest.fixture
def diff(prepared: Prepared, tmp_path: Path) -> Diff:
    return lambda candidate: diffed(candidate, whisper, prepared, tmp_path)


@pytest.mark.parametrize(
    "argument",
    ["", "attn=sdpa", "dtype=bfloat16", "dtype=float16", "attn=sdpa,dtype=bf16", "compile=aot_eager"],
)
def test_correct_variants_match(diff: Diff, argument: str) -> None:
    result = diff(f"torch:{argument}")
    assert result.verdict == "match", result.first_bad
    assert result.coverage.weights_compared > 80
    assert result.coverage.weights_differ == ()
    assert result.coverage.inputs_differ == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # inductor imports what torch itself deprecates
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_compiled_by_inductor_matches(diff: Diff) -> None:
    result = diff("torch:compile=inductor")
    assert result.verdict == "match", result.first_bad
    layers = [name for name in result.values["name"] if ".layers." in name]
    assert layers, "values at the boundaries of blocks are compared"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("argument", ["device=cuda", "device=cuda,dtype=bfloat16,attn=sdpa"])
def test_cuda_matches(diff: Diff, argument: str) -> None:
    assert diff(f"torch:{argument}").verdict == "match"


def test_a_healthy_file_matches_in_its_own_process(diff: Diff) -> None:
    assert diff(f"torch:{BUGS}:healthy").verdict == "match"


@pytest.mark.parametrize(
    ("bug", "value", "step"),
    [
        ("mask_off_by_one", "model.decoder.layers.0.self_attn.add", "prefill"),
        ("norm_eps", "model.encoder.layers.1.final_layer_norm", "encode"),
        ("late_slot", "model.decoder.layers.0.self_attn.matmul_1", "decode.0"),
    ],
)
def test_what_a_file_changed_is_named(diff: Diff, bug: str, value: str, step: str) -> None:
    result = diff(f"torch:{BUGS}:{bug}")
    assert result.first_bad is not None
    assert (result.first_bad.value, result.first_bad.step) == (value, step)
    if bug == "norm_eps":
        assert result.first_bad.cause.kind == "wrong_constant"
        assert "0.001" in json.dumps(result.first_bad.cause.detail)


@pytest.fixture(scope="module")
def batch() -> Prepared:
    return causal.prepare(ModelSpec("causal", random_weights=1, tokens=((5, 6, 7, 8), (9, 10))))


@pytest.mark.parametrize("argument", ["", "attn=sdpa", "dtype=bfloat16"])
def test_a_batch_with_left_padding_matches(batch: Prepared, tmp_path: Path, argument: str) -> None:
    """Fully masked rows are zero under sdpa and a mean in eager: nobody reads them."""
    result = diffed(f"torch:{argument}", causal, batch, tmp_path)
    assert result.verdict == "match", result.first_bad


def test_a_padding_mask_that_is_ignored_is_named(batch: Prepared, tmp_path: Path) -> None:
    bugs = BUGS.with_name("language_bugs.py")
    result = diffed(f"torch:{bugs}:padding_ignored", causal, batch, tmp_path)
    assert result.first_bad is not None
    assert result.first_bad.step == "prefill"
    assert result.first_bad.value == "transformer.to:bool"
    assert result.first_bad.cause.kind == "wrong_input"
    assert "attention_mask" in result.first_bad.cause.statement


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("devise=cuda", "did you mean `device`"),
        ("dtype=int3", "no dtype `int3`"),
        ("attn=nonsense", "attention `nonsense`"),
        ("device=nowhere", "no device `nowhere`"),
        ("compile=nothing", "no backend `nothing`"),
        ("missing.py:f", "no file `missing.py`"),
        (f"{BUGS}:norm_epz", "did you mean `norm_eps`"),
    ],
)
def test_wrong_arguments_are_one_line(prepared: Prepared, tmp_path: Path, argument: str, said: str) -> None:
    with pytest.raises(UsageError, match="(?s)" + said) as error:
        probe.capture(argument, prepared, tmp_path / "t.h5", OPTIONS)
    assert "\n" not in str(error.value)


def test_an_exception_of_the_file_is_the_candidates_death(prepared: Prepared, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(
        "def factory(model):\n"
        "    def forward(*_, **__):\n"
        "        raise ValueError('no such kernel')\n"
        "    model.model.decoder.layers[0].fc1.forward = forward\n"
        "    return model\n"
    )
    output = probe.capture(f"{tmp_path / 'raises.py'}:factory", prepared, tmp_path / "t.h5", OPTIONS)
    assert not output.complete
    assert output.death == "ValueError: no such kernel"
    with open_trace(tmp_path / "t.h5") as trace:
        assert trace.death == output.death
        assert trace.graph.by_key["encode", "model.encoder.layer_norm"]


def test_the_run_that_nobody_looks_at_gives_the_same_tokens(prepared: Prepared, tmp_path: Path) -> None:
    probe.capture("dtype=bfloat16", prepared, tmp_path / "t.h5", OPTIONS)
    with open_trace(tmp_path / "t.h5") as trace:
        assert trace.outputs["printed"]
        assert probe.bare("dtype=bfloat16", prepared, OPTIONS, tmp_path) == trace.outputs["printed"]


def test_a_crash_of_the_file_is_the_candidates_death(prepared: Prepared, tmp_path: Path) -> None:
    (tmp_path / "crashes.py").write_text(
        "import os, signal\n"
        "def factory(model):\n"
        "    model.model.decoder.layers[0].fc1.forward = lambda x: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return model\n"
    )
    output = probe.capture(f"{tmp_path / 'crashes.py'}:factory", prepared, tmp_path / "t.h5", OPTIONS)
    assert output.death == "killed by SIGSEGV"
    with open_trace(tmp_path / "t.h5") as trace:
        assert not trace.complete
