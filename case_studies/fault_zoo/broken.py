"""From a fault's data to a broken engine: an edited plan, other weights, another PyTorch module.

Edits that move tensors come last, so that they are not planned away. Leaves out running and judging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.probes import edits as plan_edits
from firstbad.probes.lifetimes import assign
from firstbad.probes.plan import Plan
from firstbad.probes.plan_check import row_bytes
from firstbad.run import Prepared

HERE = Path(__file__).parent
KERNELS = tuple(sorted((HERE / "kernels").glob("*.c")))
SIZES = (("d_model", "hidden_size", "n_embd"), ("encoder_attention_heads", "num_attention_heads", "n_head"))
PLACING = ("spread", "move", "cache", "spill")

Edit = Sequence[Any]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Broken:
    """What to run in the place of the healthy engine."""

    plan: Plan
    prepared: Prepared
    module: str = ""  # of modules.py, for the torch candidate


def number(text: Any, config: Config) -> float:
    """A number, or [dim, power] of the model."""
    if isinstance(text, list):
        D, H = (next(config[k] for k in names if k in config) for names in SIZES)
        dims = {"D": D, "K": config.get("head_dim") or D // H}
        return float(dims[text[0]] ** text[1])
    return float(text)


def broken(healthy: Plan, prepared: Prepared, edits: Sequence[Edit]) -> Broken:
    """The healthy engine with every edit made."""
    plan, module, again = healthy, "", False
    for what, *rest in sorted(edits, key=lambda e: e[0] in PLACING):
        if what in PLACING and again:
            plan, again = assign(plan), False
        if what in OF_PLAN:
            plan = OF_PLAN[what](plan, prepared.config, *rest)
            again = again or (what == "rewire" and rest[-1])
        elif what == "file":
            prepared = other_weights(prepared, *rest)
        elif what == "key_bias":
            plan, prepared = key_bias(plan, prepared, *rest)
        elif what == "module":
            (module,) = rest
        else:
            raise ValueError(f"no edit `{what}`")
    return Broken(assign(plan) if again else plan, prepared, module)


def _rewired(plan: Plan, _: Config, step: str, op: str, port: str, tensor: str, _anew: bool) -> Plan:
    return plan_edits.rewire(plan, step, op, port, tensor, planned_anew=False)  # all wires first, then one new plan


def _other_kernel(plan: Plan, config: Config, step: str, op: str, kind: str, attrs: Mapping[str, Any]) -> Plan:
    plan = plan_edits.set_kind(plan, step, op, kind)
    for key, value in attrs.items():
        plan = plan_edits.set_attr(plan, step, op, key, number(value, config))
    return plan


def _other_constant(plan: Plan, config: Config, step: str, op: str, key: str, value: Any) -> Plan:
    return plan_edits.set_attr(plan, step, op, key, number(value, config))


def _other_weight(plan: Plan, _: Config, step: str, op: str, port: str, weight: str) -> Plan:
    return plan_edits.set_weight(plan, step, op, port, weight)


def _no_bias(plan: Plan, _: Config, step: str, op: str) -> Plan:
    return plan_edits.edit_op(plan, step, op, lambda o: replace(o, weights={"weight": o.weights["weight"]}))


def _every(plan: Plan, _: Config, kind: str, other: str) -> Plan:
    for step in plan.steps.values():
        for op in step.ops:
            if op.kind == kind:
                plan = plan_edits.set_kind(plan, step.name, op.name, other)
    return plan


def _spread(plan: Plan, _: Config) -> Plan:
    return assign(plan, reuse=False)


def _moved(plan: Plan, _: Config, step: str, tensor: str, onto: str) -> Plan:
    return plan_edits.move(plan, step, tensor, onto)


def late_cache(plan: Plan, _: Config, name: str, rows: int) -> Plan:
    """Decode steps keep the cache `rows` further on than prefill did."""
    step = plan.steps["decode"]
    tensor = step.tensors[name]
    more = row_bytes(tensor) * rows
    moved = replace(tensor, offset=tensor.offset + more)
    buffers = {**plan.buffers, tensor.buffer: plan.buffers[tensor.buffer] + more}
    return replace(plan, buffers=buffers).with_step(replace(step, tensors={**step.tensors, name: moved}))


def spilling(plan: Plan, _: Config, step_name: str, op: str, victim: str) -> Plan:
    """A linear op that writes past its end, and a value that is still needed laid right behind it."""
    step = plan.steps[step_name]
    own, other = step.tensors[op], step.tensors[victim]
    end = plan.buffers[own.buffer]
    sizes = {"t": 2, "n": 2} if step_name == "prefill" else dict(step.limits)
    moved = replace(own, offset=end)
    behind = replace(other, buffer=own.buffer, offset=end + own.bytes(sizes))
    buffers = {**plan.buffers, own.buffer: behind.offset + other.bytes(step.limits) + own.bytes(step.limits)}
    tensors = {**step.tensors, op: moved, victim: behind}
    plan = replace(plan, buffers=buffers).with_step(replace(step, tensors=tensors))
    return plan_edits.set_kind(plan, step_name, op, "linear:spill")


OF_PLAN: Mapping[str, Callable[..., Plan]] = {
    "rewire": _rewired,
    "kernel": _other_kernel,
    "attr": _other_constant,
    "weight": _other_weight,
    "no_bias": _no_bias,
    "every": _every,
    "spread": _spread,
    "move": _moved,
    "cache": late_cache,
    "spill": spilling,
}
"""Edit of a plan by its word; each takes the plan, the model's config and what stands behind the word."""


