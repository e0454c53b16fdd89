"""Ops that differ in their first input alone, computed together: a linear layer in every decode step.

A single row times a large weight is bound by reading the weight; the rows of many steps read it once. The candidate's
values are all there from the start, so later steps can be computed with the first. Leaves out what a step's value is
judged by: each is judged alone, as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.blocks import BLOCK
from firstbad.graph import Graph, Op, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.replay import Executor

TOGETHER = frozenset("linear layer_norm rms_norm gelu silu".split())
"""ATen ops that take any number of rows, each for itself."""

MOST = 64
"""Ops that are computed together at most; together they make no more than a block."""


@dataclass(frozen=True)
class Made:
    """What one of several ops makes, in both precisions, and its condition."""

    precise: NDArray[Any]
    twin: NDArray[Any]
    scale: NDArray[np.float32] | None


def alike(graph: Graph, ops: Iterable[Op]) -> dict[tuple[int, ...], list[Op]]:
    """What an op writes → it and those after it that differ in their first input alone, if there are any."""
    groups: dict[tuple[Any, ...], list[Op]] = {}
    for op in ops:
        word, first = op.kind.removeprefix("aten.").partition(".")[0], first_input(op)
        if word not in TOGETHER or first is None or len(op.writes) != 1:
            continue
        shapes = graph.values[first].shape, graph.values[op.writes[0]].shape
        rest = repr(op.attrs["args"][1:]), repr(op.attrs.get("kwargs")), repr(op.attrs.get("weights"))
        groups.setdefault((op.name, op.kind, *shapes, *rest), []).append(op)
    return {op.writes: group[i:] for group in groups.values() if len(group) > 1 for i, op in enumerate(group)}


def first_input(op: Op) -> int | None:
    """The id of the first argument, where it is a value."""
    args = op.attrs.get("args", ())
    return args[0]["v"] if args and isinstance(args[0], Mapping) and isinstance(args[0].get("v"), int) else None


def together(
    executor: Executor, graph: Graph, ops: list[Op], given: Callable[[Value], NDArray[Any] | None], dtype: str
) -> Iterable[tuple[tuple[int, ...], Made]]:
    """What each of the ops writes, with what it makes: as many from the first on as fit and have their inputs."""
    size = max(1, math.prod(graph.values[ops[0].writes[0]].shape))
    rows: list[NDArray[Any]] = []
    for op in ops[: min(MOST, BLOCK // size)]:
        first = first_input(op)
        own = first is not None and graph.values[first].step == op.step  # of another step it may be given otherwise
        x = given(graph.values[first]) if own and first is not None else None
        weights = op.attrs.get("weights", {})
        if x is None or any(r.value not in (first, -1) and str(r.value) not in weights for r in op.reads):
            break
        rows.append(x)
    if len(rows) < 2:
        return
    inputs = {first_input(ops[0]) or 0: np.stack(rows)}
    precise = executor.run(ops[0], inputs, "float64")[0]
    twin, scale = executor.run(ops[0], inputs, dtype)[0], executor.scale(ops[0], inputs, precise)
    for i, op in enumerate(ops[: len(rows)]):
        yield op.writes, Made(precise[i], twin[i], scale if scale is None or scale.size == 1 else scale[i])
