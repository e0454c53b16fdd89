"""From the config of a decoder-only language model to a plan: which ops, on which tensors, in which order.

One planner for many families: what sets them apart (norms, rotation, gates, windows, experts, biases) is read off the
config and the names of the weights, into `facts.Facts`. The names of values are those of the PyTorch model's, so that
both traces line up by path. Keys (turned) and values are written straight into their caches. Leaves out where tensors
lie (lifetimes.py), GPT-2's way of naming and storing things (planner_gpt2.py) and mixers that are no attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from firstbad.errors import UsageError

from . import caches, planner_gpt2
from .builder import Builder
from .facts import Facts, facts_of
from .feed_forward import Kept, Model, Shapes, experts, mlp
from .lifetimes import assign
from .mixer_delta import delta
from .plan import Dim, Plan, Step

HEADS = caches.HEADS


def plan(
    config: Mapping[str, Any],
    weights: Shapes,
    *,
    prompt: int,
    tokens: int,
    types: Mapping[str, str] | None = None,
    reuse: bool = True,
    cache: str = "stream",
) -> Plan:
    """The plan for a model's config and the shapes of its weights: room for a prompt of so many tokens, and for so many
    new ones. `types`: how weights are stored where not as float32; `reuse`: share buffers; `cache`: where keys and
    values are kept (caches.py)."""
    if config.get("model_type") == "gpt2":
        if cache != "stream":
            raise UsageError(f"the built-in C engine has no `cache={cache}` for GPT-2: leave it out")
        return assign(planner_gpt2.plan(config, weights, prompt=prompt, tokens=tokens), reuse=reuse)
    facts = facts_of(config, weights)
    positions = min(facts.positions, prompt + tokens)
    used: dict[str, tuple[int, ...]] = {}
    limits = {"t": min(prompt, positions), "n": min(prompt, positions)}
    windows = {w for w in facts.windows if w}
    window = {"w": windows.pop()} if windows else {}
    if cache == "ring" and not window:
        raise UsageError("`cache=ring` is for models with a sliding window, and this one has none: leave it out")
    kept = Kept(cache, positions)
    steps = (
        _step(
            Builder("prefill", used, {**limits, **({"w": limits["n"]} if window else {})}), facts, weights, "t", kept
        ),
        _step(Builder("decode", used, {"t": 1, "n": positions, **window}), facts, weights, 1, kept),
    )
    stored = {name: kind for name, kind in (types or {}).items() if name in used}
    made = Plan(facts.heads, positions, {}, used, {step.name: step for step in steps}, stored)
    if cache == "paged":
        paged = {name: replace(step, pages=caches.table(made)) for name, step in made.steps.items()}
        made = replace(made, steps=paged)
    return assign(made, reuse=reuse)


def _step(b: Builder, f: Facts, weights: Shapes, t: Dim, kept: Kept) -> Step:
    m = Model(b, f, weights, t, kept)
    ids = b.fed("input_ids", (1, t), "int64")
    table = f"{f.root}.embed_tokens"
    name = f"{table}.embedding" if f.embedding_scale else table
    shape = (1, t, f.width)
    x = b.op("embedding", name, shape, {"ids": ids}, weights={"weight": m.weight(f"{table}.weight")})
    if f.embedding_scale:
        x = b.op("mul", f"{table}.mul", shape, {"x": x}, attrs={"factor": f.embedding_scale})
    for turning in f.tables:
        made = []
        for word, name in (("cos", "mul_1"), ("sin", "mul_2")):
            # of several tables the reference makes any first, so that their numbers there say nothing
            path = f"{f.root}.rotary_emb.{f'{word}_of_{turning.name}' if turning.name else name}"
            weights_of = {"frequency": m.weight(turning.frequency)}
            attrs = {"scale": turning.scale, "pairs": int(f.table_pairs)}
            made.append(b.op(f"rope_{word}", path, (1, t, f.rope_width), {}, weights=weights_of, attrs=attrs))
        m.turns.update(dict.fromkeys(turning.layers, (made[0], made[1])))
    for i in range(f.layers):
        x = _layer(m, f"{f.root}.layers.{i}", x, i)
    x = m.norm(f"{f.root}.norm", x, shape)
    head = "lm_head.weight" if "lm_head.weight" in weights else f"{table}.weight"
    V = weights[head][0]
    x = b.op("linear", "lm_head", (1, t, V), {"x": x}, weights={"weight": m.weight(head)})
    if f.logit_cap:
        b.next("", "div", "tanh")
        x = b.op("soft_cap", b.next("", "mul"), (1, t, V), {"x": x}, attrs={"cap": f.logit_cap})
    if f.logit_scale:
        x = b.op("mul", b.next("", "mul"), (1, t, V), {"x": x}, attrs={"factor": f.logit_scale})
    return b.step(ids, b.op("argmax", "generate.argmax:int64", (1,), {"x": x}, dtype="int64"))


def _layer(m: Model, layer: str, x: str, i: int) -> str:
    """Norms before, after or on both sides of each half, as the weights say."""
    f, shape = m.f, (1, m.t, m.f.width)
    before = f"{layer}.input_layernorm"
    normed = m.norm(before, x, shape) if f"{before}.weight" in m.weights else x
    if i in f.linear.layers:
        mixed = delta(m, f"{layer}.linear_attn", normed, f.linear)
    else:
        mixed = _attention(m, f"{layer}.self_attn", normed, i)
    after = f"{layer}.post_attention_layernorm"
    second = f"{layer}.pre_feedforward_layernorm"
    wraps = f.post_norms  # else the norm named so is the one before the second half
    if wraps:
        mixed = m.norm(after, mixed, shape)
    x = m.stream("add", f"{layer}.add", a=x, b=mixed)
    name = second if wraps else after
    normed = m.norm(name, x, shape) if f"{name}.weight" in m.weights else x
    fed = (experts if f.experts and i not in f.dense_layers else mlp)(m, f"{layer}.mlp", normed)
    if wraps:
        fed = m.norm(f"{layer}.post_feedforward_layernorm", fed, shape)
    return m.stream("add", f"{layer}.add_1", a=x, b=fed)


def _attention(m: Model, path: str, x: str, i: int) -> str:
    b, f, t = m.b, m.f, m.t
    H, G, K = f.heads, f.key_heads, f.head
    cache = caches.kept(m.kept.layout)
    # the last op on the keys writes them into their cache
    normed, turned = f"{path}.q_norm.weight" in m.weights, i not in f.unturned
    raw: Mapping[str, Any] = {} if normed or turned else cache
    q, k, v = _projected(m, path, x, raw, cache)
    gate = ""
    if f.gated_query:
        both = q
        shapes: dict[str, tuple[Dim, ...]] = {"q": (1, t, H, K), "reshape": (1, t, H * K)}
        q, gate = (
            b.op("blocks_apart", f"{path}.{name}", shape, {"x": both}, attrs={"blocks": H, "begin": n * K, "cols": K})
            for n, (name, shape) in enumerate(shapes.items())
        )
    if normed:
        per_head = m.weights[f"{path}.q_norm.weight"] == (K,)
        q = m.norm(f"{path}.q_norm", q, (1, t, H, K) if per_head else (1, t, H * K))
        last = {} if turned else cache
        k = m.norm(f"{path}.k_norm", k, (1, t, G, K) if per_head else (1, t, G * K), **last)
    if turned:
        turns = m.turns[i]
        q, k = _turn(m, path, q, H, turns, first=True), _turn(m, path, k, G, turns, **cache)
    window = f.windows[i]
    heads: dict[str, float] = {"heads": H, "key_heads": G, **({"window": window} if window else {})}
    n: Dim = "w" if window else "n"
    k, v = (
        caches.seen(
            b,
            m.kept.layout,
            path,
            word,
            rows,
            b.next(path, "cat"),
            heads=G,
            K=K,
            window=window,
            room=m.kept.positions,
        )
        for word, rows in (("k", k), ("v", v))
    )
    scores = (1, H, t, n)
    p = b.op("attention_scores", b.next(path, "matmul"), scores, {"q": q, "k": k}, attrs=heads)
    p = b.op("mul", b.next(path, "mul"), scores, {"x": p}, attrs={"factor": f.score_scale})
    if f.score_cap:
        b.next(path, "div", "tanh")
        p = b.op("soft_cap", b.next(path, "mul"), scores, {"x": p}, attrs={"cap": f.score_cap})
    name = b.next(path, "add")
    if t == "t":  # one token sees all that the window shows
        mask = {"heads": H, **({"window": window} if window else {})}
        p = b.op("causal_mask", name, scores, {"x": p}, attrs=mask)
    if f"{path}.sinks" in m.weights:
        sinks = {"sinks": m.weight(f"{path}.sinks")}
        p = b.op("softmax_sinks", f"{path}.probabilities", scores, {"x": p}, weights=sinks)
    else:
        p = b.same("softmax", f"{path}.softmax", scores, x=p)
    name = b.next(path, "matmul")
    mixed = b.op("attention_mix", name, (1, H, t, K), {"p": p, "v": v}, attrs=heads, order=HEADS)
    if gate:
        shape = (1, t, H * K)
        opened = b.same("sigmoid", f"{path}.sigmoid", shape, x=gate)
        mixed = b.same("product", b.next(path, "mul"), shape, a=mixed, b=opened)
    return m.linear(f"{path}.o_proj", mixed)


def _projected(m: Model, path: str, x: str, for_k: Mapping[str, Any], for_v: Mapping[str, Any]) -> tuple[str, str, str]:
    """Queries, keys and values: of one product each, or parts of a common one."""
    b, t, H, G, K = m.b, m.t, m.f.heads, m.f.key_heads, m.f.head
    fused = f"{path}.qkv_proj"
    if f"{fused}.weight" not in m.weights:
        q, k = m.linear(f"{path}.q_proj", x), m.linear(f"{path}.k_proj", x, **for_k)
        return q, k, m.linear(f"{path}.v_proj", x, **for_v)
    whole = m.linear(fused, x)

    def part(word: str, begin: int, n: int, more: Mapping[str, Any]) -> str:
        attrs = {"begin": begin * K, "cols": n * K}
        return b.op("columns", f"{path}.{word}", (1, t, n, K), {"x": whole}, attrs=attrs, **more)

    return part("q", 0, H, {}), part("k", H, G, for_k), part("v", H + G, G, for_v)


def _turn(m: Model, path: str, x: str, heads: int, turns: tuple[str, str], *, first: bool = False, **more: Any) -> str:
    """Rotary positions; each family's own ops, counted so that the last one's name is right. `first`: the queries,
    which come before the keys."""
    f, b = m.f, m.b
    if f.rope_words == "four":
        b.next(path, "mul", "mul", "sub", "mul", "mul", "add")
        name = b.next(path, "cat")  # the halves are joined
    elif f.rope_words == "pass at last":
        b.next(path, *(["cat", "cat"] if first else []), "mul", "mul", "add")  # both are turned, then both joined
        name = b.next(path, "cat")
    elif f.rope_words in ("pass", "pairs and pass"):  # the rest is joined to what was turned
        b.next(path, *(["cat"] if f.rope_words == "pass" else []), "mul", "mul", "add")
        name = b.next(path, "cat")
    else:
        b.next(path, *(["cat"] if f.rope_words == "halves" else []), "mul", "mul")
        name = b.next(path, "add")
    attrs = {"turned": f.turned, "pairs": int(f.pairs), "every": 2 if f.table_pairs else 1}
    ports = {"x": x, "cos": turns[0], "sin": turns[1]}
    return b.op("rope", name, (1, heads, m.t, f.head), ports, attrs=attrs, order=HEADS, **more)
