"""Stock llama.cpp from its wheel under the shim: a small model of Llama's kind, quantised, and faults in its file."""

from __future__ import annotations

import importlib.util
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firstbad.comparison import Comparison, compare
from firstbad.errors import CompareError
from firstbad.gguf_file import read
from firstbad.lint import lint_run
from firstbad.probes import ggml
from firstbad.reference import causal
from firstbad.reports import terminal
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_reference
from firstbad.stale import stale
from firstbad.trace import open_trace
from tests import gguf_made

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("gguf") is None,
    reason="needs llama.cpp: pip install 'firstbad[ggml]'",
)
SCRIPT = Path(__file__).parents[2] / "case_studies/llama_cpp/complete.py"
STEPS = ("prefill", "decode.0", "decode.1")
PROMPT = (54, 35, 28, 46, 31)
OPTIONS = CaptureOptions(max_tokens=3, timeout=300)
SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
    "max_position_embeddings": 256,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}


def written(path: Path, quantised: str, kind: str = "llama", seed: int = 3, **sizes: int) -> Path:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **sizes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    for name, p in model.requires_grad_(False).named_parameters():
        noise = torch.randn_like(p)
        p.copy_(1 + 0.2 * noise if p.dim() < 2 else noise * (0.5 if "embed" in name else 1.5 / p.shape[1] ** 0.5))
    gguf_made.write(path, model, kind, quantised=quantised)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("llama") / "tiny.gguf", "Q4_1")


def compared(model: Path, folder: Path, *more: str, engine: Path | None = None, budget: float = 0) -> Comparison:
    """The reference on `model`, llama.cpp on `engine` or the same."""
    prepared = causal.prepare(ModelSpec(str(model), tokens=(PROMPT,)))
    output = ggml.capture(command(engine or "{model}", *more), prepared, folder / "candidate.h5", OPTIONS)
    capture_reference(causal, prepared, folder / "reference.h5", OPTIONS, output.tokens)  # type: ignore[arg-type]
    reference, candidate = open_trace(folder / "reference.h5"), open_trace(folder / "candidate.h5")
    return compare(reference, candidate, causal.executor(prepared), budget=budget)


def test_a_cache_of_8_bits_is_replayed_exactly(tmp_path: Path) -> None:
    """Heads of 96: a block of 32 holds a third of the pairs, which stand apart in the reference's order."""
    model = written(tmp_path / "m.gguf", "", head_dim=96, num_attention_heads=2, num_key_value_heads=1)
    result = compared(model, tmp_path, "--flash", "--cache", "q8_0").result
    assert [f.value for f in result.faults] == []
    assert result.verdict == "match"
    assert max(result.values["times_noise"]) < 3


def test_a_cache_whose_rounding_is_not_modelled_is_refused(model: Path, tmp_path: Path) -> None:
    prepared = causal.prepare(ModelSpec(str(model), tokens=(PROMPT,)))
    with pytest.raises(CompareError, match=r"in a cache of type q4_0, .* choose f32, f16, bf16, q8_0"):
        ggml.capture(command("{model}", "--flash", "--cache", "q4_0"), prepared, tmp_path / "candidate.h5", OPTIONS)


def test_a_cache_of_what_was_turned_is_refused(tmp_path: Path) -> None:
    """Heads of 64: llama.cpp multiplies keys and values by a Hadamard matrix before it keeps them in 8 bits."""
    model = written(tmp_path / "m.gguf", "", head_dim=64, num_attention_heads=2, num_key_value_heads=1)
    prepared = causal.prepare(ModelSpec(str(model), tokens=(PROMPT,)))
    with pytest.raises(CompareError, match=r"turns what it keeps in a cache of type q8_0, .* choose f16"):
        ggml.capture(command("{model}", "--flash", "--cache", "q8_0"), prepared, tmp_path / "candidate.h5", OPTIONS)


def test_a_prompt_that_is_read_in_parts_is_told(model: Path, tmp_path: Path) -> None:
    prepared = causal.prepare(ModelSpec(str(model), tokens=(PROMPT,)))
    with pytest.raises(CompareError, match=r"5 tokens in parts of 3: .* n_ubatch\) of at least 5"):
        ggml.capture(command("{model}", "--batch", "3"), prepared, tmp_path / "candidate.h5", OPTIONS)


def command(model: Path | str, *more: str) -> str:
    return " ".join([sys.executable, str(SCRIPT), str(model), "{prompt}", "--tokens", "{tokens}", *more])


