"""Which ops can be replayed a block of rows at a time, and what of each input a block reads.

A value takes ten times its size in float64, in float32 and with its condition; its rows do not need each other in most
ops. Cut is the first axis that is longer than one, so that a block is rows in a row. Leaves out ops that move values
(they are views), and those whose rows need each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from firstbad.graph import Op, Value

BLOCK = 1 << 20
"""Elements of one block, about: 8 MB in float64. Values of less than twice as many are replayed whole."""

ELEMENTWISE = frozenset("add sub mul div gelu silu tanh sigmoid exp erf sqrt rsqrt pow reciprocal".split())
SOFTMAX = frozenset(("softmax", "_softmax", "log_softmax", "_log_softmax"))
PRODUCTS = frozenset(("matmul", "bmm"))


class HasValues(Protocol):
    """A graph, or one that is being written."""

    @property
    def values(self) -> Sequence[Value]: ...


def cut(graph: HasValues, op: Op, shape: tuple[int, ...], rows: bool = False) -> tuple[int, dict[int, int]] | None:
    """(axis of the output to cut, id of each value that is cut with it → its axis); None: only as a whole.

    `rows`: not the first axis that is longer than one but the last but one, so that a part has rows of every head.
    """
    word = op.kind.removeprefix("aten.").partition(".")[0]
    rank = len(shape)
    axis = max(0, rank - 2) if rows else next((i for i, n in enumerate(shape) if n > 1), rank)
    args = op.attrs.get("args", ())
    ids = [a["v"] for a in args if isinstance(a, Mapping) and "v" in a]
    if axis >= rank - 1 or len(op.writes) != 1 or {r.value for r in op.reads} != set(ids):
        return None
    if word in ELEMENTWISE:
        along = ids
    elif (
        word == "linear"
        or (word in SOFTMAX and args[1] % rank != axis)
        or (word == "layer_norm" and axis < rank - len(args[1]))
    ):
        along = ids[:1]
    elif word in PRODUCTS and len(set(ids)) == 2:
        along = ids[: 1 if axis == rank - 2 else 2]
    else:
        return None
    axes = {}
    for value in along:
        own = graph.values[value].shape
        here = axis - (rank - len(own))
        if here < 0 or own[here] == 1 < shape[axis]:
            continue  # the same for all rows
        if own[here] != shape[axis]:
            return None
        axes[value] = here
    return axis, axes


def size(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """(places on the cut axis that one block takes, rows that each place stands for)."""
    rows = math.prod(shape[axis + 1 : -1])
    return max(1, BLOCK // max(1, rows * shape[-1])), rows
