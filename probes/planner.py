"""From a Whisper config to a plan: which ops, on which tensors, in which order.

The names are those of the PyTorch model's values, so that both traces line up by path. Keys and values of the decoder
are written straight into their caches; keys and values of the encoder's output are made once, in prefill. Leaves out
where tensors lie (lifetimes.py) and every other model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstbad.errors import UsageError

from .builder import Builder
from .lifetimes import assign
from .plan import Dim, Plan, Step

PROMPT_ROOM = 16  # tokens that one prefill may be fed

_NEEDED = (
    "d_model",
    "encoder_layers",
    "encoder_attention_heads",
    "decoder_layers",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "vocab_size",
    "num_mel_bins",
    "max_source_positions",
    "max_target_positions",
)


def plan(config: Mapping[str, Any], audio_context: int | None = None, *, reuse: bool = True) -> Plan:
    """The plan for a model's config; `audio_context`: encoder positions (None: all); `reuse`: share buffers."""
    missing = [key for key in _NEEDED if not isinstance(config.get(key), int) or config[key] < 1]
    if missing:
        raise UsageError(f"the model's config has no usable `{missing[0]}`: the built-in C engine runs Whisper models")
    D, H = config["d_model"], config["encoder_attention_heads"]
    if D % H or config["decoder_attention_heads"] != H:
        raise UsageError(f"the built-in C engine needs equal heads that divide the width: {H} heads of {D}")
    if config.get("activation_function", "gelu") != "gelu" or config.get("scale_embedding", False):
        raise UsageError("the built-in C engine knows the gelu activation and unscaled embeddings only")
    T = audio_context or config["max_source_positions"]
    if not 0 < T <= config["max_source_positions"]:
        raise UsageError(f"audio context {T} is not in 1 to {config['max_source_positions']}: give fewer positions")
    weights: dict[str, tuple[int, ...]] = {}
    positions = config["max_target_positions"]
    room = min(PROMPT_ROOM, positions)
    steps = (
        _encode(Builder("encode", weights, {"t": T, "n": T}), config, T),
        _decode(Builder("prefill", weights, {"t": room, "n": room}), config, T, "t", first=True),
        _decode(Builder("decode", weights, {"t": 1, "n": positions}), config, T, 1, first=False),
    )
    return assign(Plan(H, positions, {}, weights, {step.name: step for step in steps}), reuse=reuse)


def _encode(b: Builder, config: Mapping[str, Any], T: int) -> Step:
    D, M = config["d_model"], config["num_mel_bins"]
    path = "model.encoder"
    features = b.fed("input_features", (1, M, 2 * T))
    x = features
    for n, (channels, length, stride) in enumerate(((M, 2 * T, 1), (D, T, 2))):
        name = f"{path}.conv{n + 1}"
        weights = {"weight": (f"{name}.weight", (D, channels, 3)), "bias": (f"{name}.bias", (D,))}
        x = b.op("conv1d", name, (1, D, length), {"x": x}, weights=weights, attrs={"stride": stride})
        x = b.same("gelu", f"{path}.gelu" + ("_1" if n else ""), (1, D, length), x=x)
    table = {"weight": (f"{path}.embed_positions.weight", (config["max_source_positions"], D))}
    places = b.op("positions", f"{path}.embed_positions", (T, D), {}, weights=table)
    x = b.same("add_permuted", f"{path}.add", (1, T, D), a=x, b=places)
    for i in range(config["encoder_layers"]):
        layer = f"{path}.layers.{i}"
        normed = b.layer_norm(f"{layer}.self_attn_layer_norm", x, (1, T, D), D)
        mixed = _attention(b, config, f"{layer}.self_attn", normed, normed, T, T)
        x = b.same("add", f"{layer}.add", (1, T, D), a=x, b=mixed)
        x = _feed_forward(b, layer, x, T, D, config["encoder_ffn_dim"], f"{layer}.add_1")
    x = b.layer_norm(f"{path}.layer_norm", x, (1, T, D), D, kept=True)
    return b.step(features, x)


