"""Decoder-only models on the C engine: each family's own facts, against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firstbad.comparison import Comparison
from firstbad.errors import UsageError
from firstbad.probes import c, edits
from firstbad.probes.plan import save
from firstbad.run import CaptureOptions, ModelSpec
from firstbad.session import diff, prepare

PROMPT = (5, 9, 11, 40, 7, 3, 8, 2, 30)
OPTIONS = CaptureOptions(max_tokens=3, threads=1)
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 20}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20}


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **more}}


LLAMA3 = rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3["rope_parameters"]["original_max_position_embeddings"] = 16
YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "partial_rotary_factor": 0.5,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with llama3 scaling": ("llama", LLAMA3),
    "mistral with a window": ("mistral", {"sliding_window": 4}),
    "gemma2": ("gemma2", {"sliding_window": 4, **CAPS}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "sliding_window": 4}),
    "qwen3_next": ("qwen3_next", DELTA),
    "gpt2": ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, linear scaling, biases": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, **rope(rope_type="linear", factor=4.0)},
    ),
    "llama, yarn, tied": ("llama", {"tie_word_embeddings": True, **YARN}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe, renormalised": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("gemma", {}),
    "gemma3, two tables": (
        "gemma3_text",
        {
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
            },
        },
    ),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {}),
    "glm, half of a head turned": ("glm", {"partial_rotary_factor": 0.5}),
    "helium": ("helium", {}),
    "seed_oss": ("seed_oss", {}),
    "smollm3, one layer without positions": ("smollm3", {"no_rope_layers": [1, 0]}),
    "exaone4, no positions where all is seen": (
        "exaone4",
        {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "eos_token_id": 1},
    ),
    "olmo3": ("olmo3", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    "flex_olmo": ("flex_olmo", {"num_experts": 4, "num_experts_per_tok": 2}),
    "cwm": ("cwm", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
}


def spec(family: str, folder: Path) -> ModelSpec:
    """A random model of a family's config, written to a folder."""
    from transformers import AutoConfig

    kind, more = {**FAMILIES, **MORE}[family]
    auto: Any = AutoConfig  # untyped
    auto.for_model(kind, **{**SMALL, **more}).save_pretrained(folder / "model")
    return ModelSpec(f"causal:{folder / 'model'}", random_weights=1, tokens=(PROMPT,))


def compared(family: str, folder: Path, candidate: str = "c", budget: float = 0) -> Comparison:
    return diff(spec(family, folder), candidate, folder / "out", OPTIONS, budget=budget)


def assert_matches(family: str, folder: Path) -> None:
    result = compared(family, folder).result
    assert result.verdict == "match"
    assert result.coverage.compared["prefill"] > 30
    assert result.coverage.compared["decode"] > 60
    unnamed = {name.rpartition(".")[2] for _, name, _ in result.coverage.only_candidate}
    assert unnamed <= {"q", "k", "v", "probabilities", "conv"}  # parts of what the reference makes in one piece


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_match(family: str, tmp_path: Path) -> None:
    assert_matches(family, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", MORE)
def test_prefill_and_decode_of_more_families_match(family: str, tmp_path: Path) -> None:
    assert_matches(family, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_lint_is_silent_on_the_planners_own(family: str, tmp_path: Path) -> None:
    _, prepared = prepare(spec(family, tmp_path))
    assert c.lint("", prepared) == ()


@pytest.mark.parametrize(
    ("op", "key", "number", "kind"),
    [
        ("self_attn.add", "pairs", 1, "wrong_variant"),  # neighbours turned together instead of halves
        ("post_attention_layernorm.mul_1", "offset", 1, "wrong_variant"),  # gain + 1
    ],
)
def test_a_planted_constant_is_named_with_its_cause(
    op: str, key: str, number: float, kind: str, tmp_path: Path
) -> None:
    _, prepared = prepare(spec("llama with llama3 scaling", tmp_path))
    plan = c.plan_for("", prepared)
    name = f"model.layers.1.{op}"
    for step in plan.steps:
        plan = edits.set_attr(plan, step, name, key, number)
    save(plan, tmp_path / "plan.json")
    result = compared("llama with llama3 scaling", tmp_path, f"c:{tmp_path / 'plan.json'}", budget=20).result
    (fault,) = result.faults
    assert (fault.value, fault.cause.kind) == (name, kind)
    assert {site.step for site in fault.sites} == {"prefill", "decode.0", "decode.1"}


@pytest.mark.slow
def test_weights_rounded_to_bfloat16_match(tmp_path: Path) -> None:
    assert compared("qwen2", tmp_path, "c:bfloat16").result.verdict == "match"


def test_what_the_planner_does_not_know_is_refused(tmp_path: Path) -> None:
    _, prepared = prepare(ModelSpec("causal:bloom", random_weights=1, tokens=(PROMPT,)))
    with pytest.raises(UsageError, match="runs no `bloom`"):
        c.capture("", prepared, tmp_path / "x.h5", OPTIONS)
    _, prepared = prepare(ModelSpec("causal:llama", random_weights=1, tokens=(PROMPT, PROMPT)))
    with pytest.raises(UsageError, match="one prompt at a time"):
        c.capture("", prepared, tmp_path / "x.h5", OPTIONS)
    with pytest.raises(UsageError, match="this model has none"):
        c.plan_for("stored", prepared)


@pytest.mark.parametrize("family", ["gemma3, two tables", "smollm3, one layer without positions"])
def test_layers_of_two_sorts_are_no_finding(family: str, tmp_path: Path) -> None:
    _, prepared = prepare(spec(family, tmp_path))
    assert c.lint("", prepared) == ()
