"""Which value of the reference each node of llama.cpp's graphs is: the names of transformers' causal language models.

As ggml_names.py does for Whisper, from the weights that nodes read. What goes into a key-value cache is followed: which
slot holds which position says the op that writes it, so what is read of a longer cache is known. Rows in the order of
rotary positions of adjacent pairs are told by the mode of the ROPE that reads them. Leaves out mixtures of experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from firstbad.errors import CompareError

from .ggml_graph import GgmlGraph, Node, Source
from .ggml_names import ROUNDED, TILED, Caches, Named, Namer, Rounding, _Origin

CACHED = {"f16": "float16", "bf16": "bfloat16", "q8_0": "q8_0"}
"""Types of a cache that round what is kept → to what."""

ADJACENT = 0
"""Mode of a ROPE that turns numbers 2 j and 2 j + 1; others turn j and j + K/2, as transformers does."""


class LlamaNamer(Namer):
    """Names the nodes of one graph; `inputs`: what its input leaves hold."""

    def __init__(
        self,
        graph: GgmlGraph,
        weights: Mapping[int, str],
        caches: Caches,
        step: str,
        inputs: Mapping[int, np.ndarray],
    ) -> None:
        super().__init__(graph, weights, caches, step)
        self.inputs = inputs
        self._rows: dict[int, tuple[int, ...]] = {}
        self._live = set(_live(graph))

    def run(self) -> dict[int, Named]:
        for node in self.graph.nodes:
            if node.is_view:
                continue
            if node.number not in self._live:
                self.named[node.number] = Named(alone="nothing reads it")
                continue
            found = self._name(node)
            rows = found.rows or next((r for s in node.sources if (r := self._rows_of(s))), ())
            if rows:
                self._rows[node.number] = rows
                found.rows = rows
            self.named[node.number] = found
        return self.named

    def _rows_of(self, source: Source) -> tuple[int, ...]:
        return self._rows.get(self.graph.base(source).number, ())

    def _origin(self, source: Source) -> _Origin | None:
        at = self.graph.base(source)
        return self.caches.kept.get(at.leaf) if at.number < 0 else self._origins.get(at.number)

    # One rule an op; those of sums, copies and products of weights are Whisper's.

    def _get_rows(self, node: Node) -> Named | None:
        if self._module(node, 0):
            return Named(self._module(node, 0))
        origin, chosen = self._origin(node.sources[0]), self.graph.leaf(node.sources[1])
        held = self.inputs.get(chosen.number) if chosen is not None else None
        if origin is None or held is None:
            return None
        self._origins[node.number] = origin
        return Named(part_of=origin.name, rows=tuple(int(i) for i in held.reshape(-1)))

    def _rms_norm(self, node: Node) -> Named | None:
        reader = self._only_reader(node)
        module = self._module(reader, 1) if reader is not None and reader.op == "MUL" else ""
        return Named(f"{module}.mul") if module else None

    def _mul(self, node: Node) -> Named | None:
        module = self._module(node, 1)
        if module:
            return Named(f"{module}.mul_1", pairs=self._pairs(node))
        origin = self._origin(node.sources[0])
        return self._gated(origin) if origin is not None and origin.name.endswith("silu") else None

    def _mul_mat(self, node: Node) -> Named | None:
        first = self.graph.leaf(node.sources[0])
        if first is not None and first.weight and self._module(node, 0):
            found = self._product(node, self._module(node, 0), first.type, 0)
            if "proj_out" in found.arithmetic:
                found.arithmetic = {"lm_head": found.arithmetic["proj_out"]}
            return replace(found, name=found.name.replace("proj_out", "lm_head"), pairs=self._pairs(node))
        a, b = self._origin(node.sources[0]), self._origin(node.sources[1])
        if a is None or b is None:
            return None
        attention, to = a.name.rpartition(".")[0], ROUNDED.get(a.type)
        name = f"{attention}.matmul" if b.name == f"{attention}.add" else f"{attention}.matmul_1"
        if not name.endswith("_1"):
            found = Named(name, part=self._positions(node.ne[0]))
        elif b.name == f"{attention}.softmax":
            found = Named(name)
        else:
            return None
        both: list[Rounding | None] = [(to, 1.0, 1.0), (to, 1.0, 1.0)] if to else []
        if not name.endswith("_1"):
            both = [one for one in self._kept_keys(node.sources[1], a.type) if one]
        return replace(found, arithmetic={name: both} if both else {})

    def _positions(self, slots: int) -> int:
        """Of so many slots that are read, how many hold something; 0: they are not the first ones in order."""
        held = len(self.caches.slots)
        return held if held < slots and list(self.caches.slots) == list(range(held)) else 0

    def _soft_max(self, node: Node) -> Named | None:
        scores = self._origin(node.sources[0])
        if scores is None:
            return None
        return Named(f"{scores.name.rpartition('.')[0]}.softmax", part=self._positions(node.ne[0]))

    def _rope(self, node: Node) -> Named | None:
        origin = self._origin(node.sources[0])
        if origin is None:
            return None
        attention = re.sub(r"\.[qk]_(proj|norm\.mul_1)$", "", origin.name)
        word = origin.name.removeprefix(attention)[1:2]
        if word not in ("q", "k"):
            return None
        plain = (node.number_at(6), node.number_at(7), node.number_at(8)) == (1.0, 0.0, 1.0) and len(node.sources) == 2
        name = f"{attention}.add" if word == "q" else f"{attention}.add_1"
        return Named(name, pairs=self._turned(node), base=node.number_at(5) if plain else 0.0)

    def _pairs(self, node: Node) -> int:
        """The size of a head, where what the node makes goes into a ROPE of adjacent pairs."""
        for _ in range(4):
            reader = self._only_reader(node)
            if reader is None or reader.op not in ("ROPE", "ADD", "RMS_NORM", "MUL"):
                return 0
            if reader.op == "ROPE":
                return self._turned(reader)
            node = reader
        return 0

    @staticmethod
    def _turned(rope: Node) -> int:
        return rope.params[1] if rope.params[2] == ADJACENT and rope.params[1] == rope.ne[0] else 0

    def _set_rows(self, node: Node) -> Named | None:
        origin = self._origin(node.sources[0])
        target = self.graph.base(node.view) if node.view is not None else None
        if target is None or target.number >= 0:
            return None
        if origin is None and node.type not in ("f32", "f16", "bf16"):
            raise CompareError(
                f"the engine turns what it keeps in a cache of type {node.type}, which is not modelled here: choose "
                "f16 for keys and values"
            )
        if origin is None:
            return None
        if node.type != "f32" and node.type not in CACHED:
            raise CompareError(
                f"the engine keeps {origin.name} in a cache of type {node.type}, whose rounding is not modelled here: "
                f"choose f32, {', '.join(CACHED)}"
            )
        self.caches.kept[target.leaf] = _Origin(origin.name, type=node.type)
        self._origins[node.number] = self.caches.kept[target.leaf]
        index = self.graph.leaf(node.sources[1])
        held = self.inputs.get(index.number) if index is not None else None
        if origin.name.endswith(".add_1") and held is not None:
            self.caches.slots.update(dict.fromkeys(int(i) for i in held.reshape(-1)))
        return Named(part_of=origin.name, kept=True)

    def _flash_attn_ext(self, node: Node) -> Named | None:
        q, k, v = (self._origin(source) for source in node.sources[:3])
        if q is None or k is None or v is None:
            return None
        attention = q.name.rpartition(".")[0]
        few = node.ne[2] < TILED or k.type not in ("f16", "f32") or k.type != v.type  # [V,H,t]
        scores, out = f"{attention}.matmul", f"{attention}.matmul_1"
        of_query, of_key = self._kept_keys(node.sources[0], k.type)
        arithmetic: dict[str, list[Rounding | None]] = {}
        if of_key:
            arithmetic[scores] = [of_query if few else None, of_key]
        if v.type in CACHED:
            arithmetic[out] = [None, (CACHED[v.type], 1.0, 1.0)]
        kept = node.sources[1].number
        keys = self.graph.nodes[kept].ne[1] if kept >= 0 else 0
        return Named(out, arithmetic=arithmetic, keys=keys, accumulates="float16" if few and v.type == "f16" else "")

    def _kept_keys(self, query: Source, kind: str) -> tuple[Rounding | None, Rounding | None]:
        """To what the query and the keys of a cache of that type are rounded; blocks are of the cache's rows."""
        if kind not in CACHED:
            return None, None
        maker = self.named.get(self.graph.base(query).number)
        pairs = maker.pairs if maker is not None and kind == "q8_0" else 0
        to = CACHED[kind]
        if kind != "q8_0":
            return (to, 1.0, 1.0), (to, 1.0, 1.0)
        return (to, 1.0, 1.0, 0.0, -1, pairs), (to, 1.0, 1.0, 0.0, -2, pairs)

    def _add(self, node: Node) -> Named | None:
        for slot in (1, 0):
            word = self._weight(node, slot)
            if word.endswith(".bias"):
                return Named(word.removesuffix(".bias"), pairs=self._pairs(node))
        names = [origin.name for source in node.sources if (origin := self._origin(source)) is not None]
        for name in names:
            layer = re.match(r"(.*\.layers\.\d+)\.(self_attn|mlp)\.(o_proj|down_proj)$", name)
            if layer and len(names) == 2:
                return Named(f"{layer[1]}.add" if layer[2] == "self_attn" else f"{layer[1]}.add_1")
        return None

    def _silu(self, node: Node) -> Named | None:
        origin = self._origin(node.sources[0])
        return Named(f"{origin.name.rpartition('.')[0]}.act_fn.silu") if origin is not None else None

    def _swiglu(self, node: Node) -> Named | None:
        origin = self._origin(node.sources[0])
        return self._gated(origin) if origin is not None else None

    @staticmethod
    def _gated(origin: _Origin) -> Named:
        return Named(f"{re.sub(r'(.act_fn)?.[a-z_]+$', '', origin.name)}.mul")


def _live(graph: GgmlGraph) -> Iterator[int]:
    """Nodes that lead to the last one or into memory that outlives the graph."""
    stack = [graph.nodes[-1].number] if graph.nodes else []
    for node in graph.nodes:
        if not node.is_view and node.view is not None and graph.base(node.view).number < 0:
            stack.append(node.number)
    seen: set[int] = set()
    while stack:
        number = stack.pop()
        if number in seen:
            continue
        seen.add(number)
        yield number
        node = graph.nodes[number]
        sources = [*node.sources, *([node.view] if node.view is not None else [])]
        stack += [source.number for source in sources if source.number >= 0]
