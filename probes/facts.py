"""What sets decoder-only families apart, read off a transformers config and the shapes of the weights.

A config that says something this page does not know is refused: an engine that leaves out a part of a model in silence
would be a fault of its own. Leaves out the ops that follow (planner_causal.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firstbad.errors import UsageError

GATES = {
    "silu": ("silu", "silu"),
    "swish": ("silu", "silu"),
    "gelu": ("gelu", "gelu"),
    "gelu_pytorch_tanh": ("gelu_tanh", "gelu"),
    "gelu_new": ("gelu_tanh", "mul_3"),
}
"""The config's word → the engine's kind, and the reference's word for the value."""

EMBEDDING_SCALED = {"gemma", "gemma2", "gemma3_text"}
NORM_PLUS_ONE = EMBEDDING_SCALED | {"qwen3_next"}
POST_NORMS = {"gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4", "flex_olmo"}
PAIRS = {"glm", "helium"}
"""Neighbouring elements are turned together, not those half a head apart."""

KNOWN = {
    *(
        "llama",
        "qwen2",
        "qwen3",
        "mistral",
        "ministral",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "olmoe",
        "gemma",
        "gemma2",
    ),
    "qwen3_next",
    *("gemma3_text", "cwm", "exaone4", "olmo3", "flex_olmo"),
    *("smollm3", "olmo2", "phi3", "glm", "helium", "seed_oss", "gpt_oss"),
}


@dataclass(frozen=True)
class Table:
    """Cosines and sines of some layers."""

    name: str  # "": the only one, which the reference makes under its own name
    frequency: str  # weight
    scale: float
    layers: frozenset[int]


@dataclass(frozen=True)
class Linear:
    """Layers that mix by the gated delta rule (mixer_delta.py)."""

    layers: frozenset[int]
    heads: int  # of values
    key_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True)
class Facts:
    """One family's model, as the planner needs it. Widths in elements; 0: it has no such thing."""

    root: str  # path of the model without its head
    width: int
    layers: int
    heads: int
    key_heads: int
    head: int  # elements of one head
    positions: int
    eps: float
    norm_offset: float  # added to the gain
    score_scale: float
    score_cap: float
    logit_cap: float
    logit_scale: float
    embedding_scale: float
    windows: tuple[int, ...]  # of each layer; 0: sees all
    unturned: frozenset[int]  # layers without positions
    turned: int  # elements of a head that are turned
    pairs: bool
    table_pairs: bool  # each angle stands twice, side by side
    rope_width: int  # of the table of cosines
    tables: tuple[Table, ...]
    rope_words: str  # how the reference writes it
    gate: str
    gate_word: str
    post_norms: bool
    experts: int
    chosen: int
    renormalised: bool
    chosen_first: bool  # the router's choice comes before its softmax
    experts_turned: bool  # their weights are [E, inner, outer]
    clipped: float  # limit of a gate that is clipped, and the slope of its sigmoid
    slope: float
    dense_layers: tuple[int, ...]
    linear: Linear
    gated_query: bool  # the queries' projection also makes a gate for what attention gives


