"""The kinds of op that the built-in engine knows: the ports of each, and whether sizes fit.

The table mirrors engine/calls.c. A `naive_` kind is the oracle of the kernel of that name; `kind:variant` is another
kernel for the same ports, from a C file that is compiled in beside the engine's. Leaves out the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
Fits = Callable[[Mapping[str, int], Mapping[str, Shape], Shape, Mapping[str, float], int], bool]
"""(elements of each input, shape of each weight, shape of the output, attributes, heads) → whether they fit."""


@dataclass(frozen=True, slots=True)
class Kind:
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    fits: Fits
    optional: frozenset[str] = frozenset()  # weights that may be left out
    cached: frozenset[str] = frozenset()  # inputs that see a whole cache, where they are wired to one
    elementwise: bool = False  # reads an element for the last time when it writes it: may run in place


def _linear(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    cols, inner = w["weight"] if len(w["weight"]) == 2 else (0, 0)
    bias = w.get("bias", (cols,)) == (cols,)
    return bool(cols and bias and math.prod(y) % cols == 0 and x["x"] == math.prod(y) // cols * inner)


def _conv1d(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    if len(w["weight"]) != 3 or w["weight"][2] != 3 or w["bias"] != w["weight"][:1]:
        return False
    D, C, _taps = w["weight"]
    stride, L = int(a.get("stride", 1)), x["x"] // C
    return stride > 0 and x["x"] == C * L and math.prod(y) == D * ((L - 1) // stride + 1)


def _same(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return all(count == math.prod(y) for count in x.values())


def _layer_norm(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    D = math.prod(w["weight"])
    return w["bias"] == w["weight"] and x["x"] == math.prod(y) and math.prod(y) % D == 0


def _by_head(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], h: int) -> bool:
    return math.prod(y) == x["x"] and math.prod(y) % (h * y[-1]) == 0


def _scores(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], h: int) -> bool:
    Tk = y[-1]
    Tq = math.prod(y) // (h * Tk)
    K = x["q"] // (h * Tq) if Tq else 0
    return math.prod(y) == h * Tq * Tk and x["q"] == Tq * h * K and x["k"] == Tk * h * K


def _mix(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], h: int) -> bool:
    K = y[-1]
    Tq = math.prod(y) // (h * K)
    Tk = x["p"] // (h * Tq) if Tq else 0
    return math.prod(y) == h * Tq * K and x["p"] == h * Tq * Tk and x["v"] == Tk * h * K


def _embedding(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return len(w["weight"]) == 2 and math.prod(y) == x["ids"] * w["weight"][1]


def _positions(_x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return len(w["weight"]) == 2 and math.prod(y) % w["weight"][1] == 0 and math.prod(y) <= math.prod(w["weight"])


def _last_row(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return x["x"] >= math.prod(y) and x["x"] % math.prod(y) == 0


def _one(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return math.prod(y) == 1 and x["x"] > 0


KINDS: Mapping[str, Kind] = {
    "linear": Kind(("x",), ("weight", "bias"), _linear, optional=frozenset({"bias"})),
    "conv1d": Kind(("x",), ("weight", "bias"), _conv1d),
    "gelu": Kind(("x",), (), _same, elementwise=True),
    "mul": Kind(("x",), (), _same, elementwise=True),
    "add": Kind(("a", "b"), (), _same, elementwise=True),
    "add_permuted": Kind(("a", "b"), (), _same),
    "layer_norm": Kind(("x",), ("weight", "bias"), _layer_norm),
    "causal_mask": Kind(("x",), (), _by_head, elementwise=True),
    "softmax": Kind(("x",), (), _same, elementwise=True),
    "attention_scores": Kind(("q", "k"), (), _scores, cached=frozenset({"k"})),
    "attention_mix": Kind(("p", "v"), (), _mix, cached=frozenset({"v"})),
    "embedding": Kind(("ids",), ("weight",), _embedding),
    "positions": Kind((), ("weight",), _positions),
    "masked_fill": Kind(("x",), (), _last_row),
    "argmax": Kind(("x",), (), _one),
}
NAIVE = frozenset({"linear", "conv1d", "attention_scores", "attention_mix"})


def is_further(name: str) -> bool:
    """Whether a kind is `kind:variant`: a kernel of a further C file, with the ports of `kind`."""
    return ":" in name


def kind_of(name: str) -> Kind | None:
    """The kind of that name, `naive_linear` and its like included; of `kind:variant` that of `kind`."""
    name = name.partition(":")[0]
    bare = name.removeprefix("naive_")
    return KINDS.get(bare) if bare == name or bare in NAIVE else None
