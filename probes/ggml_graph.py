"""What a ggml graph looks like, as the shim announces it: nodes, leaves, where each source comes from.

Leaves out what the nodes mean: ggml_weights.py says which weight a leaf is, ggml_names.py which value a node is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from firstbad.errors import CompareError

VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
"""Ops that compute nothing and move nothing: other words for the same memory."""


@dataclass(frozen=True)
class Leaf:
    """A tensor that no node of the graph makes: a weight, an input, a cache."""

    number: int
    weight: bool
    input: bool
    type: str
    name: str
    ne: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """In PyTorch's order, without axes of one element."""
        return tuple(n for n in reversed(self.ne) if n != 1)


@dataclass(frozen=True)
class Source:
    """Where a node reads: a node (number >= 0) or a leaf (-1 - its number), seen through a view at `offset`."""

    number: int
    offset: int = 0

    @property
    def leaf(self) -> int:
        """The leaf's number; -1: it is a node."""
        return -1 - self.number if self.number < 0 else -1


@dataclass(frozen=True)
class Node:
    number: int
    op: str
    type: str
    name: str
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    params: tuple[int, ...]
    sources: tuple[Source, ...]
    view: Source | None = None

    @property
    def is_view(self) -> bool:
        return self.op in VIEWS

    def number_at(self, index: int) -> float:
        """A floating-point parameter of the op: the scale of SCALE is the first one."""
        return float(struct.unpack("<f", struct.pack("<i", self.params[index]))[0])

    @property
    def span(self) -> int:
        """Bytes from its first to past its last element."""
        return self.nb[0] + sum((n - 1) * step for n, step in zip(self.ne, self.nb, strict=True))


@dataclass(frozen=True)
class GgmlGraph:
    """One graph. `leaves` of the whole run so far: a weight is announced once."""

    step: str  # "graph.3"
    nodes: tuple[Node, ...]
    leaves: Mapping[int, Leaf] = field(repr=False)
    own: tuple[int, ...] = ()  # leaves announced with this graph, in order of use

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        """Node → the nodes that read it, views looked through."""
        readers: dict[int, list[int]] = {}
        for node in self.nodes:
            if not node.is_view:
                for source in node.sources:
                    at = self.base(source)
                    if at.number >= 0:
                        readers.setdefault(at.number, []).append(node.number)
        return {number: tuple(dict.fromkeys(many)) for number, many in readers.items()}

    def base(self, source: Source) -> Source:
        """The node that computed what is read, or the leaf; views are looked through (their offset is kept)."""
        offset = source.offset
        while source.number >= 0 and self.nodes[source.number].is_view:
            node = self.nodes[source.number]
            if node.view is not None:
                offset = max(offset, node.view.offset)
            source = node.view if node.view is not None else node.sources[0]
        return Source(source.number, offset)

    def leaf(self, source: Source) -> Leaf | None:
        at = self.base(source)
        return self.leaves.get(at.leaf) if at.number < 0 else None

    def weight(self, node: Node) -> Iterator[tuple[int, Leaf]]:
        """(slot, leaf) of each weight that the node reads."""
        for slot, source in enumerate(node.sources):
            leaf = self.leaf(source)
            if leaf is not None and leaf.weight:
                yield slot, leaf

    @property
    def feeds(self) -> tuple[Leaf, ...]:
        """The inputs that came with this graph."""
        return tuple(self.leaves[n] for n in self.own if self.leaves[n].input)


def parse(step: str, text: bytes, known: Mapping[int, Leaf]) -> GgmlGraph:
    """The graph in the shim's words; `known` are the leaves of the graphs before."""
    try:
        data = json.loads(text)
        leaves = [
            Leaf(one["leaf"], one["weight"], one["input"], one["type"], one["name"], tuple(one["ne"]))
            for one in data["leaves"]
        ]
        nodes = tuple(_node(number, one) for number, one in enumerate(data["nodes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CompareError(
            f"what the ggml shim says of {step} cannot be read ({error}): is it of this version?"
        ) from None
    return GgmlGraph(
        step, nodes, {**known, **{leaf.number: leaf for leaf in leaves}}, tuple(one.number for one in leaves)
    )


def _node(number: int, one: Mapping[str, Any]) -> Node:
    view = Source(one["view"], one.get("offset", 0)) if "view" in one else None
    sources = tuple(Source(*s) if isinstance(s, list) else Source(s) for s in one["src"])
    return Node(
        number,
        one["op"],
        one["type"],
        one["name"],
        tuple(one["ne"]),
        tuple(one["nb"]),
        tuple(one["params"]),
        sources,
        view,
    )
