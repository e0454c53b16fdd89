"""Which value of the reference each node of a ggml graph is, and what arithmetic made it.

The names are those of transformers' Whisper (see reference/names.py); nodes that are a part of a value (the product
before its bias) or a copy of one say of which. With each value goes what was rounded on the way: a product of f16
weights rounds its other factor to f16, a key is kept as f16. Leaves out contents: a name that is wrong shows as a
fault, and what has no name here is aligned by content (firstbad/matching.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .ggml_graph import GgmlGraph, Node, Source

ROUNDED = {  # type of a product's first factor → what the second is rounded to
    **dict.fromkeys(("f16",), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl"), "q8_0"),
    **dict.fromkeys(("q4_1", "q5_1"), "q8_1"),
    **dict.fromkeys(("q2_K", "q3_K", "q4_K", "q5_K", "q6_K"), "q8_K"),
}

TILED = 64
"""Queries from which ggml's fused attention works in tiles, in float32; with fewer it rounds q and each partial sum."""

Rounding = tuple[Any, ...]
"""(type, factor of the reference that the engine has not, factor that the engine has before it rounds; and where it
matters: what leads back to the reference's number, the axis of blocks, the size of a head in pairs); see
firstbad/arithmetic.py."""


@dataclass
class Named:
    """A node: `name` of the reference's value, or `part_of` one; `step` where it is another than the graph's."""

    name: str = ""
    part_of: str = ""
    step: str = ""
    arithmetic: dict[str, list[Rounding | None]] = field(default_factory=dict)
    keys: int = 0  # positions that a fused attention runs over
    accumulates: str = ""  # type of a sum that is rounded after each term; "": float32
    part: int = 0  # of the last axis, how much is no padding; 0: all
    rows: tuple[int, ...] = ()  # the only ones that are computed; (): all
    pairs: int = 0  # size of a head whose numbers are in the order of rotary positions of adjacent pairs; 0: by halves
    kept: bool = False  # what it writes is a cache: not stored whole at each step
    base: float = 0.0  # of the angles by which a ROPE turns, where they are base^(-2 i / K) times the position
    alone: str = ""  # why it is no value of the reference


@dataclass(frozen=True)
class _Origin:
    """Which value a node shows, and by what it was multiplied since."""

    name: str
    factor: float = 1.0
    type: str = "f32"


def _back(own: float, q: _Origin, k: _Origin, after: float) -> float:
    """By what a rounded key is the reference's: q has `own` there, and here its factor and what scores are multiplied
    by afterwards. 0 where these are not the same number to a few roundings: then another scale is the fault."""
    near = after > 0 and abs(q.factor * k.factor * after / own - 1) < 1e-6
    return q.factor * after / own if near else 0.0


@dataclass
class Caches:
    """What stands where in each cache over the whole run: (from, to, what); and what named nodes are."""

    spans: dict[int, list[tuple[int, int, _Origin]]] = field(default_factory=dict)
    made: dict[str, _Origin] = field(default_factory=dict)
    kept: dict[int, _Origin] = field(default_factory=dict)  # leaf of a cache → whose rows stand in it
    slots: dict[int, None] = field(default_factory=dict)  # of a key-value cache, in the order of positions

    def put(self, leaf: int, start: int, end: int, origin: _Origin) -> None:
        held = [s for s in self.spans.get(leaf, []) if s[0] < start or s[1] > end]  # what is not written over whole
        self.spans[leaf] = [*held, (start, end, origin)]

    def find(self, leaf: int, start: int, end: int) -> _Origin | None:
        inside = [origin for low, high, origin in self.spans.get(leaf, ()) if low < end and high > start]
        names = {origin.name for origin in inside}
        return inside[-1] if len(names) == 1 else None


