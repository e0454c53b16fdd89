"""Regions: the part of the reference graph that produces one aligned value from other aligned values.

A region can be replayed alone, as it is or edited: that is how a cause is proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.edit import NOTHING, Edit
from firstbad.graph import Graph, Op, Value
from firstbad.replay import Executor, Replayed, sweep

if TYPE_CHECKING:
    from numpy.typing import NDArray

Given = Callable[[Value], "NDArray[Any] | None"]


@dataclass(frozen=True)
class Region:
    """The ops that make `value`, in execution order, and the ids of the values they start from (no weights)."""

    value: Value
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    through: frozenset[int] = frozenset()  # values that are given in their own step only, and made here


def region_of(graph: Graph, value: Value, given: Given, passing: frozenset[int] = frozenset()) -> Region:
    """Walks back from a value to what is given (aligned values, inputs, constants); through what is `passing` (see
    passing.py) where it is of another step."""
    through: set[int] = set()
    ops: dict[int, Op] = {}
    inputs: dict[int, None] = {}
    weights: dict[int, None] = {}
    stack = [value.op]
    while stack:
        op_id = stack.pop()
        if op_id in ops or op_id < 0:
            continue
        op = ops[op_id] = graph.ops[op_id]
        for read in op.reads:
            source = graph.values[read.value]
            if source.kind == "weight":
                weights[source.id] = None
            elif source.id in passing and source.step != value.step:
                through.add(source.id)
                stack.append(source.op)
            elif given(source) is not None:
                inputs[source.id] = None
            else:
                stack.append(source.op)
    return Region(value, tuple(ops[i] for i in sorted(ops)), tuple(sorted(inputs)), tuple(weights), frozenset(through))


def replay_region(
    graph: Graph, region: Region, executor: Executor, given: Given, edit: Edit = NOTHING, *, dtype: str = "float32"
) -> Replayed:
    """The region's value from the given inputs, as the edit says; `dtype` of the twin."""
    part, given_here = _edited(graph, region, given, edit)
    replayed = next(iter(sweep(part, executor, given_here, frozenset([region.value.id]), dtype=dtype)))
    if not edit.after and edit.output is None:
        return replayed
    scale = replayed.scale if edit.scale is None else edit.scale.astype(np.float32).reshape(replayed.expected.shape)
    if scale is not None and edit.after:
        whole = np.broadcast_to(scale, replayed.expected.shape)
        scale = np.nan_to_num(np.abs(replace(edit, output=None).finish(whole)), nan=0.0, posinf=0.0).astype(np.float32)
    return replace(
        replayed,
        expected=edit.finish(replayed.expected),
        twin=edit.finish(replayed.twin),
        scale=scale,
        sequential=None,
        exact=replayed.exact and not edit.computes,
    )


def run_region(
    graph: Graph, region: Region, executor: Executor, given: Given, edit: Edit = NOTHING, *, dtype: str = "float32"
) -> NDArray[Any]:
    """Only the region's value, in one precision: a third of the work of a replay."""
    part, given_here = _edited(graph, region, given, edit)
    known: dict[int, NDArray[Any]] = {}
    for op in part.ops:
        for read in op.reads:
            if read.value >= 0 and read.value not in known:
                array = given_here(part.values[read.value])
                if array is not None:
                    known[read.value] = array
        for written, array in zip(op.writes, executor.run(op, _inputs(op, known), dtype), strict=True):
            own = given_here(part.values[written]) if written in edit.replaced else None
            known[written] = array if own is None else own
    return edit.finish(known[region.value.id])


def _inputs(op: Op, known: dict[int, NDArray[Any]]) -> dict[int, NDArray[Any]]:
    return {r.value: known[r.value] for r in op.reads if r.value in known}


def _edited(graph: Graph, region: Region, given: Given, edit: Edit) -> tuple[Graph, Given]:
    """The region as a graph of its own; values that the edit's ops make on the way get a record."""
    ops = edit.applied(region.ops)
    beyond = max((w for op in ops for w in op.writes), default=0) + 1
    new = (Value(i, region.value.step, "", "value", (), "float32") for i in range(len(graph.values), beyond))
    part = Graph((*graph.values, *new), ops)

    def given_here(value: Value) -> NDArray[Any] | None:
        if value.id in edit.replaced:
            return edit.replaced[value.id]
        return None if value.id == region.value.id or value.id in region.through else given(value)

    return part, given_here
