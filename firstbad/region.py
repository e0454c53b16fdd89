"""Regions: the part of the reference graph that produces one aligned value from other aligned values.

A region can be replayed alone, with any of its inputs replaced: that is how a cause is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


def region_of(graph: Graph, value: Value, given: Given) -> Region:
    """Walks back from a value to what is given (aligned values, inputs, constants)."""
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
            elif given(source) is not None:
                inputs[source.id] = None
            else:
                stack.append(source.op)
    return Region(value, tuple(ops[i] for i in sorted(ops)), tuple(sorted(inputs)), tuple(weights))


def replay_region(
    graph: Graph,
    region: Region,
    executor: Executor,
    given: Given,
    replaced: Mapping[int, NDArray[Any]] | None = None,
) -> Replayed:
    """The region's value from the given inputs, some of them replaced (value id → array in the value's shape)."""
    changed = replaced or {}

    def given_here(value: Value) -> NDArray[Any] | None:
        return changed[value.id] if value.id in changed else given(value)

    part = Graph(graph.values, region.ops)
    return next(iter(sweep(part, executor, given_here, frozenset([region.value.id]))))