class Namer:
    """Names the nodes of one graph."""

    def __init__(self, graph: GgmlGraph, weights: Mapping[int, str], caches: Caches, step: str) -> None:
        self.graph = graph
        self.weights = weights
        self.caches = caches
        self.step = step
        self.named: dict[int, Named] = {}
        self._origins: dict[int, _Origin] = {}
        self._counts: dict[str, int] = {}

    def run(self) -> dict[int, Named]:
        for node in self.graph.nodes:
            if not node.is_view:
                found = self._name(node)
                found.step = "prefill" if self.step == "encode" and ".decoder." in (found.name or found.part_of) else ""
                self.named[node.number] = found
        return self.named

    def _name(self, node: Node) -> Named:
        rule = getattr(self, f"_{node.op.lower()}", None)
        found: Named | None = rule(node) if rule is not None else None
        if found is None or not (found.name or found.part_of):
            return Named()
        shown = found.name or found.part_of
        if node.number not in self._origins and shown:
            self._origins[node.number] = _Origin(shown, type=node.type)
        if shown and node.name and not node.name.startswith("node_"):
            self.caches.made[node.name] = self._origins[node.number]
        return found

    # What a source is.

    def _weight(self, node: Node, slot: int) -> str:
        leaf = self.graph.leaf(node.sources[slot]) if slot < len(node.sources) else None
        return self.weights.get(leaf.number, "") if leaf is not None and leaf.weight else ""

    def _module(self, node: Node, slot: int) -> str:
        return self._weight(node, slot).rpartition(".")[0]

    def _origin(self, source: Source) -> _Origin | None:
        at = self.graph.base(source)
        if at.number >= 0:
            return self._origins.get(at.number)
        leaf = self.graph.leaves.get(at.leaf)
        if leaf is not None and leaf.name in self.caches.made:  # another graph's result
            return self.caches.made[leaf.name]
        shown = self.graph.nodes[source.number] if source.number >= 0 else None
        return self.caches.find(at.leaf, at.offset, at.offset + shown.span) if shown is not None else None

    def _before(self, node: Node, slot: int) -> Node | None:
        at = self.graph.base(node.sources[slot])
        return self.graph.nodes[at.number] if at.number >= 0 else None

    def _only_reader(self, node: Node) -> Node | None:
        readers = self.graph.readers.get(node.number, ())
        return self.graph.nodes[readers[0]] if len(readers) == 1 else None

    def _counted(self, path: str) -> str:
        """The n-th value of a word is called word_n, as the reference does."""
        n = self._counts[path] = self._counts.get(path, -1) + 1
        return f"{path}_{n}" if n else path

    # One rule an op.

    def _mul_mat(self, node: Node) -> Named | None:
        first, second = self.graph.leaf(node.sources[0]), self.graph.leaf(node.sources[1])
        for slot, leaf in ((0, first), (1, second)):
            module = self._module(node, slot)
            if leaf is not None and leaf.weight and module:
                return self._product(node, module, leaf.type, slot)
        a, b = self._origin(node.sources[0]), self._origin(node.sources[1])
        if a is None or b is None:
            return None
        attention = a.name.rpartition(".")[0]
        if a.name.endswith("k_proj") and b.name.endswith("q_proj"):
            return self._scores(node, attention, a, b)
        if a.name.endswith("v_proj") and b.name.endswith(".softmax"):
            name = f"{attention}.matmul_1"
            to = ROUNDED.get(a.type)
            rounding = [(to, 1.0, 1.0), (to, 1.0, 1.0)] if to else []
            return Named(name, arithmetic={name: list(rounding)} if rounding else {})
        return None

    def _product(self, node: Node, module: str, kind: str, slot: int) -> Named:
        if module.endswith("embed_tokens"):
            module = "proj_out"
        to = ROUNDED.get(kind)
        arithmetic: dict[str, list[Rounding | None]] = {module: [(to, 1.0, 1.0)]} if to and slot == 0 else {}
        if slot == 1:  # of a convolution: its columns, as im2col made them
            columns = self._before(node, 0)
            to = ROUNDED.get(columns.type) if columns is not None else None
            arithmetic = {module: [(to, 1.0, 1.0)]} if to else {}
        reader = self._only_reader(node)
        if reader is not None and reader.op == "ADD" and self._bias_of(reader, module):
            return Named(part_of=module, arithmetic=arithmetic)
        return Named(module, arithmetic=arithmetic)

    def _bias_of(self, node: Node, module: str) -> bool:
        return any(self._weight(node, slot) == f"{module}.bias" for slot in (0, 1))

    def _scores(self, node: Node, attention: str, k: _Origin, q: _Origin) -> Named:
        K = self.graph.nodes[node.sources[0].number].ne[0] if node.sources[0].number >= 0 else 1
        own = float(K) ** -0.5  # the reference multiplies q by it before the product
        name = f"{attention}.matmul"
        to = ROUNDED.get(k.type)
        reader = self._only_reader(node)
        after = reader.number_at(0) if reader is not None and reader.op in ("SOFT_MAX", "SCALE") else 0.0
        rounding: list[Rounding | None] = []
        if to:
            rounding = [(to, own, q.factor), (to, 1.0, k.factor, _back(own, q, k, after))]
        arithmetic = {name: rounding} if rounding else {}
        self._origins[node.number] = _Origin(name, q.factor * k.factor / own)
        if abs(q.factor * k.factor / own - 1) < 1e-6:
            return Named(name, arithmetic=arithmetic)
        return Named(part_of=f"{attention}.softmax", arithmetic=arithmetic)

    def _soft_max(self, node: Node) -> Named | None:
        scores = self._origin(node.sources[0])
        return Named(f"{scores.name.rpartition('.')[0]}.softmax") if scores is not None else None

    def _flash_attn_ext(self, node: Node) -> Named | None:
        q, k, v = (self._origin(source) for source in node.sources[:3])
        if q is None or k is None or v is None:
            return None
        attention = q.name.rpartition(".")[0]
        own = float(node.ne[0]) ** -0.5
        to = ROUNDED.get(k.type)
        scores, out = f"{attention}.matmul", f"{attention}.matmul_1"
        few = node.ne[2] < TILED  # [V,H,t]
        rounds_q: Rounding | None = (to, own, q.factor) if to and few else None
        arithmetic: dict[str, list[Rounding | None]] = {}
        if to:
            back = _back(own, q, k, node.number_at(0))
            arithmetic = {scores: [rounds_q, (to, 1.0, k.factor, back)], out: [None, (to, 1.0, 1.0)]}
        kept = node.sources[1].number
        keys = self.graph.nodes[kept].ne[1] if kept >= 0 else 0
        return Named(out, arithmetic=arithmetic, keys=keys, accumulates="float16" if few and v.type == "f16" else "")

    def _add(self, node: Node) -> Named | None:
        for slot in (1, 0):
            word = self._weight(node, slot)
            if word.endswith(".bias"):
                return Named(word.removesuffix(".bias"))
            if "embed_positions" in word:
                return Named(self._counted(f"{word.partition('.embed_positions')[0]}.add"))
        origins = [self._origin(source) for source in node.sources]
        for origin in origins:
            if origin is None:
                return None
        layers = [m[0] for o in origins if o and (m := re.search(r".*\.layers\.\d+", o.name))]
        if layers:
            return Named(self._counted(f"{max(layers, key=len) if len(layers) == 1 else self._inner(origins)}.add"))
        if any(o and ".embed_positions" in o.name for o in origins):
            return Named(self._counted("model.decoder.add"))
        return None

    @staticmethod
    def _inner(origins: list[_Origin | None]) -> str:
        """The layer of the addend that is no sum: the residual stream may come from the layer before."""
        for origin in origins:
            if origin is not None and not re.search(r"\.add(_\d+)?$", origin.name):
                found = re.search(r".*\.layers\.\d+", origin.name)
                return found[0] if found else ""
        return ""

    def _norm(self, node: Node) -> Named | None:
        reader = self._only_reader(node)
        if reader is None or reader.op != "MUL":
            return None
        module = self._module(reader, 1)
        return Named(part_of=module) if module else None

    def _mul(self, node: Node) -> Named | None:
        module = self._module(node, 1)
        reader = self._only_reader(node)
        if not module:
            return None
        if reader is not None and reader.op == "ADD" and self._bias_of(reader, module):
            return Named(part_of=module)
        return Named(module)

    def _gelu(self, node: Node) -> Named | None:
        origin = self._origin(node.sources[0])
        if origin is None:
            return None
        parent = origin.name.rpartition(".")[0]
        return Named(f"{parent}.activation_fn.gelu" if ".layers." in parent else self._counted(f"{parent}.gelu"))

    def _get_rows(self, node: Node) -> Named | None:
        module = self._module(node, 0)
        if not module:
            return None
        return Named(f"{module}.index" if "decoder.embed_positions" in module else module)

    def _scale(self, node: Node) -> Named | None:
        origin = self._origin(node.sources[0])
        if origin is None:
            return None
        self._origins[node.number] = _Origin(origin.name, origin.factor * node.number_at(0), node.type)
        return Named(part_of=origin.name)

    def _im2col(self, node: Node) -> Named | None:
        module = self._module(node, 0)
        return Named(part_of=module) if module else None

    def _copy(self, node: Node) -> Named | None:
        origin = self._origin(node.sources[0])
        if origin is None:
            return None
        shown = _Origin(origin.name, origin.factor, node.type)
        self._origins[node.number] = shown
        target = self.graph.base(node.view) if node.view is not None else None
        if target is not None and target.number < 0:
            offset = max(node.view.offset if node.view else 0, target.offset)
            self.caches.put(target.leaf, offset, offset + node.span, shown)
        return Named(part_of=origin.name)

    _cpy = _cont = _dup = _copy
