"""Faults that only a language model can hold, each on the family that has the part: `on` names the model of the zoo.

Rotation, grouped heads, windows, caps, sinks, norms of the root mean square, gates, experts. Leaves out faults of
history (a cache that was not cleared) and of weights in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from entries import BOTH, Fault, attr, cause, fault, kernel, shows, wire

LAYER = "model.layers.1"
ATTN = f"{LAYER}.self_attn"
ROTARY = "model.rotary_emb"
DECODE = ("decode",)


def language() -> Iterator[Fault]:
    for make in (_rotation, _attention, _norms, _gates, _experts, _ends):
        yield from make()


def _one(
    on: str,
    name: str,
    operator: str,
    class_: str,
    edits: Sequence[Any],
    value: str,
    *causes: dict[str, Any],
    **more: Any,
) -> Fault:
    return fault(f"{on}.{name}", class_, operator, edits, shows(value, *causes), on=on, **more)


def _rotation() -> Iterator[Fault]:
    q, k = f"{ATTN}.add", f"{ATTN}.add_1"
    pairs = cause("wrong_variant position layout", "pair")
    yield _one("llama", "rope.pairs.q", "M12", "RP", attr(q, "pairs", 1, BOTH), q, pairs)
    yield _one("llama", "rope.pairs.k", "M12", "RP", attr(k, "pairs", 1, BOTH), k, pairs)
    half = cause("position wrong_variant wrong_constant partial_write")
    yield _one("llama", "rope.half.q", "M14", "RF", attr(q, "turned", 6, BOTH), q, half)
    for word, name in (("cos", "mul_1"), ("sin", "mul_2")):
        value = f"{ROTARY}.{name}"
        late = cause("position wrong_input")
        yield _one("llama", f"rope.{word}.late", "M15", "PO", attr(value, "start", 1, BOTH), value, late)
        yield _one("llama", f"rope.{word}.restarted", "M15", "PO", attr(value, "step", 0, DECODE), value, late)
        yield _one("llama", f"rope.{word}.doubled", "M15", "PO", attr(value, "step", 2, DECODE), value, late)
        scale = cause("wrong_constant missing_op extra_op")
        yield _one("gpt_oss", f"rope.{word}.unscaled", "M14", "RF", attr(value, "scale", 1, BOTH), value, scale)
    unturned = [*wire(f"{ATTN}.matmul", "q", f"{ATTN}.q_proj", BOTH)]
    said = cause("wrong_input missing_op", "q_proj")
    yield _one("llama", "rope.skipped.q", "M14", "RF", unturned, f"{ATTN}.matmul", said)
    place = "transformer.wpe"
    for how in ("one_late", "restarted"):
        edit = kernel(place, f"positions:{how}", DECODE)
        yield _one("gpt2", f"places.{how}", "M16", "PO", edit, place, cause("position wrong_input"))


def _attention() -> Iterator[Fault]:
    scores, scaled, mask = f"{ATTN}.matmul", f"{ATTN}.mul_4", f"{ATTN}.add_2"
    group = cause("heads layout")
    yield _one("llama", "groups.modulo", "M26", "GH", kernel(scores, "attention_scores:modulo", BOTH), scores, group)
    mixed = f"{ATTN}.matmul_1"
    yield _one("llama", "groups.modulo.v", "M26", "GH", kernel(mixed, "attention_mix:modulo", BOTH), mixed, group)
    factor = cause("wrong_constant missing_op")
    yield _one("llama", "scale.one", "M24", "SC", attr(scaled, "factor", 1, BOTH), scaled, factor)
    yield _one("llama", "scale.width", "M24", "SC", attr(scaled, "factor", ["D", -0.5], BOTH), scaled, factor)
    masked = cause("mask wrong_constant")
    for name, ahead in (("dropped", 1000), ("ahead", 1)):
        edit = attr(mask, "ahead", ahead, ("prefill",))
        yield _one("llama", f"mask.{name}", "M20", "MK", edit, mask, masked)
    sliding = "model.layers.0.self_attn"
    for name, window in (("one_less", 7), ("one_more", 9), ("full", 0)):
        edit = attr(f"{sliding}.add_2", "window", window, ("prefill",))
        yield _one("gemma2", f"window.{name}", "M21", "MK", edit, f"{sliding}.add_2", masked)
    edit = attr(f"{ATTN}.mul_5", "cap", 1e6, BOTH)
    uncapped = cause("missing_op wrong_constant wrong_variant")
    yield _one("gemma2", "cap.skipped", "M25", "SC", edit, f"{ATTN}.mul_5", uncapped)
    edit = attr(f"{ATTN}.mul_5", "cap", 30, BOTH)
    yield _one("gemma2", "cap.other", "M25", "SC", edit, f"{ATTN}.mul_5", cause("wrong_constant"))
    edit = kernel(f"{ATTN}.probabilities", "softmax_sinks:dropped", BOTH)
    dropped = cause("missing_op wrong_constant wrong_variant")
    yield _one("gpt_oss", "sinks.dropped", "M23", "SC", edit, f"{ATTN}.matmul_1", dropped)
    cache = [["cache", f"{ATTN}.add_1", 1]]
    stale = cause("position stale layout wrong_input partial_write")
    yield _one("llama", "cache.late", "M17", "ST", cache, f"{ATTN}.matmul", stale)


def _norms() -> Iterator[Fault]:
    norm = f"{LAYER}.post_attention_layernorm.mul_1"
    for how in ("centred", "unbiased", "summed"):
        edit = kernel(norm, f"rms_norm:{how}", BOTH)
        said = cause("wrong_variant wrong_constant missing_op extra_op")
        yield _one("llama", f"norm.{how}", "M30", "NG", edit, norm, said)
    yield _one("llama", "norm.eps", "M28", "NE", attr(norm, "eps", 1e-2, BOTH), norm, cause("wrong_constant"))
    said = cause("wrong_constant wrong_variant wrong_weight missing_op extra_op")
    yield _one("llama", "norm.plus_one", "M29", "NG", attr(norm, "offset", 1, BOTH), norm, said)
    yield _one("gemma2", "norm.no_one", "M29", "NG", attr(norm, "offset", 0, BOTH), norm, said)
    q = f"{ATTN}.add"
    edit = wire(q, "x", f"{ATTN}.q_proj", BOTH)
    yield _one("qwen3_moe", "q_norm.skipped", "M31", "NG", edit, q, cause("wrong_input missing_op"))


def _gates() -> Iterator[Fault]:
    act, up, gate = f"{LAYER}.mlp.act_fn.silu", f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.gate_proj"
    edit = wire(act, "x", up, BOTH)
    yield _one("llama", "gate.of_up", "M33", "AC", edit, act, cause("wrong_input", "up_proj"))
    product = f"{LAYER}.mlp.mul"
    edit = [*wire(product, "b", gate, BOTH)]
    yield _one("llama", "gate.twice", "M33", "AC", edit, product, cause("wrong_input", "gate_proj"))
    experts = f"{LAYER}.mlp.experts"
    edit = attr(f"{experts}.act_fn.silu", "begin", 32, BOTH)
    said = cause("wrong_input layout")
    yield _one("qwen3_moe", "gate.other_half", "M33", "AC", edit, f"{experts}.act_fn.silu", said)


def _experts() -> Iterator[Fault]:
    path = f"{LAYER}.mlp"
    total = f"{path}.experts.sum"
    edit = wire(total, "factor", f"{path}.gate.topk", BOTH)
    said = cause("wrong_input missing_op")
    yield _one("qwen3_moe", "experts.not_renormalised", "M41", "MO", edit, total, said)
    edit = wire(f"{path}.gate.topk", "x", f"{path}.gate.linear", BOTH)
    yield _one("qwen3_moe", "experts.raw_scores", "M41", "MO", edit, f"{path}.gate.topk", said)
    edit = kernel(total, "expert_sum:one_less", BOTH)
    said = cause("partial_write missing_op wrong_variant")
    yield _one("qwen3_moe", "experts.one_less", "M41", "MO", edit, total, said)
    ids, best = f"{path}.gate.topk:int64", f"{path}.gate.topk"  # two outputs of one op of the model
    said = cause("position order wrong_variant wrong_input")
    edit = kernel(ids, "topk:next", BOTH)
    both = (shows(ids, said), shows(best, said))
    yield fault("qwen3_moe.experts.next", "MO", "M41", edit, *both, on="qwen3_moe")
    edit = wire(f"{LAYER}.add_1", "b", total, BOTH)
    said = cause("wrong_input missing_op")
    yield _one("qwen2_moe", "experts.no_shared", "M41", "MO", edit, f"{LAYER}.add_1", said)


def _ends() -> Iterator[Fault]:
    scaled = "model.embed_tokens.mul"
    said = cause("wrong_constant missing_op extra_op")
    yield _one("gemma2", "embedding.unscaled", "M34", "SC", attr(scaled, "factor", 1, BOTH), scaled, said)
    yield _one("gemma2", "embedding.twice", "M34", "SC", attr(scaled, "factor", ["D", 1], BOTH), scaled, said)
    edit = wire("lm_head", "x", f"{LAYER}.add_1", BOTH)
    yield _one("llama", "last_norm.skipped", "M34", "NG", edit, "lm_head", cause("wrong_input missing_op"))


def language_clean() -> Iterator[dict[str, Any]]:
    """M44: what must not be reported."""
    for on in ("llama", "gemma2", "gpt_oss", "qwen2_moe", "qwen3_moe", "gpt2"):
        yield {"id": f"clean.{on}", "what": "as it is", "edits": [], "on": on}
        edits = [["every", k, f"naive_{k}"] for k in ("linear", "attention_scores", "attention_mix")]
        yield {"id": f"clean.{on}.naive", "what": "another order of sums", "edits": edits, "on": on}
        yield {"id": f"clean.{on}.spread", "what": "slots reused or not", "edits": [["spread"]], "on": on}
        yield {"id": f"clean.{on}.O1", "what": "another compiler", "edits": [], "cflags": "-O1 -ffast-math", "on": on}
