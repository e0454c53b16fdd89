"""The plan of the built-in engine: tensors by name with their places in memory, and a call list for each step.

An op names its inputs by port; the name is joined with the step's table of tensors, which says buffer and offset. So
a wrong wire is one wrong name. Plain frozen data and its JSON form; leaves out how a plan is made (planner.py), where
tensors are placed (lifetimes.py) and the checks (plan_check.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FORMAT = "firstbad-plan"
VERSION = 1
STEPS = ("encode", "prefill", "decode")  # a language model has no encode
ITEM_BYTES = {"float32": 4, "int64": 8}

Dim = int | str
"""A number; "t": tokens fed to this step; "n": positions so far, these included; "w": of those, the window's last ones;
"4t": four times as many."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of one step and its place in memory."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "float32"
    buffer: str = ""
    offset: int = 0
    order: tuple[int, ...] = ()  # of the dims in memory, outermost first; (): as they stand
    kept: bool = False  # lives on after its step, in a buffer of its own
    rows: bool = False  # of a cache: each step appends its rows at the position; readers of the cache see all n

    @property
    def row_axis(self) -> int:
        """Of a cache: the axis of positions, the outermost in memory but for a leading 1."""
        outermost = min(1, len(self.shape) - 2)
        return self.order[outermost] if self.order else outermost

    def count(self, sizes: Mapping[str, int]) -> int:
        return math.prod(numbers(self.shape, sizes))

    def bytes(self, sizes: Mapping[str, int]) -> int:
        return self.count(sizes) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class PlanOp:
    """One call of one kernel; its name is the name of the value that it makes."""

    name: str
    kind: str
    inputs: Mapping[str, str]  # port → name of a tensor
    weights: Mapping[str, str] = field(default_factory=dict)  # port → parameter name
    attrs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One call list. `limits`: the largest t and n that the buffers have room for; w: what a window shows at most."""

    name: str
    input: str
    result: str
    limits: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    ops: tuple[PlanOp, ...]
    pages: tuple[int, ...] = ()  # of a paged cache: the place of each page, in order of positions


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engine executes."""

    heads: int
    positions: int  # of the decoder, at most
    buffers: Mapping[str, int]  # name → bytes
    weights: Mapping[str, tuple[int, ...]]  # parameter name → shape
    steps: Mapping[str, Step]
    types: Mapping[str, str] = field(default_factory=dict)  # parameter name → how it is stored, where not as float32

    def tensor(self, step: str, name: str) -> Tensor | None:
        """The tensor that `name` means in a step: its own, or one that an earlier step has left behind."""
        own = self.steps[step].tensors.get(name)
        if own is not None:
            return own
        for earlier in reversed(STEPS[: STEPS.index(step)]):
            found = self.steps[earlier].tensors.get(name) if earlier in self.steps else None
            if found is not None and found.kept:
                return found
        return None

    def with_step(self, step: Step) -> Plan:
        return replace(self, steps={**self.steps, step.name: step})


def sizes_at(step: Step, t: int, n: int) -> dict[str, int]:
    """What the symbols of a step's shapes stand for."""
    return {"t": t, "n": n, "w": min(n, step.limits.get("w", n))}


def numbers(shape: tuple[Dim, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with its symbols filled in."""
    return tuple(sizes[d[-1]] * int(d[:-1] or 1) if isinstance(d, str) else d for d in shape)


def save(plan: Plan, path: Path) -> None:
    """Write a plan as JSON, one line a tensor and an op, so that it can be read and edited by hand."""
    path.write_text(dumps(plan), "utf-8")


def dumps(plan: Plan) -> str:
    lines = [
        "{",
        f' "format": "{FORMAT}", "version": {VERSION}, "heads": {plan.heads}, "positions": {plan.positions},',
        _table("buffers", dict(plan.buffers)) + ",",
        _table("weights", {name: list(shape) for name, shape in plan.weights.items()}) + ",",
        *([_table("types", dict(plan.types)) + ","] if plan.types else []),
        ' "steps": {',
    ]
    last = list(plan.steps)[-1]
    for step in plan.steps.values():
        lines += [
            f'  "{step.name}": {{',
            f'   "input": {json.dumps(step.input)}, "result": {json.dumps(step.result)},'
            f' "limits": {json.dumps(dict(step.limits))},',
            *([f'   "pages": {json.dumps(step.pages)},'] if step.pages else []),
            _table("tensors", {t.name: _tensor_json(t) for t in step.tensors.values()}, "   ") + ",",
            '   "ops": [',
            ",\n".join("    " + json.dumps(_op_json(op)) for op in step.ops),
            "   ]",
            "  }" if step.name == last else "  },",
        ]
    return "\n".join([*lines, " }", "}", ""])


def _table(key: str, entries: Mapping[str, Any], indent: str = " ") -> str:
    rows = ",\n".join(f"{indent} {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    return f"{indent}{json.dumps(key)}: {{\n{rows}\n{indent}}}"


def _tensor_json(t: Tensor) -> dict[str, Any]:
    data: dict[str, Any] = {"shape": list(t.shape), "dtype": t.dtype, "buffer": t.buffer, "offset": t.offset}
    if t.order:
        data["order"] = list(t.order)
    for flag in ("kept", "rows"):
        if getattr(t, flag):
            data[flag] = True
    return data


def _op_json(op: PlanOp) -> dict[str, Any]:
    data: dict[str, Any] = {"name": op.name, "kind": op.kind, "inputs": dict(op.inputs)}
    if op.weights:
        data["weights"] = dict(op.weights)
    if op.attrs:
        data["attrs"] = dict(op.attrs)
    return data