def facts_of(config: Mapping[str, Any], weights: Mapping[str, tuple[int, ...]]) -> Facts:
    """UsageError where the config is of no family that the engine runs, or says what it does not know."""
    family = str(config.get("model_type", ""))
    if family not in KNOWN:
        raise UsageError(f"the built-in C engine runs no `{family}`: choose another candidate, as torch: or py:")
    D, H = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    layers = _number(config, "num_hidden_layers")
    G = config.get("num_key_value_heads") or H
    K = config.get("head_dim") or D // H
    act = config.get("hidden_activation") or config.get("hidden_act")
    if act not in GATES:
        raise UsageError(f"the built-in C engine knows no activation `{act}`: it has {', '.join(GATES)}")
    tables = _tables(config, weights, layers)
    frequencies = weights[tables[0].frequency][0]
    turned = 2 * frequencies
    scalar = config.get("query_pre_attn_scalar")
    return Facts(
        root="model",
        width=D,
        layers=layers,
        heads=H,
        key_heads=G,
        head=K,
        positions=_number(config, "max_position_embeddings"),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        norm_offset=float(family in NORM_PLUS_ONE),
        score_scale=float(scalar or K) ** -0.5,
        score_cap=float(config.get("attn_logit_softcapping") or 0),
        logit_cap=float(config.get("final_logit_softcapping") or 0),
        logit_scale=0.0,
        embedding_scale=math.sqrt(D) if family in EMBEDDING_SCALED else 0.0,
        windows=_windows(config, layers),
        unturned=_unturned(family, config, layers),
        turned=turned,
        pairs=family in PAIRS,
        table_pairs=False,
        rope_width=frequencies if family == "gpt_oss" else turned,
        tables=tables,
        rope_words=_rope_words(family, turned < K),
        gate=GATES[act][0],
        gate_word=GATES[act][1],
        post_norms=family in POST_NORMS,
        experts=int(config.get("num_local_experts") or config.get("num_experts") or 0),
        chosen=int(config.get("num_experts_per_tok") or 0),
        chosen_first=family == "gpt_oss",
        experts_turned=family == "gpt_oss",
        clipped=float(config.get("swiglu_limit") or 0) if family == "gpt_oss" else 0.0,
        slope=float(config.get("swiglu_alpha") or 1.702),
        renormalised=bool(config.get("norm_topk_prob", family == "mixtral")),
        dense_layers=_dense(config, layers),
        linear=_linear(config),
        gated_query=family == "qwen3_next",
    )


def _unturned(family: str, config: Mapping[str, Any], layers: int) -> frozenset[int]:
    if family == "exaone4":  # where some layers see a window, the others have no positions
        windows = _windows(config, layers)
        return (
            frozenset(i for i, window in enumerate(windows) if not window)
            if config.get("sliding_window")
            else frozenset()
        )
    return frozenset(i for i, turned in enumerate(config.get("no_rope_layers") or ()) if not turned)


def _tables(config: Mapping[str, Any], weights: Mapping[str, tuple[int, ...]], layers: int) -> tuple[Table, ...]:
    """One table for all layers, or one for each type of layer."""
    kinds = config.get("layer_types") or ("",) * layers
    rope = config.get("rope_parameters") or {}
    found = []
    for kind in ("", *sorted(set(kinds) - {""})):
        name = f"model.rotary_emb.{kind + '_' if kind else ''}inv_freq"
        own = rope.get(kind, rope) if kind else rope
        if name in weights:
            if own.get("rope_type") in ("dynamic", "longrope"):
                raise UsageError(
                    f"the built-in C engine knows no rope of type {own['rope_type']}: its table changes with length"
                )
            served = range(layers) if not kind else (i for i, k in enumerate(kinds) if k == kind)
            found.append(Table(kind, name, _rope_scale(own), frozenset(served)))
    if not found or len({weights[table.frequency] for table in found}) > 1:
        raise UsageError(
            "the model's rotary frequencies are no table for all its layers: the built-in C engine needs one"
        )
    return tuple(found)


def _linear(config: Mapping[str, Any]) -> Linear:
    layers = frozenset(i for i, kind in enumerate(config.get("layer_types") or ()) if kind == "linear_attention")
    sizes = ("linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim")
    return Linear(layers, *(_number(config, key) if layers else 0 for key in sizes))


def _rope_words(family: str, rest: bool) -> str:
    if family == "gpt_oss":
        return "four"
    if family in PAIRS:
        return "pairs and pass" if rest or family == "glm" else "pairs"
    if family == "qwen3_next":
        return "pass at last"
    return "pass" if family == "phi3" or rest else "halves"


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"the model's config has no usable `{key}`: the built-in C engine cannot plan it")
    return value


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    window = config.get("sliding_window") or 0
    kinds = config.get("layer_types")
    if kinds:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return (window if config.get("use_sliding_window", True) else 0,) * layers


def _dense(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Layers with one feed-forward part instead of experts."""
    every, named = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
    return tuple(i for i in range(layers) if i in named or (i + 1) % every)


def _rope_scale(rope: Mapping[str, Any]) -> float:
    """What cosines and sines are multiplied with (YaRN, https://arxiv.org/abs/2309.00071, section 3.4)."""
    if rope.get("rope_type") != "yarn":
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    factor = float(rope.get("factor", 1))
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return _stretch(factor, float(rope["mscale"])) / _stretch(factor, float(rope["mscale_all_dim"]))
    return _stretch(factor, 1.0)


def _stretch(factor: float, by: float) -> float:
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0
