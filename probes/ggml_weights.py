"""Which weight of the model each leaf of a ggml graph is: by its content, and where that fails by its neighbours.

A leaf that has a name of llama.cpp's files is that parameter, and so is one that holds a parameter's very bytes
(float32 or float16). What is left (a wrong weight, a quantised one) is named by the weight that it works with: the bias
after its product, the gain before its bias, the projections of the same input, and last by its shape. So a wrong
weight gets the name that it should have. Leaves out whether a weight is right: that is firstbad/weights.py's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from firstbad.gguf_file import name_of
from firstbad.hashing import hash_array

from .ggml_graph import GgmlGraph, Leaf, Node


def natural(name: str) -> list[object]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]


class WeightNames:
    """Grows with each graph: `names` is leaf → parameter."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.names: dict[int, str] = {}
        self._shapes = {name: tuple(n for n in array.shape if n != 1) for name, array in weights.items()}
        self._weights = weights

    @cached_property
    def _by_hash(self) -> Mapping[tuple[str, int], list[str]]:
        found: dict[tuple[str, int], list[str]] = {}
        for name, array in self._weights.items():
            for dtype in (np.float32, np.float16):
                with np.errstate(over="ignore"):
                    key = (np.dtype(dtype).name, hash_array(np.ascontiguousarray(array, dtype)))
                found.setdefault(key, []).append(name)
        return found

    def learn(self, graph: GgmlGraph, hashes: Mapping[int, int]) -> None:
        """Names the weights that came with this graph; `hashes` of their content by leaf."""
        for number in graph.own:
            known = name_of(graph.leaves[number].name)
            if known in self._shapes and self._shapes[known] == graph.leaves[number].shape:
                self.names.setdefault(number, known)
        fresh = [graph.leaves[n] for n in graph.own if graph.leaves[n].weight and n not in self.names]
        claims = {leaf.number: self._claims(leaf, hashes.get(leaf.number, 0)) for leaf in fresh}
        mates = list(_mates(graph))
        for leaf in fresh:
            if len(claims[leaf.number]) == 1:
                self.names[leaf.number] = claims[leaf.number][0]
        self._settle(claims, mates)
        self._by_mate(mates)
        self._by_input(graph, fresh)
        self._by_mate(mates)
        for leaf in fresh:
            if leaf.number not in self.names:
                free = self._free(leaf)
                if len(free) == 1 or (free and leaf.number in claims and claims[leaf.number]):
                    self.names[leaf.number] = free[0]

    def _claims(self, leaf: Leaf, content: int) -> list[str]:
        dtype = {"f32": "float32", "f16": "float16"}.get(leaf.type, "")
        return [n for n in self._by_hash.get((dtype, content), []) if self._shapes[n] == leaf.shape]

    def _settle(self, claims: Mapping[int, list[str]], mates: list[tuple[int, str, int, str]]) -> None:
        """Of several leaves with one parameter's content, the one beside its own mate keeps the name."""
        count = Counter(self.names.values())
        partner: dict[int, list[int]] = {}
        for one, _, other, _ in mates:
            partner.setdefault(one, []).append(other)
            partner.setdefault(other, []).append(one)
        for leaf in [n for n in claims if n in self.names and count[self.names[n]] > 1]:
            module = self.names[leaf].rpartition(".")[0]
            beside = [self.names[other].rpartition(".")[0] for other in partner.get(leaf, ()) if other in self.names]
            if beside and module not in beside:
                count[self.names[leaf]] -= 1
                del self.names[leaf]

    def _by_mate(self, mates: list[tuple[int, str, int, str]]) -> None:
        for one, word, other, other_word in [*mates, *((c, d, a, b) for a, b, c, d in mates)]:
            if one not in self.names and other in self.names:
                module, _, said = self.names[other].rpartition(".")
                if said == other_word and f"{module}.{word}" in self._shapes:
                    self.names[one] = f"{module}.{word}"

    def _by_input(self, graph: GgmlGraph, fresh: list[Leaf]) -> None:
        """Products of the same input belong to the same module: what is left of it, in the order of the model."""
        unknown = {leaf.number: leaf for leaf in fresh if leaf.number not in self.names}
        products: dict[object, list[int]] = {}
        for node in graph.nodes:
            for slot, leaf in graph.weight(node):
                if node.op == "MUL_MAT" and slot == 0:
                    products.setdefault(graph.base(node.sources[1]), []).append(leaf.number)
        for together in products.values():
            parents = {_parent(self.names[n]) for n in together if n in self.names}
            for number in [n for n in together if n in unknown]:
                free = [name for name in self._free(unknown[number]) if _parent(name) in parents]
                # it was no mate of a bias, so the model has none for it, where one of these has none
                free = [name for name in free if f"{name.rpartition('.')[0]}.bias" not in self._shapes] or free
                if free and number not in self.names:
                    self.names[number] = free[0]

    def _free(self, leaf: Leaf) -> list[str]:
        taken = set(self.names.values())
        exact = [n for n, shape in self._shapes.items() if n not in taken and shape == leaf.shape]
        longer = [n for n, s in self._shapes.items() if n not in taken and len(s) == 2 and s[1:] == leaf.shape[1:]]
        return sorted(exact or [n for n in longer if self._shapes[n][0] < leaf.shape[0]], key=natural)


def _parent(name: str) -> str:
    """ "model.decoder.layers.0.self_attn" of "...self_attn.q_proj.weight"."""
    return name.rpartition(".")[0].rpartition(".")[0]


def _mates(graph: GgmlGraph) -> Iterator[tuple[int, str, int, str]]:
    """(leaf, its word, leaf, its word): weight and bias of one module, as neighbours in the graph show them."""
    for node in graph.nodes:
        if node.op != "ADD":
            continue
        bias = [leaf for slot, leaf in graph.weight(node) if slot == 1]
        source = graph.base(node.sources[0])
        if not bias or source.number < 0:
            continue
        before: Node = graph.nodes[source.number]
        if before.op in ("MUL_MAT", "MUL"):
            weights = [leaf for _, leaf in graph.weight(before)]
            if weights and len(graph.readers.get(before.number, ())) == 1:
                yield weights[0].number, "weight", bias[0].number, "bias"
