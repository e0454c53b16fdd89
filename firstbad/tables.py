"""The three tables of a trace: values, ops and reads as HDF5 rows, and back.

Lists and mappings stand in a cell as JSON text, so that every viewer shows them. Leaves out files: writer.py appends
the rows, trace.py reads them; the page of rules is trace_schema.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args

import numpy as np

from firstbad.errors import CompareError
from firstbad.graph import Kind, Op, Read, Value

SCHEMA = "firstbad.trace"
VERSION = 1

#: column → "s" text, "i" int64, "u" uint64; the order is the order of the file
VALUES: Mapping[str, str] = {
    "id": "i",
    "step": "s",
    "name": "s",
    "kind": "s",
    "shape": "s",
    "dtype": "s",
    "op": "i",
    "dataset": "s",
    "same_as": "i",
    "reason": "s",
    "hash": "u",
    "address": "u",
    "extent": "i",
    "strides": "s",
    "offset": "i",
    "stored": "s",
}
OPS: Mapping[str, str] = {
    "id": "i",
    "step": "s",
    "name": "s",
    "kind": "s",
    "writes": "s",
    "attrs": "s",
    "file": "s",
    "line": "i",
    "start_ns": "i",
    "end_ns": "i",
}
READS: Mapping[str, str] = {
    "op": "i",
    "value": "i",
    "slot": "s",
    "state": "s",
    "dataset": "s",
    "address": "u",
    "extent": "i",
    "overwritten_by": "s",
}
TABLES: Mapping[str, Mapping[str, str]] = {"values": VALUES, "ops": OPS, "reads": READS}

#: columns without which a table says nothing; every other one MAY be absent
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "values": ("id", "step", "name", "kind", "shape", "dtype", "dataset"),
    "ops": ("id", "step", "name", "kind", "writes"),
    "reads": ("op", "value"),
}
DEFAULTS: Mapping[str, Any] = {"op": -1, "same_as": -1, "offset": -1}
#: columns that are no fields of a Value: where a reader finds an array whose group a kill has spoilt
SPARE = ("offset", "stored")
KINDS = frozenset(get_args(Kind))

Row = Mapping[str, Any]


def row_dtype(table: str) -> np.dtype[Any]:
    """The compound type of a table; texts are UTF-8 of any length."""
    import h5py

    types = {"s": h5py.string_dtype("utf-8"), "i": np.dtype("<i8"), "u": np.dtype("<u8")}
    return np.dtype([(column, types[kind]) for column, kind in TABLES[table].items()])


@lru_cache(maxsize=1 << 14)
def clean(text: str) -> bytes:
    """Text as HDF5 can hold it: UTF-8 without a NUL."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace")


def to_json(data: Any) -> str:
    """JSON text of plain data; NumPy scalars and arrays become numbers and lists, anything else its text."""
    return _ENCODER.encode(data)


def _plain(thing: Any) -> Any:
    if isinstance(thing, Mapping):
        return dict(thing)
    if isinstance(thing, np.ndarray | np.generic):
        return thing.tolist()
    if isinstance(thing, Sequence | set | frozenset):
        return list(thing)
    return str(thing)


_ENCODER = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":"))


def from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CompareError(f"{what} is not JSON ({str(error).splitlines()[0]}): write the trace again") from None


@lru_cache(maxsize=4096)
def _ints_text(numbers: tuple[int, ...]) -> bytes:
    return json.dumps(numbers).encode()


@lru_cache(maxsize=4096)
def _ints(text: str) -> tuple[int, ...] | None:
    if not text:
        return ()
    try:
        numbers = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(numbers, list) or not all(type(n) is int and abs(n) < 1 << 62 for n in numbers):
        return None
    return tuple(numbers)


_NUMBERS = {
    name: tuple((i, column, kind) for i, (column, kind) in enumerate(columns.items()) if kind != "s")
    for name, columns in TABLES.items()
}
_BOUNDS = {"i": (-(2**63), 2**63), "u": (0, 2**64)}


def held(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """`row` as it is, or CompareError where a number of it is none that its column holds."""
    for i, column, kind in _NUMBERS[table]:
        least, end = _BOUNDS[kind]
        if not least <= row[i] < end:
            raise CompareError(f"{row[i]} as `{column}` of a row of {table}: what the engine says of itself is spoilt")
    return row


def value_row(v: Value, offset: int = -1, stored: str = "") -> tuple[Any, ...]:
    return (
        v.id,
        clean(v.step),
        clean(v.name),
        clean(v.kind),
        _ints_text(tuple(v.shape)),
        clean(v.dtype),
        v.op,
        clean(v.dataset),
        v.same_as,
        clean(v.reason),
        v.hash,
        v.address,
        v.extent,
        _ints_text(tuple(v.strides)),
        offset,
        clean(stored),
    )


def op_row(op: Op) -> tuple[Any, ...]:
    return (
        op.id,
        clean(op.step),
        clean(op.name),
        clean(op.kind),
        _ints_text(tuple(op.writes)),
        clean(to_json(op.attrs)),
        clean(op.file),
        op.line,
        op.start_ns,
        op.end_ns,
    )


def read_row(op: int, read: Read) -> tuple[Any, ...]:
    return (
        op,
        read.value,
        clean(read.slot),
        clean(read.state),
        clean(read.dataset),
        read.address,
        read.extent,
        _ints_text(tuple(read.overwritten_by)),
    )


def to_value(row: Row) -> Value:
    where = f"value {row['id']} `{row['name']}`"
    shape, strides = _ints(row["shape"]), _ints(row["strides"])
    if shape is None or strides is None or any(n < 0 for n in shape):
        raise CompareError(f"{where} has no readable shape or strides: write the trace again")
    if row["kind"] not in KINDS:
        raise CompareError(f"{where} is of unknown kind `{row['kind']}`: known are {', '.join(sorted(KINDS))}")
    fields = {name: cell for name, cell in row.items() if name not in SPARE}
    return Value(**{**fields, "shape": shape, "strides": strides})


def to_op(row: Row, reads: Sequence[Read]) -> Op:
    where = f"op {row['id']} `{row['name']}`"
    writes = _ints(row["writes"])
    attrs = from_json(row["attrs"] or "{}", f"attrs of {where}")
    if writes is None or not isinstance(attrs, dict):
        raise CompareError(f"{where} has no readable writes or attrs: write the trace again")
    return Op(**{**row, "writes": writes, "attrs": attrs, "reads": tuple(reads)})


def to_read(row: Row) -> Read:
    overwritten = _ints(row["overwritten_by"])
    if overwritten is None:
        raise CompareError(f"a read of op {row['op']} has no readable overwritten_by: write the trace again")
    fields = {name: cell for name, cell in row.items() if name != "op"}
    return Read(**{**fields, "overwritten_by": overwritten})