def _decode(b: Builder, config: Mapping[str, Any], T: int, t: Dim, *, first: bool) -> Step:
    D, V = config["d_model"], config["vocab_size"]
    path = "model.decoder"
    ids = b.fed("decoder_input_ids", (1, t), "int64")
    table = (f"{path}.embed_tokens.weight", (V, D))
    tokens = b.op("embedding", f"{path}.embed_tokens", (1, t, D), {"ids": ids}, weights={"weight": table})
    rows = {"weight": (f"{path}.embed_positions.weight", (config["max_target_positions"], D))}
    places = b.op("positions", f"{path}.embed_positions.index", (1, t, D), {}, weights=rows, attrs={"decoder": 1})
    x = b.same("add", f"{path}.add", (1, t, D), a=tokens, b=places)
    for i in range(config["decoder_layers"]):
        layer = f"{path}.layers.{i}"
        normed = b.layer_norm(f"{layer}.self_attn_layer_norm", x, (1, t, D), D)
        mixed = _attention(b, config, f"{layer}.self_attn", normed, normed, t, "n", cache=True, mask=first)
        x = b.same("add", f"{layer}.add", (1, t, D), a=x, b=mixed)
        normed = b.layer_norm(f"{layer}.encoder_attn_layer_norm", x, (1, t, D), D)
        source = "model.encoder.layer_norm" if first else None
        mixed = _attention(b, config, f"{layer}.encoder_attn", normed, source, t, T, kept=True)
        x = b.same("add", f"{layer}.add_1", (1, t, D), a=x, b=mixed)
        x = _feed_forward(b, layer, x, t, D, config["decoder_ffn_dim"], f"{layer}.add_2")
    x = b.layer_norm(f"{path}.layer_norm", x, (1, t, D), D)
    tied = config.get("tie_word_embeddings", True)
    head = table if tied else ("proj_out.weight", (V, D))
    x = b.op("linear", "proj_out", (1, t, V), {"x": x}, weights={"weight": head})
    x = b.op("masked_fill", "generate.masked_fill", (1, V), {"x": x}, attrs={"begin": int(first)})
    x = b.op("argmax", "generate.argmax:int64", (1,), {"x": x}, dtype="int64")
    return b.step(ids, x)


def _attention(
    b: Builder,
    config: Mapping[str, Any],
    path: str,
    x: str,
    source: str | None,  # of keys and values; None: an earlier step has made them
    t: Dim,
    n: Dim,
    *,
    cache: bool = False,
    kept: bool = False,
    mask: bool = False,
) -> str:
    D, H = config["d_model"], config["encoder_attention_heads"]
    K = D // H
    rows = t if cache else n  # that this step makes
    q = b.linear(f"{path}.q_proj", x, (1, t, D), D)
    q = b.op("mul", f"{path}.mul", (1, t, D), {"x": q}, attrs={"factor": K**-0.5})
    k, v = f"{path}.k_proj", f"{path}.v_proj"
    if source is not None:
        b.linear(k, source, (1, rows, D), D, bias=False, kept=kept or cache, rows=cache)
        b.linear(v, source, (1, rows, D), D, kept=kept or cache, rows=cache)
    p = b.same("attention_scores", f"{path}.matmul", (1, H, t, n), q=q, k=k)
    if mask:
        p = b.same("causal_mask", f"{path}.add", (1, H, t, n), x=p)
    p = b.same("softmax", f"{path}.softmax", (1, H, t, n), x=p)
    mixed = b.op("attention_mix", f"{path}.matmul_1", (1, H, t, K), {"p": p, "v": v}, order=(0, 2, 1, 3))
    return b.linear(f"{path}.out_proj", mixed, (1, t, D), D)


def _feed_forward(b: Builder, layer: str, x: str, t: Dim, D: int, F: int, name: str) -> str:
    h = b.layer_norm(f"{layer}.final_layer_norm", x, (1, t, D), D)
    h = b.linear(f"{layer}.fc1", h, (1, t, F), D)
    h = b.same("gelu", f"{layer}.activation_fn.gelu", (1, t, F), x=h)
    h = b.linear(f"{layer}.fc2", h, (1, t, D), F)
    return b.same("add", name, (1, t, D), a=x, b=h)