@pytest.fixture(scope="module")
def clean(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compared(model, tmp_path_factory.mktemp("clean"))


def test_a_quantised_model_matches(clean: Comparison) -> None:
    assert [f.value for f in clean.result.faults] == []
    assert clean.result.verdict == "match"
    assert clean.result.coverage.compared == {"prefill": 42, "decode": 84}
    assert max(clean.result.values["times_noise"]) < 3


def test_what_is_left_unaligned_has_its_reason(clean: Comparison) -> None:
    alone = {reason for _, _, reason in clean.result.coverage.only_candidate if not reason.startswith("a part of")}
    assert alone == {"nothing reads it"}  # three nodes of each graph that a feature of llama.cpp leaves behind


def test_rows_of_pairs_are_found_by_the_mode_of_their_rope(clean: Comparison) -> None:
    attention = "model.layers.0.self_attn."
    orders = {p.reference.name.removeprefix(attention): p.layout.order for p in clean.alignment.pairs}
    K = 32
    for name in ("q_proj", "k_proj", "add", "add_1"):
        assert orders[name][:K] == (*range(0, K, 2), *range(1, K, 2)), name
    assert orders["v_proj"] == ()


def test_a_last_layer_of_one_row_is_judged_by_that_row(clean: Comparison) -> None:
    rows = {p.reference.name: p.layout.rows for p in clean.alignment.pairs if p.reference.step == "prefill"}
    assert rows["lm_head"] == rows["model.layers.1.mlp.down_proj"] == (4,)
    assert rows["model.layers.1.self_attn.o_proj"] == ()


@pytest.mark.parametrize(("kind", "quantised"), [("qwen3", "Q5_1"), ("qwen2", "Q8_0"), ("llama", "")])
def test_other_kinds_and_formats_match(tmp_path: Path, kind: str, quantised: str) -> None:
    result = compared(written(tmp_path / "m.gguf", quantised, kind, seed=1), tmp_path).result
    assert [f.value for f in result.faults] == []
    assert result.verdict == "match"


def test_another_token_that_follows_from_8_bit_activations_is_no_fault(tmp_path: Path) -> None:
    result = compared(written(tmp_path / "m.gguf", "Q5_1", "qwen3", seed=3), tmp_path).result
    assert result.outputs["first_differing_token"] >= 0
    assert result.faults == ()
    assert (result.verdict, result.stage) == ("match", "choice")
    assert any("is the engine's own choice" in note for note in result.notes)


def spoilt(model: Path, path: Path, key: str, number: float) -> Path:
    data = bytearray(model.read_bytes())
    at = data.index(key.encode()) + len(key) + 4
    data[at : at + 4] = struct.pack("<f", number)
    path.write_bytes(data)
    return path


def test_another_base_of_rotary_positions_is_named(model: Path, tmp_path: Path) -> None:
    engine = spoilt(model, tmp_path / "bad.gguf", "llama.rope.freq_base", 20000.0)
    result = compared(model, tmp_path, engine=engine, budget=10).result
    assert result.first_bad is not None
    assert result.first_bad.value == "model.layers.0.self_attn.add"
    assert {f.value.rpartition(".")[2] for f in result.faults} == {"add", "add_1"}
    for fault in result.faults:
        assert fault.cause.kind == "wrong_constant"
        assert fault.cause.detail["what"] == "base of rotary positions"
        assert (fault.cause.detail["number"], fault.cause.detail["model"]) == (20000, 10000)


def test_another_eps_is_named(model: Path, tmp_path: Path) -> None:
    engine = spoilt(model, tmp_path / "bad.gguf", "llama.attention.layer_norm_rms_epsilon", 1e-3)
    result = compared(model, tmp_path, engine=engine, budget=10).result
    assert {f.value.rpartition(".")[2] for f in result.faults} == {"mul"}
    assert result.first_bad is not None
    assert result.first_bad.value == "model.layers.0.input_layernorm.mul"
    assert result.first_bad.cause.kind == "wrong_constant"
    assert result.first_bad.cause.detail["number"] == pytest.approx(1e-3, rel=0.01)
    also = [line for line in terminal.render(result).splitlines() if line.startswith("also")]
    assert len(also) == 1
    assert f"the same cause in {len(result.faults) - 1} further values: " in also[0]


def test_one_blocks_scale_is_named(model: Path, tmp_path: Path) -> None:
    name = "blk.1.ffn_up.weight"
    data = bytearray(model.read_bytes())
    raw = read(model).tensors[name].raw.tobytes()
    at = data.index(raw) + 17 * 20  # 20 bytes a block of Q4_1, its scale first
    scale = np.frombuffer(bytes(data[at : at + 2]), np.float16)[0]
    data[at : at + 2] = np.float16(scale * 4).tobytes()
    (tmp_path / "bad.gguf").write_bytes(data)
    result = compared(model, tmp_path, engine=tmp_path / "bad.gguf", budget=10).result
    assert [f.value for f in result.faults] == ["model.layers.1.mlp.up_proj"]
    assert result.coverage.weights_differ == ("model.layers.1.mlp.up_proj.weight",)
    assert result.stage == "weights"
    assert result.faults[0].cause.kind == "wrong_weight"
    assert any("block 17: d" in note for note in result.notes)


def test_the_first_token_that_differs_is_told_before_any_value(model: Path, tmp_path: Path) -> None:
    prepared = causal.prepare(ModelSpec(str(model), tokens=(PROMPT,)))
    other = replace(prepared, prompt=(*PROMPT[:3], 99, 31))
    argument = command("{model}").replace("{prompt}", ",".join(map(str, PROMPT)))
    with pytest.raises(CompareError, match=r"token 3 is the first that differs: 46 .* against 99"):
        ggml.capture(argument, other, tmp_path / "candidate.h5", OPTIONS)


def test_the_engine_computes_the_same_without_the_shim(model: Path, tmp_path: Path) -> None:
    prepared: Prepared = causal.prepare(ModelSpec(str(model), tokens=(PROMPT,)))
    ggml.capture(command("{model}"), prepared, tmp_path / "candidate.h5", OPTIONS)
    with open_trace(tmp_path / "candidate.h5") as trace:
        printed: Any = trace.outputs["printed"]
    assert printed == ggml.bare(command("{model}"), prepared, OPTIONS, tmp_path)
    assert "-" in printed  # logarithms of probabilities, bit for bit


@pytest.mark.parametrize(("quantised", "left"), [("Q4_1", 6), ("", 18)])
def test_what_is_read_after_the_graph_was_computed_is_stale_and_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantised: str, left: int
) -> None:
    """As a naive dumper reads: most buffers hold what a later node left there."""
    monkeypatch.setenv("FIRSTBAD_GGML", "late")
    result = compared(written(tmp_path / "m.gguf", quantised), tmp_path).result
    assert (result.verdict, result.faults) == ("match", ())
    assert set(result.values["verdict"]) == {"clean"}
    told = [reason for _, _, reason in result.coverage.only_candidate if reason.startswith("stale: read after ")]
    assert len(told) > 80
    assert sum(result.coverage.compared.values()) == left
    assert any("were read too late" in note and "stale, not wrong" in note for note in result.notes)
    with open_trace(result.files["candidate"]) as trace:
        found = lint_run(trace)  # what stood in memory says nothing of the engine
        assert [f.rule for f in found] == ["stale"]
        assert f"{len(stale(trace))} values were read too late" in found[0].text


