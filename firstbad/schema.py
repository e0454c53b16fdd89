"""Walk a trace against trace_schema.md and say in words what breaks a rule. Leaves out repair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from firstbad import tables
from firstbad.errors import CompareError
from firstbad.graph import Value
from firstbad.trace import Trace, open_trace

_TEXTS = ("schema", "role", "engine", "death")


def validate(path: Path | str) -> list[str]:
    """Every broken rule of the schema page, one line each; an empty list for a sound trace."""
    try:
        with open_trace(path) as trace:
            file = trace.hdf5
            problems = [*_root(file), *_texts(file), *_tables(file, trace.complete), *_arrays(file, trace)]
    except CompareError as error:
        return [str(error)]
    return problems


def _root(file: Any) -> Iterator[str]:
    attrs = file.attrs
    for name in _TEXTS:
        if not isinstance(attrs.get(name), str):
            yield f"root attribute `{name}` is not a text"
    if attrs.get("role") not in ("reference", "candidate"):
        yield f"root attribute `role` is `{attrs.get('role')}`, not reference or candidate"
    if not isinstance(attrs.get("complete"), bool | np.bool_):
        yield "root attribute `complete` is not a boolean"


def _texts(file: Any) -> Iterator[str]:
    for name in ("meta", "outputs"):
        if name not in file:
            if name == "meta":
                yield "/meta is missing"
        elif file[name].shape != ():
            yield f"/{name} is not a scalar text"
        elif not isinstance(json.loads(file[name][()]), dict):
            yield f"/{name} is not a JSON object"


def _tables(file: Any, complete: bool) -> Iterator[str]:
    for name, columns in tables.TABLES.items():
        table = file.get(f"graph/{name}")
        if table is None:
            if complete:
                yield f"/graph/{name} is missing"
            continue
        if table.maxshape != (None,):
            yield f"/graph/{name} is not resizable"
        for column, kind in columns.items():
            if column in table.dtype.names:
                found = table.dtype[column].kind
                if found != {"s": "O", "i": "i", "u": "u"}[kind]:
                    yield f"column `{column}` of /graph/{name} is of kind {found}"


def _arrays(file: Any, trace: Trace) -> Iterator[str]:
    named: dict[str, str] = {}
    for value in trace.graph.values:
        where = f"`{value.name}` of {value.step}"
        if not value.dataset:
            if value.same_as < 0 and not value.reason:
                yield f"{where} is not stored and gives no reason"
            if trace.stored(value):
                yield from _readable(trace, value)
            continue
        if value.dataset in named:
            yield f"{where} and {named[value.dataset]} share the array `{value.dataset}`"
        named[value.dataset] = where
        if not trace.stored(value):
            continue
        if not value.dataset.startswith("/values/"):
            yield f"{where} is stored outside /values, in `{value.dataset}`"
        unreadable = list(_readable(trace, value))
        yield from unreadable or _array(file, value.dataset, where, value.dtype)
    for op in trace.graph.ops:
        for read in op.reads:
            if read.dataset and read.dataset not in file and trace.complete:
                yield f"what op {op.id} `{op.name}` read is missing: no `{read.dataset}`"


def _readable(trace: Trace, value: Value) -> Iterator[str]:
    try:
        trace.array(value)
    except CompareError as error:
        yield str(error)


def _array(file: Any, dataset: str, where: str, dtype: str) -> Iterator[str]:
    try:
        array = file[dataset]
    except (KeyError, OSError, RuntimeError):  # found by its offset: a kill came in the middle of a flush
        return
    if array.dtype.kind == "f" and array.dtype.itemsize < 4:
        yield f"{where} is stored as {array.dtype}, not widened to float32"
    elif str(array.dtype) != dtype and array.attrs.get("dtype") != dtype:
        yield f"{where} is {dtype} in the engine and {array.dtype} in the file, without the attribute `dtype`"
