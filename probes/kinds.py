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
    makes: str = "float32"


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


def _heads(a: Mapping[str, float], h: int) -> tuple[int, int]:
    """Heads of the queries, and of keys and values."""
    heads = int(a.get("heads", h))
    return heads, int(a.get("key_heads", heads))


def _by_head(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], h: int) -> bool:
    heads, _ = _heads(a, h)
    return heads > 0 and math.prod(y) == x["x"] and math.prod(y) % (heads * y[-1]) == 0


def _scores(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], h: int) -> bool:
    h, g = _heads(a, h)
    if h < 1 or g < 1 or h % g:
        return False
    Tk = y[-1]
    Tq = math.prod(y) // (h * Tk)
    K = x["q"] // (h * Tq) if Tq else 0
    return math.prod(y) == h * Tq * Tk and x["q"] == Tq * h * K and x["k"] == Tk * g * K


def _mix(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], h: int) -> bool:
    h, g = _heads(a, h)
    if h < 1 or g < 1 or h % g:
        return False
    K = y[-1]
    Tq = math.prod(y) // (h * K)
    Tk = x["p"] // (h * Tq) if Tq else 0
    return math.prod(y) == h * Tq * K and x["p"] == h * Tq * Tk and x["v"] == Tk * g * K


def _embedding(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return len(w["weight"]) == 2 and math.prod(y) == x["ids"] * w["weight"][1]


def _positions(_x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return len(w["weight"]) == 2 and math.prod(y) % w["weight"][1] == 0 and math.prod(y) <= math.prod(w["weight"])


def _last_row(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return x["x"] >= math.prod(y) and x["x"] % math.prod(y) == 0


def _one(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return math.prod(y) == 1 and x["x"] > 0


def _turned(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], h: int) -> bool:
    return _linear(x, {**w, "weight": w["weight"][::-1]}, y, a, h)


def _rows(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return x["x"] == math.prod(y) and math.prod(y) % math.prod(w["weight"]) == 0


def _table(_x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    frequencies = math.prod(w["frequency"])
    return y[-1] == 2 * frequencies or (y[-1] == frequencies and not a.get("pairs"))


def _rope(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    turned = int(a.get("turned", y[-1]))
    return x["x"] == math.prod(y) and x["cos"] == x["sin"] > 0 and 0 < turned <= y[-1] and turned % 2 == 0


def _columns(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    cols, begin = int(a.get("cols", y[-1])), int(a.get("begin", 0))
    rows = math.prod(y) // cols if cols > 0 else 0
    return rows > 0 and math.prod(y) == rows * cols and x["x"] % rows == 0 and 0 <= begin <= x["x"] // rows - cols


def _gated(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    """The last input may be twice as wide: a gate and what it opens, made as one."""
    count = math.prod(y)
    *first, last = x.values()
    return all(n == count for n in first) and (last == count or (last == 2 * count and 0 <= a.get("begin", 0) <= y[-1]))


def _by_row(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return x["x"] == math.prod(y) and math.prod(y) % x["factor"] == 0


def _some(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    tokens = math.prod(y) // y[-1]
    return x["x"] % tokens == 0 and x["x"] // tokens >= y[-1] and x.get("ids", math.prod(y)) == math.prod(y)


def _order(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return x["ids"] == math.prod(y)


def _experts(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    E, cols, inner = w["weight"] if len(w["weight"]) == 3 else (0, 0, 0)
    cols, inner = (inner, cols) if a.get("turned") else (cols, inner)
    count = x["ids"]
    rows = x["x"] // inner if inner else 0
    right = count % rows == 0 if rows and a.get("spread") else rows == count
    return bool(
        right and x["order"] == count and math.prod(y) == count * cols and w.get("bias", (E, cols)) == (E, cols)
    )


def _combined(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return x["order"] == x["factor"] and x["x"] == x["order"] * y[-1] and x["order"] % (math.prod(y) // y[-1]) == 0


def _sinks(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    return x["x"] == math.prod(y) and math.prod(y) % (math.prod(w["sinks"]) * y[-1]) == 0


def _stored_rows(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    return x["x"] % y[-1] == 0 and _places(a, math.prod(y) // y[-1])


def _loaded_rows(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    row = math.prod(y) // y[-2]  # [1, G, n, K]
    return x["x"] % row == 0 and _places(a, x["x"] // row)


def _apart(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    parts = [(int(a.get(f"begin{i}", 0)), int(a.get(f"cols{i}", 0))) for i in ("", "_b", "_c")]
    blocks, cols = int(a.get("blocks", 1)), sum(c for _, c in parts)
    if blocks < 1 or cols < 1 or any(n < 0 for part in parts for n in part) or math.prod(y) % (blocks * cols):
        return False
    rows = math.prod(y) // (blocks * cols)
    return x["x"] % (rows * blocks) == 0 and all(b + c <= x["x"] // (rows * blocks) for b, c in parts)


def _conv(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    C, one, N = w["weight"] if len(w["weight"]) == 3 else (0, 0, 0)
    return bool(C and one == 1 and x["x"] == math.prod(y) and x["x"] % C == 0 and x["state"] == C * N)


def _conv_state(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    return len(y) == 3 and x["state"] == math.prod(y) and x["x"] % (y[0] * y[1]) == 0 and a.get("shift", 0) >= 0


def _decay(x: Mapping[str, int], w: Mapping[str, Shape], y: Shape, _a: Mapping[str, float], _h: int) -> bool:
    H = math.prod(w["a_log"])
    return w["bias"] == w["a_log"] and x["x"] == math.prod(y) and math.prod(y) % H == 0


def _delta(x: Mapping[str, int], _w: Mapping[str, Shape], y: Shape, a: Mapping[str, float], _h: int) -> bool:
    G, H, K = (int(a.get(key, 1)) for key in ("key_heads", "heads", "key_size"))
    if G < 1 or H < 1 or K < 1 or H % G or x["state"] % (H * K) or not 0 < a.get("chunk", 64) <= 4096:
        return False
    V = x["state"] // (H * K)
    T = x["x"] // (2 * G * K + H * V)
    fits = x["x"] == T * (2 * G * K + H * V) and x["decay"] == x["beta"] == T * H
    return fits and math.prod(y) in (T * H * V, x["state"])


def _places(a: Mapping[str, float], slots: int) -> bool:
    """Whether a cache of so many slots is written round, or in pages, within its bounds."""
    page, wrap, shift = (int(a.get(key, default)) for key, default in (("page", 0), ("wrap", slots), ("shift", 0)))
    return 0 < wrap <= slots and shift >= 0 and page >= 0 and (not page or slots % page == 0)


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
    "argmax": Kind(("x",), (), _one, makes="int64"),
    # of language models
    "linear_turned": Kind(("x",), ("weight", "bias"), _turned, optional=frozenset({"bias"})),
    "rms_norm": Kind(("x",), ("weight",), _rows),
    "rope_cos": Kind((), ("frequency",), _table),
    "rope_sin": Kind((), ("frequency",), _table),
    "rope": Kind(("x", "cos", "sin"), (), _rope),
    "silu": Kind(("x",), (), _gated, elementwise=True),
    "sigmoid": Kind(("x",), (), _gated, elementwise=True),
    "gelu_tanh": Kind(("x",), (), _gated, elementwise=True),
    "product": Kind(("a", "b"), (), _gated, elementwise=True),
    "soft_cap": Kind(("x",), (), _same, elementwise=True),
    "softmax_sinks": Kind(("x",), ("sinks",), _sinks),
    "columns": Kind(("x",), (), _columns),
    "clipped_gate": Kind(("x",), (), lambda x, _w, y, _a, _h: x["x"] == 2 * math.prod(y)),
    "scale_rows": Kind(("x", "factor"), (), _by_row),
    "topk": Kind(("x",), (), _some, makes="int64"),
    "pick": Kind(("x", "ids"), (), _some),
    "renormalise": Kind(("x",), (), _same),
    "expert_order": Kind(("ids",), (), _order, makes="int64"),
    "expert_linear": Kind(("x", "ids", "order"), ("weight", "bias"), _experts, optional=frozenset({"bias"})),
    "expert_sum": Kind(("x", "order", "factor"), (), _combined),
    "store_rows": Kind(("x",), (), _stored_rows),
    "load_rows": Kind(("x",), (), _loaded_rows),
    "fill": Kind((), (), lambda _x, _w, _y, _a, _h: True),
    "blocks_apart": Kind(("x",), (), _apart),
    "causal_conv": Kind(("x", "state"), ("weight",), _conv),
    "conv_state": Kind(("x", "state"), (), _conv_state),
    "decay": Kind(("x",), ("a_log", "bias"), _decay),
    "delta_rule": Kind(("x", "decay", "beta", "state"), (), _delta),
    "delta_state": Kind(("x", "decay", "beta", "state"), (), _delta),
}
LANGUAGE = frozenset(list(KINDS)[list(KINDS).index("linear_turned") :])
"""Kinds that no plan of Whisper has."""

ROWS = frozenset({"store_rows", "load_rows"})
"""Kinds that move rows of a cache whose slots are not in the order of positions."""

NAIVE = frozenset({"linear", "conv1d", "attention_scores", "attention_mix"})


def is_further(name: str) -> bool:
    """Whether a kind is `kind:variant`: a kernel of a further C file, with the ports of `kind`."""
    return ":" in name


def kind_of(name: str) -> Kind | None:
    """The kind of that name, `naive_linear` and its like included; of `kind:variant` that of `kind`."""
    name = name.partition(":")[0]
    bare = name.removeprefix("naive_")
    return KINDS.get(bare) if bare == name or bare in NAIVE else None
