"""Values in pieces: what the reference computes as one, the candidate holds as several.

Query, key and value apart where the model has one projection for them, gate and up likewise, a tensor in two halves.
The whole is put together as a value of its own behind the candidate's others, made by an op that reads the pieces; so
everything that follows treats it like any value. Leaves out which pieces belong together: matching.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.graph import Graph, Op, Read, Value
from firstbad.layout import Layout, parts
from firstbad.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

KIND = "joined"


@dataclass(frozen=True)
class Join:
    """A value of the candidate that is several; `layouts` say how each piece is read out of the whole."""

    value: Value
    pieces: tuple[Value, ...]
    layouts: tuple[Layout, ...]

    def array(self, array_of: Callable[[Value], NDArray[Any]]) -> NDArray[Any]:
        return put_together(self.value.shape, [array_of(piece) for piece in self.pieces], self.layouts)


def put_together(shape: tuple[int, ...], arrays: Sequence[NDArray[Any]], layouts: Sequence[Layout]) -> NDArray[Any]:
    """The whole whose parts, read by the layouts, are the arrays."""
    places = np.arange(math.prod(shape)).reshape(shape)
    whole = np.empty(math.prod(shape), arrays[0].dtype)
    for array, layout in zip(arrays, layouts, strict=True):
        whole[layout.apply(places).reshape(-1)] = array.reshape(-1)
    return whole.reshape(shape)


def cover(shape: tuple[int, ...], layouts: Iterable[Layout]) -> bool:
    """Whether parts read by the layouts are all of a whole, and none twice."""
    places = np.arange(math.prod(shape)).reshape(shape)
    seen = np.zeros(math.prod(shape), np.int64)
    for layout in layouts:
        seen[layout.apply(places).reshape(-1)] += 1
    return bool((seen == 1).all())


def side_by_side(shape: tuple[int, ...], pieces: Sequence[Value]) -> Iterator[tuple[Layout, ...]]:
    """The ways in which the pieces, in this order, fill a whole along one axis."""
    first, *rest = [list(parts(piece.shape, shape)) for piece in pieces]
    for start in (layout for layout in first if layout.part[1] == 0):
        chain = [start]
        for options in rest:
            fitting = (
                o
                for o in options
                if (o.first, o.axes, o.part[0]) == (start.first, start.axes, start.part[0])
                and o.part[1] == chain[-1].part[2]
            )
            found = next(fitting, None)
            if found is None:
                break
            chain.append(found)
        if len(chain) == len(pieces) and chain[-1].part[2] == (start.first or shape)[start.part[0]]:
            yield tuple(chain)


def join(graph: Graph, shape: tuple[int, ...], pieces: Sequence[Value], layouts: Sequence[Layout]) -> Join:
    """The whole as the next value of the candidate's graph."""
    name = " + ".join(piece.name for piece in pieces)
    dataset = pieces[0].dataset or KIND  # of which it is known that it is stored
    first = pieces[0]
    value = Value(len(graph.values), first.step, name, "value", shape, first.dtype, len(graph.ops), dataset)
    return Join(value, tuple(pieces), tuple(layouts))


def extended(graph: Graph, one: Join) -> Graph:
    """The graph with the whole in it; it stands where its first piece was made."""
    made_by = graph.ops[one.pieces[0].op] if one.pieces[0].op >= 0 else None
    reads = tuple(Read(piece.id) for piece in one.pieces)
    file, line = (made_by.file, made_by.line) if made_by else ("", 0)
    op = Op(len(graph.ops), one.value.step, one.value.name, KIND, reads, (one.value.id,), {}, file, line)
    return Graph((*graph.values, one.value), (*graph.ops, op))


@dataclass(frozen=True)
class _Joined(Trace):
    """A trace with wholes behind its values."""

    joins: Mapping[int, Join] = field(default_factory=dict)

    def array(self, value: Value | str) -> NDArray[Any]:
        if not isinstance(value, str) and value.id in self.joins:
            return self.joins[value.id].array(super().array)
        return super().array(value)

    def stored(self, value: Value) -> bool:
        if value.id in self.joins:
            return all(super(_Joined, self).stored(piece) for piece in self.joins[value.id].pieces)
        return super().stored(value)


def with_joins(trace: Trace, joins: Sequence[Join]) -> Trace:
    """The trace in which the wholes are values."""
    if not joins:
        return trace
    graph = trace.graph
    for one in joins:
        graph = extended(graph, one)
    same: dict[str, Any] = {f.name: getattr(trace, f.name) for f in fields(Trace)}
    return replace(_Joined(**same, joins={one.value.id: one for one in joins}), graph=graph)
