"""The second half of a layer: a gate and what it opens, for every token or in the experts that a router chooses.

And `Model`, one step under way, which the planner's parts share. Leaves out attention (planner_causal.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .builder import Builder
from .facts import Facts
from .plan import Dim

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Kept:
    """How keys and values are kept, and positions of the whole run."""

    layout: str  # see caches.py
    positions: int


class Model:
    """One step under way."""

    def __init__(self, b: Builder, facts: Facts, weights: Shapes, t: Dim, kept: Kept) -> None:
        self.b, self.f, self.weights, self.t, self.kept = b, facts, weights, t, kept
        self.turns: dict[int, tuple[str, str]] = {}  # layer → its table of cosines, and of sines

    def weight(self, name: str) -> tuple[str, tuple[int, ...]]:
        return name, self.weights[name]

    def linear(self, name: str, x: str, *, path: str = "", **more: Any) -> str:
        """`name` of the module; `path` of the value where the module is not PyTorch's own."""
        weights = {
            port: self.weight(f"{name}.{port}") for port in ("weight", "bias") if f"{name}.{port}" in self.weights
        }
        shape = (1, self.t, weights["weight"][1][0])
        return self.b.op("linear", path or name, shape, {"x": x}, weights=weights, **more)

    def norm(self, name: str, x: str, shape: tuple[Dim, ...], **more: Any) -> str:
        attrs = {"eps": self.f.eps, "offset": self.f.norm_offset}
        weights = {"weight": self.weight(f"{name}.weight")}
        return self.b.op("rms_norm", f"{name}.mul_1", shape, {"x": x}, weights=weights, attrs=attrs, **more)

    def stream(self, kind: str, name: str, **inputs: str) -> str:
        return self.b.op(kind, name, (1, self.t, self.f.width), inputs)


def mlp(m: Model, path: str, x: str) -> str:
    fused = f"{path}.gate_up_proj"
    if f"{fused}.weight" in m.weights:
        F = m.weights[f"{fused}.weight"][0] // 2
        inner = gated(m, path, "activation_fn", (1, m.t, F), m.linear(fused, x))
    else:
        F = m.weights[f"{path}.gate_proj.weight"][0]
        gate, up = m.linear(f"{path}.gate_proj", x), m.linear(f"{path}.up_proj", x)
        inner = gated(m, path, "act_fn", (1, m.t, F), gate, up)
    return m.linear(f"{path}.down_proj", inner)


def gated(m: Model, path: str, act: str, shape: tuple[Dim, ...], gate: str, up: str = "") -> str:
    """The gate's activation times what it opens; without `up` both are halves of `gate`, the gate first."""
    name = f"{path}.{act}.{m.f.gate_word}"
    opened = m.b.op(m.f.gate, name, shape, {"x": gate}, attrs={} if up else {"begin": 0})
    ports = {"a": opened, "b": up or gate}
    F = shape[-1]
    assert isinstance(F, int)
    return m.b.op("product", m.b.next(path, "mul"), shape, ports, attrs={} if up else {"begin": F})


def experts(m: Model, path: str, x: str) -> str:
    """A router chooses S of E experts for each token; their rows are computed in the experts' order."""
    b, f, t = m.b, m.f, m.t
    inside, S, D = f"{path}.experts", f.chosen, f.width
    ids, factor = (_chosen_first if f.chosen_first else _chosen)(m, path, x)
    N: Dim = f"{S}t" if t == "t" else S  # rows of all experts together
    order = b.op("expert_order", f"{inside}.sort:int64_1", (N,), {"ids": ids}, dtype="int64")
    biased = f"{inside}.down_proj_bias" in m.weights
    F = m.weights[f"{inside}.down_proj"][1 if f.experts_turned else 2]

    def linear(part: str, name: str, x: str, cols: int, **attrs: float) -> str:
        weights = {"weight": m.weight(f"{inside}.{part}")}
        if biased:
            weights["bias"] = m.weight(f"{inside}.{part}_bias")
        ports = {"x": x, "ids": ids, "order": order}
        attrs = {"turned": int(f.experts_turned), **attrs}
        return b.op("expert_linear", f"{inside}.{name}", (N, cols), ports, weights=weights, attrs=attrs)

    both = linear("gate_up_proj", "add" if biased else "_grouped_mm", x, 2 * F, spread=1)
    if f.clipped:
        attrs = {"limit": f.clipped, "slope": f.slope}
        inner = b.op("clipped_gate", f"{inside}.mul_2", (N, F), {"x": both}, attrs=attrs)
    else:
        inner = gated(m, inside, "act_fn", (N, F), both)
    fed = linear("down_proj", "add_2" if biased else "_grouped_mm_1", inner, D)
    total = b.op("expert_sum", f"{inside}.sum", (1, t, D), {"x": fed, "order": order, "factor": factor})
    shared = f"{path}.shared_expert"
    if f"{shared}.gate_proj.weight" in m.weights:
        beside = mlp(m, shared, x)
        opened = b.same("sigmoid", f"{path}.sigmoid", (1, t, 1), x=m.linear(f"{path}.shared_expert_gate", x))
        beside = b.op("scale_rows", f"{path}.mul", (1, t, D), {"x": beside, "factor": opened})
        total = b.same("add", f"{path}.add", (1, t, D), a=total, b=beside)
    return total


def _chosen(m: Model, path: str, x: str) -> tuple[str, str]:
    """Experts and their shares: of all experts' probabilities the largest, as they are or made to sum to one."""
    b, gate, S = m.b, f"{path}.gate", m.f.chosen
    scores = m.linear(gate, x, path=f"{gate}.linear")
    p = b.same("softmax", f"{gate}.softmax", (m.t, m.weights[f"{gate}.weight"][0]), x=scores)
    ids = b.op("topk", f"{gate}.topk:int64", (m.t, S), {"x": p}, dtype="int64")
    factor = b.op("pick", f"{gate}.topk", (m.t, S), {"x": p, "ids": ids})
    return ids, b.same("renormalise", f"{gate}.div", (m.t, S), x=factor) if m.f.renormalised else factor


def _chosen_first(m: Model, path: str, x: str) -> tuple[str, str]:
    """The largest scores first, then probabilities among them."""
    b, router, S = m.b, f"{path}.router", m.f.chosen
    scores = m.linear(router, x, path=f"{router}.linear")
    ids = b.op("topk", f"{router}.topk:int64", (m.t, S), {"x": scores}, dtype="int64")
    best = b.op("pick", f"{router}.topk", (m.t, S), {"x": scores, "ids": ids})
    return ids, b.same("softmax", f"{router}.softmax", (m.t, S), x=best)
