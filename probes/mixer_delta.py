"""The gated delta rule as a layer's mixer: a short convolution, a decay and a gate for each token, and a state.

Both states live on from step to step: the convolution's last inputs and the matrix of each head; prefill starts with
zeros. Tokens are worked on in chunks in prefill, one by one in decode. Leaves out the arithmetic (engine/delta.c).
"""

from __future__ import annotations

from .facts import Linear
from .feed_forward import Model
from .plan import Dim

CHUNK = 64
TIME_LAST = (0, 2, 1)
"""[1, C, t] as it lies in memory: token by token."""


def delta(m: Model, path: str, x: str, f: Linear) -> str:
    b, t = m.b, m.t
    G, H, K, V = f.key_heads, f.heads, f.key_size, f.value_size
    share = H // G  # value heads of a key head
    C = 2 * G * K + H * V
    prefill = b.name == "prefill"
    taps = m.weights[f"{path}.conv1d.weight"][2]
    both = m.linear(f"{path}.in_proj_qkvz", x)
    gates = m.linear(f"{path}.in_proj_ba", x)

    def part(name: str, shape: tuple[Dim, ...], of: str, *columns: tuple[int, int]) -> str:
        attrs = {"blocks": G}
        for suffix, (begin, cols) in zip(("", "_b", "_c"), columns, strict=False):
            attrs |= {f"begin{suffix}": begin, f"cols{suffix}": cols}
        return b.op("blocks_apart", f"{path}.{name}", shape, {"x": of}, attrs=attrs)

    z = part("reshape_1", (1, t, H, V), both, (2 * K + share * V, share * V))
    beta, a = part("reshape_2", (1, t, H), gates, (0, share)), part("reshape_3", (1, t, H), gates, (share, share))
    mixed = part("cat", (1, t, C), both, (0, K), (K, K), (2 * K, share * V))
    before, states = f"{path}.copy", f"{path}.copy_2"
    if prefill:
        before = b.op("fill", f"{path}.zeros", (1, C, taps), {}, order=TIME_LAST)
    weights = {"weight": m.weight(f"{path}.conv1d.weight")}
    made = b.op(
        "causal_conv", f"{path}.conv", (1, C, t), {"x": mixed, "state": before}, weights=weights, order=TIME_LAST
    )
    b.op("conv_state", f"{path}.copy", (1, C, taps), {"x": mixed, "state": before}, order=TIME_LAST, kept=True)
    turned = b.op("silu", f"{path}.silu", (1, C, t), {"x": made}, order=TIME_LAST)
    beta = b.same("sigmoid", f"{path}.sigmoid", (1, t, H), x=beta)
    weights = {"a_log": m.weight(f"{path}.A_log"), "bias": m.weight(f"{path}.dt_bias")}
    g = b.op("decay", f"{path}.mul", (1, t, H), {"x": a}, weights=weights)
    if prefill:
        states = b.op("fill", f"{path}.zeros_1", (1, H, K, V), {})
    attrs = {"heads": H, "key_heads": G, "key_size": K, "chunk": CHUNK if prefill else 1}
    ports = {"x": turned, "decay": g, "beta": beta, "state": states}
    if prefill:
        out = b.op("delta_rule", f"{path}.to", (1, t, H, V), ports, attrs=attrs)
    else:
        out = b.op("delta_rule", f"{path}.as_strided_scatter", (1, H, t, V), ports, attrs=attrs, order=(0, 2, 1, 3))
    b.op("delta_state", f"{path}.copy_2", (1, H, K, V), ports, attrs=attrs, kept=True)
    rows: tuple[Dim, ...] = (f"{H}t" if t == "t" else H, V)
    weights = {"weight": m.weight(f"{path}.norm.weight")}
    normed = b.op("rms_norm", f"{path}.norm.mul_1", rows, {"x": out}, weights=weights, attrs={"eps": m.f.eps})
    opened = b.same("silu", f"{path}.norm.silu", rows, x=z)
    return m.linear(f"{path}.out_proj", b.same("product", f"{path}.norm.mul_2", rows, a=normed, b=opened))
