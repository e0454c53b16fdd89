"""A tiny model of any family that transformers knows, everything in it random: weights, biases, norm gains.

    --random-weights SEED --model llama | gemma2 | mixtral | mamba | bert | vit | clip | ...

Sizes are small and differ from each other, so that an exchanged dimension shows. Windows are shorter than the prompt
that is made where none is given. Leaves out Whisper (random_whisper.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from firstbad.errors import UsageError
from firstbad.run import ModelSpec

from .checkpoint import Loaded, first_line, plain
from .mapped import no_offload
from .weights import _ids_as_text

SMALL = {
    "vocab_size": 500,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
LONG = 8192
"""Positions of a model that computes them instead of having a table."""

PROMPT = 12
"""Tokens of a prompt that is made up."""

SHARED = {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 12}
"""Set where a family has them."""

_TEXT = {
    "vocab_size": 500,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
_VISION = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
_IMAGE = {"image_size": 32, "patch_size": 8}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
_PAIR = {"text_config": {**_TEXT, "max_position_embeddings": 40}, "vision_config": {**_VISION, **_IMAGE}}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"sliding_window": 8},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 12},
    "gemma3_text": {"sliding_window": 8},
    "mixtral": _EXPERTS,
    "gpt_oss": {**_EXPERTS, "sliding_window": 8, "max_position_embeddings": 131072},
    "qwen2_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
    },
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
    },
    "mamba": {"state_size": 8},
    "vit": _IMAGE,
    "deit": _IMAGE,
    "dinov2": {**_IMAGE, "mlp_ratio": 2},
    "clip": {**_PAIR, "projection_dim": 40},
    "siglip": _PAIR,
}
"""What a family's config is told beside the sizes above."""

SQUARE = 1.2
"""Entries of a matrix are so large over the root of its inner dimension: activations stay near 1."""


def random_model(spec: ModelSpec, kind: str, auto: Any) -> Loaded:
    """A family's tiny model, built by `auto` (a class of transformers with from_config), its weights from the seed.

    NumPy draws them, so that a seed means the same everywhere.
    """
    no_offload(spec)
    assert spec.random_weights is not None
    if spec.random_weights < 0:
        raise UsageError(f"the seed of random weights is {spec.random_weights}: give a whole number from 0 on")
    try:
        model = auto.from_config(config_of(kind), attn_implementation="eager", dtype=torch.float32)
    except Exception as error:  # a config's own checks, a class that has other names for its sizes
        raise UsageError(
            f"no random `{kind}`: {first_line(error)}: a family of transformers is meant, as llama"
        ) from None
    fill(model, spec.random_weights)
    source = f"random weights, seed {spec.random_weights}"
    return Loaded(
        plain(model), f"a random {model.config.model_type}", source, lambda text: list(text.encode()), _ids_as_text
    )


def config_of(kind: str) -> Any:
    """The config of a family's tiny model; of a folder its own, as it stands."""
    from transformers import AutoConfig

    auto: Any = AutoConfig  # untyped
    if (Path(kind) / "config.json").is_file():
        return auto.from_pretrained(kind, local_files_only=True)
    ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    own = FAMILIES.get(kind, {})
    common = {} if "text_config" in own else {**SMALL, **ends}
    config = auto.for_model(kind, **{**common, **own})
    for name, size in SHARED.items():
        if hasattr(config, name) and name not in own:
            setattr(config, name, size)
    if getattr(config, "rope_parameters", None) and "max_position_embeddings" not in own:
        config.max_position_embeddings = LONG
    return config


def fill(model: nn.Module, seed: int) -> None:
    """Every parameter drawn anew. What is one number throughout keeps it as its mean: gains, scales, biases."""
    generator = np.random.default_rng(seed)
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            array = generator.standard_normal(tuple(parameter.shape), dtype=np.float32)
            owner = modules[name.rpartition(".")[0]]
            mean, size = _distribution(name, parameter, owner)
            parameter.copy_(torch.from_numpy(np.asarray(array * np.float32(size))) + mean)


def _distribution(name: str, parameter: torch.Tensor, owner: nn.Module) -> tuple[torch.Tensor | float, float]:
    """(mean, standard deviation): activations stay near 1, and biases and gains count."""
    if name.endswith("A_log"):
        return parameter.clone(), 0.2  # a spectrum, and no draw
    if parameter.dim() < 2:
        constant = bool((parameter == parameter.reshape(-1)[0]).all()) and bool(parameter.isfinite().all())
        return (float(parameter.reshape(-1)[0]) if constant else 0.0), 0.2
    if isinstance(owner, nn.Conv1d | nn.Conv2d):
        return 0.0, SQUARE / math.sqrt(math.prod(parameter.shape[1:]))
    if "wte" in name or "embed" in name:
        return 0.0, 0.5
    return 0.0, SQUARE / math.sqrt(min(parameter.shape[-2:]))
