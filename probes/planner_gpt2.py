"""From GPT-2's config to a plan: learned positions, layer norms with a shift, and weights that lie the other way round.

Its names and the fused projection of queries, keys and values are its own. Leaves out where tensors lie (lifetimes.py)
and the variants that no checkpoint of GPT-2 has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstbad.errors import UsageError

from .builder import Builder
from .plan import Dim, Plan, Step

GATES = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


def plan(config: Mapping[str, Any], weights: Mapping[str, tuple[int, ...]], *, prompt: int, tokens: int) -> Plan:
    """As planner_causal.plan, without places in memory."""
    odd = [k for k in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn") if config.get(k)]
    if odd or config.get("activation_function") not in GATES or not config.get("scale_attn_weights", True):
        raise UsageError(f"the built-in C engine knows no GPT-2 with `{(odd or ['this activation or scale'])[0]}`")
    positions = min(config["n_positions"], prompt + tokens)
    room = min(prompt, positions)
    used: dict[str, tuple[int, ...]] = {}
    steps = (
        _step(Builder("prefill", used, {"t": room, "n": room}), config, weights, "t"),
        _step(Builder("decode", used, {"t": 1, "n": positions}), config, weights, 1),
    )
    return Plan(config["n_head"], positions, {}, used, {step.name: step for step in steps})


def _step(b: Builder, config: Mapping[str, Any], weights: Mapping[str, tuple[int, ...]], t: Dim) -> Step:
    D, H, root = config["n_embd"], config["n_head"], "transformer"
    K, stream = D // H, (1, t, D)
    eps = {"eps": float(config["layer_norm_epsilon"])}

    def linear(name: str, x: str) -> str:
        ports = {port: (f"{name}.{port}", weights[f"{name}.{port}"]) for port in ("weight", "bias")}
        return b.op("linear_turned", f"{name}.addmm", (t, ports["weight"][1][1]), {"x": x}, weights=ports)

    def norm(name: str, x: str) -> str:
        ports = {port: (f"{name}.{port}", (D,)) for port in ("weight", "bias")}
        return b.op("layer_norm", name, stream, {"x": x}, weights=ports, attrs=eps)

    ids = b.fed("input_ids", (1, t), "int64")
    table = (f"{root}.wte.weight", weights[f"{root}.wte.weight"])
    words = b.op("embedding", f"{root}.wte", stream, {"ids": ids}, weights={"weight": table})
    rows = {"weight": (f"{root}.wpe.weight", weights[f"{root}.wpe.weight"])}
    places = b.op("positions", f"{root}.wpe", stream, {}, weights=rows, attrs={"decoder": 1})
    x = b.same("add", f"{root}.add", stream, a=words, b=places)
    for i in range(config["n_layer"]):
        layer = f"{root}.h.{i}"
        attn = f"{layer}.attn"
        fused = linear(f"{attn}.c_attn", norm(f"{layer}.ln_1", x))
        q, k, v = (
            b.op(
                "columns",
                f"{attn}.{part}",
                stream,
                {"x": fused},
                attrs={"begin": n * D},
                kept=part != "q",
                rows=part != "q",
            )
            for n, part in enumerate("qkv")
        )
        scores = (1, H, t, "n")
        p = b.same("attention_scores", f"{attn}.matmul", scores, q=q, k=k)
        p = b.op("mul", f"{attn}.mul", scores, {"x": p}, attrs={"factor": K**-0.5})
        if t == "t":
            p = b.same("causal_mask", f"{attn}.add", scores, x=p)
        p = b.same("softmax", f"{attn}.softmax", scores, x=p)
        mixed = b.op("attention_mix", f"{attn}.matmul_1", (1, H, t, K), {"p": p, "v": v}, order=(0, 2, 1, 3))
        x = b.same("add", f"{layer}.add", stream, a=linear(f"{attn}.c_proj", mixed), b=x)
        h = linear(f"{layer}.mlp.c_fc", norm(f"{layer}.ln_2", x))
        kind = GATES[config["activation_function"]]
        name = f"{layer}.mlp.act." + ("mul_3" if config["activation_function"] == "gelu_new" else "gelu")
        F = weights[f"{layer}.mlp.c_fc.weight"][1]
        h = b.same(kind, name, (1, t, F), x=h)
        x = b.same("add", f"{layer}.add_1", stream, a=x, b=linear(f"{layer}.mlp.c_proj", h))
    x = norm(f"{root}.ln_f", x)
    head = table if "lm_head.weight" not in weights else ("lm_head.weight", weights["lm_head.weight"])
    x = b.op("linear", "lm_head", (1, t, head[1][0]), {"x": x}, weights={"weight": head})
    return b.step(ids, b.op("argmax", "generate.argmax:int64", (1,), {"x": x}, dtype="int64"))