def test_a_fault_shows_in_what_a_late_reader_can_still_see(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRSTBAD_GGML", "late")
    engine = spoilt(model, tmp_path / "bad.gguf", "llama.attention.layer_norm_rms_epsilon", 1e-3)
    result = compared(model, tmp_path, engine=engine).result
    assert {f.value for f in result.faults} == {"model.norm.mul_1"}


def test_by_its_own_records_nothing_is_stale_and_nothing_is_wrong(clean: Comparison) -> None:
    with open_trace(clean.result.files["candidate"]) as trace:
        assert stale(trace) == {}
        assert lint_run(trace) == ()


@pytest.fixture(scope="module")
def flash(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    folder = tmp_path_factory.mktemp("flash")
    return compared(model, folder, "--flash"), folder


def test_flash_attention_matches_and_is_what_its_kernel_says_bit_by_bit(flash: tuple[Comparison, Path]) -> None:
    """Its sums are of float16, so its noise is 1e-4: the kernel simulated on what it read gives the very same bits."""
    from firstbad.flash import attention

    comparison, folder = flash
    assert comparison.result.verdict == "match"
    assert comparison.result.coverage.compared == {"prefill": 38, "decode": 76}
    with open_trace(folder / "candidate.h5") as trace:
        for layer in range(2):
            said = {
                (v.step, v.name.rpartition(".")[2]): np.asarray(trace.array(v))
                for v in trace.graph.values
                if v.name.startswith(f"model.layers.{layer}.self_attn.") and v.dataset
            }
            keys = np.concatenate([said[step, "add_1"].reshape(-1, 2, 32) for step in STEPS]).swapaxes(0, 1)
            values = np.concatenate([said[step, "v_proj"].reshape(-1, 2, 32) for step in STEPS]).swapaxes(0, 1)
            at = 0
            for step in STEPS:
                q = said[step, "add"].reshape(-1, 4, 32).swapaxes(0, 1)
                t = q.shape[1]
                mask = np.where(np.arange(at + t) <= np.arange(at, at + t)[:, None], 0.0, -np.inf)
                k, v = (np.repeat(x[:, : at + t], 2, axis=0) for x in (keys, values))
                made = attention(q, k, v, 32**-0.5, mask).swapaxes(0, 1)
                assert np.array_equal(made.ravel(), said[step, "matmul_1"].ravel()), (layer, step)
                at += t