# ---- weights ----


def other_weights(prepared: Prepared, name: str, how: str) -> Prepared:
    """The candidate's weights as a wrong converter would have written them."""
    weights = dict(prepared.weights)
    heads = prepared.config["encoder_attention_heads"]
    if how in ("qk_permuted", "qk_scaled"):
        _jointly(weights, name, how, heads)
    else:
        weights[name] = np.ascontiguousarray(CONVERTERS[how](weights[name], heads), np.float32)
    return replace(prepared, weights=weights)


def _two_heads(w: np.ndarray, heads: int) -> np.ndarray:
    parts = w.reshape(heads, -1, w.shape[1]).copy()
    parts[[0, 1]] = parts[[1, 0]]
    return parts.reshape(w.shape)


def _int8(w: np.ndarray, _heads: int) -> np.ndarray:
    scale = np.abs(w).max(1, keepdims=True) / 127
    return np.round(w / scale) * scale


def _bf16(w: np.ndarray, _heads: int) -> np.ndarray:
    bits = np.ascontiguousarray(w, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def _fp16(w: np.ndarray, _heads: int) -> np.ndarray:
    return w.astype(np.float16).astype(np.float32)


def _zero_block(w: np.ndarray, _heads: int) -> np.ndarray:
    w = w.copy()
    w[:32, :32] = 0
    return w


def _scale_group(w: np.ndarray, _heads: int) -> np.ndarray:
    """One group of 32 terms has the scale of its neighbour."""
    w = w.copy()
    w[:, 32:64] *= 1.25
    return w


def _less_one(w: np.ndarray, _heads: int) -> np.ndarray:
    return w - 1


def _reversed(w: np.ndarray, _heads: int) -> np.ndarray:
    return w[::-1]


CONVERTERS: Mapping[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "heads": _two_heads,
    "int8": _int8,
    "bf16": _bf16,
    "fp16": _fp16,
    "zero_block": _zero_block,
    "scale_group": _scale_group,
    "gain_less_one": _less_one,
    "reversed": _reversed,
}


def _jointly(weights: dict[str, np.ndarray], attn: str, how: str, heads: int) -> None:
    """q and k changed together, so that their products stay: a permutation inside each head, a factor."""
    q, b, k = (f"{attn}.q_proj.weight", f"{attn}.q_proj.bias", f"{attn}.k_proj.weight")
    D = weights[q].shape[0]
    if how == "qk_scaled":
        weights[q], weights[b], weights[k] = weights[q] * 2, weights[b] * 2, weights[k] / 2
        return
    order = np.arange(D).reshape(heads, -1)[:, ::-1].ravel()
    for name in (q, b, k):
        weights[name] = np.ascontiguousarray(weights[name][order])


def key_bias(plan: Plan, prepared: Prepared, name: str) -> tuple[Plan, Prepared]:
    """A bias on the keys, which softmax does not see."""
    bias = f"{name}.bias"
    size = prepared.weights[f"{name}.weight"].shape[0]
    rng = np.random.default_rng(0)
    weights = {**prepared.weights, bias: rng.standard_normal(size).astype(np.float32) * 0.1}
    plan = replace(plan, weights={**plan.weights, bias: (size,)})
    plan = plan_edits.edit_op(plan, "encode", name, lambda o: replace(o, weights={**o.weights, "bias": bias}))
    return plan, replace(prepared, weights=weights)
