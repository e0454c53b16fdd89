"""Engines of another cut than the model: products fused or apart, no batch, hidden names, extra values. What is aligned
is held against a map made by hand, and a fault is named at its value."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from firstbad.comparison import Comparison, compare
from firstbad.probes.py import Given
from firstbad.reference import causal
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_reference, meta_of
from firstbad.tapping import listening
from firstbad.trace import TraceWriter, open_trace

OPTIONS = CaptureOptions(max_tokens=2, threads=2)
MODELS = {"llama": "causal:llama", "gpt2": "causal"}


@pytest.fixture(scope="module")
def engines() -> ModuleType:
    path = Path(__file__).parent / "candidates/fused.py"
    spec = importlib.util.spec_from_file_location("fused", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models() -> dict[str, Prepared]:
    prompt = (345, 32, 87, 471, 9, 112, 300, 6, 77)
    spec = ModelSpec("causal", random_weights=1, tokens=(prompt,))
    return {
        name: causal.prepare(ModelSpec(model, random_weights=1, tokens=spec.tokens)) for name, model in MODELS.items()
    }


def hidden(name: str) -> str:
    return "t" + hashlib.sha256(name.encode()).hexdigest()[:8]


def run(engines: ModuleType, models: dict[str, Prepared], name: str, fault: str, folder: Path) -> Comparison:
    prepared = models[name]
    given = Given(prepared.inputs, prepared.weights, prepared.config, prepared.prompt, OPTIONS.max_tokens)
    with TraceWriter(folder / "c.h5", role="candidate", engine="py", meta=meta_of(prepared)) as writer:
        with listening(writer, "prefill") as listener:
            for key, array in prepared.inputs.items():
                listener.value(key, array, kind="input")
            tokens = getattr(engines, name)(given, fault, hidden)
        writer.outputs({"tokens": tokens, "text": ""})
        writer.close(complete=True)
    capture_reference(causal, prepared, folder / "r.h5", OPTIONS, tuple(tokens))
    with open_trace(folder / "r.h5") as reference, open_trace(folder / "c.h5") as candidate:
        return compare(reference, candidate, causal.executor(prepared), budget=0)


@pytest.mark.parametrize("name", MODELS)
def test_everything_is_aligned_and_right(
    engines: ModuleType, models: dict[str, Prepared], name: str, tmp_path: Path
) -> None:
    done = run(engines, models, name, "", tmp_path)
    assert done.result.verdict == "match", done.result.first_bad
    root, truth = ("model.layers", engines.LLAMA) if name == "llama" else ("transformer.h", engines.GPT2)
    meant = {hidden(f"b{i}.{own}"): f"{root}.{i}.{theirs}" for i in (0, 1) for own, theirs in truth.items()}
    found = {p.candidate.name: p.reference.name for p in done.alignment.pairs if p.candidate.name in meant}
    assert found == meant
    parts = {
        p.reference.name: p.candidate.name for p in done.alignment.pairs if p.layout.part or " + " in p.candidate.name
    }
    if name == "llama":
        assert {n for n, of in parts.items() if of == hidden("b1.qkv")} == {
            f"model.layers.1.self_attn.{n}_proj" for n in "qkv"
        }
        assert parts["model.layers.0.mlp.up_proj"] == hidden("b0.gu")
        extra = {hidden(f"b{i}.debug") for i in (0, 1)}
        assert {value for _, value, _ in done.result.coverage.only_candidate} == extra
    else:
        assert parts["transformer.h.1.attn.c_attn.addmm"] == " + ".join(hidden(f"b1.{n}") for n in "qkv")
        assert done.result.coverage.only_candidate == ()


def test_a_product_kept_in_turns_is_no_fault(engines: ModuleType, models: dict[str, Prepared], tmp_path: Path) -> None:
    """Query, key and value side by side in each head, where the model has all queries first: read so, all is right."""
    done = run(engines, models, "gpt2", "turns", tmp_path)
    assert done.result.verdict == "match", done.result.first_bad
    layouts = {p.reference.name: p.layout for p in done.alignment.pairs if p.candidate.name == hidden("b0.qkv")}
    assert layouts["transformer.h.0.attn.c_attn.addmm"].order
    assert any("kept in another order" in note for note in done.result.notes)


FAULTS = {
    ("llama", "eps"): "model.layers.0.input_layernorm.mul_1",
    ("llama", "wire"): "model.layers.1.self_attn.q_proj",
    ("llama", "rope"): "model.layers.0.self_attn.add",
    ("llama", "scale"): "model.layers.0.self_attn.add_2",
    ("llama", "swap"): "model.layers.0.mlp.mul",
    ("llama", "position"): "model.layers.0.self_attn.add",
    ("llama", "split"): "model.layers.0.self_attn.add_1",  # key and value of a group mixed up
    ("gpt2", "split"): "transformer.h.0.attn.c_attn.addmm",  # in one layer of two
    ("gpt2", "unturned"): "transformer.h.0.attn.c_attn.addmm",  # a product in turns that is read as the model's
    ("gpt2", "unbiased"): "transformer.h.0.ln_1",
    ("gpt2", "bias"): "transformer.h.1.mlp.c_fc.addmm",
    ("gpt2", "gelu"): "transformer.h.0.mlp.act.mul_3",
    ("gpt2", "scale"): "transformer.h.0.attn.softmax",
    ("gpt2", "position"): "transformer.add",
    ("gpt2", "query"): "transformer.h.0.attn.c_attn.addmm",
}


QUICK = {("llama", "wire"), ("gpt2", "split"), ("gpt2", "unturned"), ("gpt2", "query")}


@pytest.mark.parametrize(
    ("name", "fault"), [pytest.param(*key, marks=() if key in QUICK else pytest.mark.slow) for key in FAULTS]
)
def test_a_fault_is_named_at_its_value(
    engines: ModuleType, models: dict[str, Prepared], name: str, fault: str, tmp_path: Path
) -> None:
    result = run(engines, models, name, fault, tmp_path).result
    assert result.first_bad is not None
    assert result.first_bad.value == FAULTS[name, fault]
    assert result.first_bad.step == ("decode.0" if fault == "position" else "prefill")
