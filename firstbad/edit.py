"""Edits of a region as plain data: other inputs or weights, other ops, another output.

An edit says what it changes and can be joined with a second one. Leaves out where edits come from (the files edits_*.py
and wiring.py), how they are run (region.py) and whether they explain anything (cause.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.graph import Graph, Op, Read

if TYPE_CHECKING:
    from numpy.typing import NDArray

After = Callable[["NDArray[Any]"], "NDArray[Any]"]
"""A pure function of the region's output, of any floating dtype and of its own shape; also used on the error scale."""

NEAR = 0.01
"""Two measurements of one number."""

_LAYER = re.compile(r"\.\d+\.")

SIMPLE, FITTED, LOOSE, LAST = 1, 2, 3, 9
"""`Edit.cost`: nothing was chosen from the wrong values; one number was; several, or a mask; a mere description."""


@dataclass(frozen=True)
class Edit:
    """A change of the region; `detail` says what, in plain data."""

    kind: str
    detail: Mapping[str, Any]
    replaced: Mapping[int, NDArray[Any]] = field(default_factory=dict)  # value id (weights too) → array
    ops: Mapping[int, tuple[Op, ...]] = field(default_factory=dict)  # op id → what runs in its place
    after: tuple[After, ...] = ()
    output: NDArray[Any] | None = None  # the output itself, worked out elsewhere from the region's inputs
    scale: NDArray[Any] | None = None  # the condition of `output`, where that of the region as it stands is not
    computes: bool = False  # `after` does arithmetic: an exact region is none any more
    rounds: bool = False  # `after` is a monotone rounding: near its steps the candidate's choice counts
    dtype: str = ""  # the arithmetic is that of a lower precision: its noise is expected, not its bits
    cost: int = SIMPLE
    seen: bool = False  # the probe saw it happen: the op read this and not what it should have read

    def then(self, other: Edit) -> Edit | None:
        """Both edits at once; None where they change the same thing."""
        if (
            other.output is not None
            or set(self.replaced) & set(other.replaced)
            or set(self.ops) & set(other.ops)
            or (self.dtype and other.dtype)
        ):
            return None
        return Edit(
            kind=self.kind,
            detail={**self.detail, "and": [{"kind": other.kind, **other.detail}]},
            replaced={**self.replaced, **other.replaced},
            ops={**self.ops, **other.ops},
            after=(*self.after, *other.after),
            output=self.output,
            scale=self.scale,
            computes=self.computes or other.computes,
            rounds=self.rounds or other.rounds,
            dtype=self.dtype or other.dtype,
            cost=self.cost + other.cost,
            seen=self.seen and other.seen,
        )

    def finish(self, output: NDArray[Any]) -> NDArray[Any]:
        """What the edit makes of the region's output."""
        if self.output is not None:
            output = np.asarray(self.output).reshape(output.shape).astype(output.dtype)
        for function in self.after:
            output = function(output)
        return output

    def applied(self, ops: tuple[Op, ...]) -> tuple[Op, ...]:
        """The region's ops with those of the edit in their place."""
        return tuple(new for op in ops for new in self.ops.get(op.id, (op,)))

    @property
    def key(self) -> tuple[str, ...]:
        """What the edit is whatever the step: its kind and the words of its detail, without places and numbers."""
        words = [f"{k}={v}" for k, v in sorted(self.detail.items()) if isinstance(v, str) and not k.endswith("step")]
        return (self.kind, *words, *(other["kind"] for other in self.detail.get("and", ())))

    def same(self, other: Edit) -> bool:
        """Whether both say the same of two ops, each in its own layer: equal words but for numbers of layers, and
        numbers that are equal, or near where they were measured."""
        return self.kind == other.kind and alike(self.detail, other.detail, layers=True)


def alike(a: Any, b: Any, *, layers: bool = False) -> bool:
    """Whether two details say the same; `layers`: each of its own layer."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = [key for key in a if not key.endswith("place")]
        return a.keys() == b.keys() and all(alike(a[key], b[key], layers=layers) for key in keys)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(alike(x, y, layers=layers) for x, y in zip(a, b, strict=True))
    if isinstance(a, str) and isinstance(b, str) and layers:
        return _LAYER.sub(".#.", a) == _LAYER.sub(".#.", b)
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=NEAR)
    return bool(a == b)


NOTHING = Edit("", {}, cost=0)
"""The region as it is."""


def value(v: int) -> dict[str, int]:
    """A value as an argument of a recorded call."""
    return {"v": v}


def ids_in(template: Any) -> Iterator[int]:
    """The value ids in a recorded call, in order."""
    if isinstance(template, Mapping):
        if set(template) == {"v"} and isinstance(template["v"], int):
            yield template["v"]
        else:
            for item in template.values():
                yield from ids_in(item)
    elif isinstance(template, list | tuple):
        for item in template:
            yield from ids_in(item)


def call(
    graph: Graph, like: Op, kind: str, args: list[Any], writes: int, kwargs: Mapping[str, Any] | None = None
) -> Op:
    """An ATen op in the place of `like`, as a recorder would have written it down."""
    reads = tuple(dict.fromkeys(ids_in([args, dict(kwargs or {})])))
    known = len(graph.values)
    weights = {str(v): graph.values[v].name for v in reads if v < known and graph.values[v].kind == "weight"}
    attrs: dict[str, Any] = {"args": args, "kwargs": dict(kwargs or {})}
    if weights:
        attrs["weights"] = weights
    return Op(like.id, like.step, like.name, kind, tuple(Read(v) for v in reads), (writes,), attrs)
