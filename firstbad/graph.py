"""The records of a run: which op made which value from which others.

Plain frozen data, the same for every engine; no arrays (they stay in the trace file) and no behaviour beyond look-ups.
Views and in-place writes are resolved by whoever records: a graph is a DAG of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Kind = Literal["value", "view", "input", "weight", "constant"]

#: `Read.state`: the read was checked against what had been written ...
READ_OK = "ok"  # and is the same
READ_CHANGED = "changed"  # and differs: somebody wrote over the buffer in between (a clobber)
READ_UNWRITTEN = "unwritten"  # but nobody had written (all of) it
READ_UNCHECKED = ""  # not checked: the engine does not record addresses or hashes


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor at one point of one run.

    `kind`: "value" owns its memory; "view" shows another value's memory; "input" enters a step from outside;
    "weight" is a parameter or buffer of the model (its step is "weights"); "constant" is made on the fly.
    """

    id: int
    step: str
    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str  # of the engine: "float32", "bfloat16", "int64", "bool", ...
    op: int = -1  # id of the op that produced it; -1: none
    dataset: str = ""  # HDF5 path of the stored array; "": not stored, and `reason` says why
    same_as: int = -1  # id of a value with the very same bytes, stored there instead; -1: none
    reason: str = ""
    hash: int = 0  # of the content in logical (C) order, see hashing.py; 0: not taken
    address: int = 0  # of the first byte in the engine's memory; 0: unknown
    extent: int = 0  # bytes from the first to the last element, strides included
    strides: tuple[int, ...] = ()  # in bytes; (): contiguous


@dataclass(frozen=True, slots=True)
class Read:
    """What one op read: a value, and whether it still held what had been written."""

    value: int  # id of the value that was written there; -1: nobody's
    slot: str = ""  # the op's name for this input: "x", "weight", "k"; several reads may share a slot (a KV cache)
    state: str = READ_UNCHECKED
    dataset: str = ""  # the bytes as they were read, stored only where they differ from what was written
    address: int = 0
    extent: int = 0
    overwritten_by: tuple[int, ...] = ()  # ids of the values written over it since


@dataclass(frozen=True, slots=True)
class Op:
    """One call of one kernel (candidate) or one ATen op (reference).

    `attrs["args"]` of a reference op is the full call as JSON: see `reference/call.py`.
    """

    id: int
    step: str
    name: str
    kind: str  # "aten.linear.default" of a reference, the kernel's own word ("linear") of a candidate
    reads: tuple[Read, ...] = ()
    writes: tuple[int, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    line: int = 0
    start_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True)
class Graph:
    """All values and ops of one run, in execution order; `values[i].id == i` and `ops[i].id == i`."""

    values: tuple[Value, ...]
    ops: tuple[Op, ...]

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], Value]:
        """(step, name) → the value; weights stand under ("weights", name)."""
        return {(v.step, v.name): v for v in self.values if v.kind != "view"}

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        """Value id → ids of the ops that read it."""
        readers: dict[int, list[int]] = {}
        for op in self.ops:
            for read in op.reads:
                readers.setdefault(read.value, []).append(op.id)
        return {value: tuple(ops) for value, ops in readers.items()}

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The steps in the order in which they ran, without "weights"."""
        return tuple(dict.fromkeys(v.step for v in self.values if v.step != "weights"))

    def inputs_of(self, value: Value) -> Iterator[Value]:
        """The values that the op of `value` read."""
        if value.op >= 0:
            for read in self.ops[value.op].reads:
                if read.value >= 0:
                    yield self.values[read.value]
