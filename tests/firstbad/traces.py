"""Small traces to look at, to edit and to spoil."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from firstbad.errors import CompareError
from firstbad.graph import Op, Read, Value
from firstbad.trace import TraceWriter, open_trace


def value(i: int, name: str, array: np.ndarray | None = None, step: str = "encode", **more: object) -> Value:
    shape = () if array is None else array.shape
    dtype = "float32" if array is None else str(array.dtype)
    return replace(Value(i, step, name, "value", shape, dtype), **more)


def small(path: Path) -> Path:
    """Two values, two ops, one value that is the same as another."""
    with TraceWriter(path, "candidate", "c", {"model": "toy", "inputs": {"seed": 3}}) as writer:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        writer.value(value(0, "x", x, kind="input"), x)
        writer.op(Op(0, "encode", "fc", "linear", (Read(0, "x"),), (1,), {"eps": 1e-5}, "k.c", 7, 1, 2))
        writer.value(value(1, "m.fc", 2 * x, op=0, hash=2**64 - 1, address=2**63, strides=(12, 4), extent=24), 2 * x)
        writer.op(Op(1, "encode", "id", "copy", (Read(1, "x", "changed", overwritten_by=(0, 1)), Read(-1)), (2,)))
        writer.value(value(2, "m.copy", x, op=1, same_as=1, shape=(3, 2)), None)
        writer.outputs({"tokens": [1, 2], "text": "où"})
        writer.outputs({"tokens": [1, 2, 3], "text": "où"})
    return path


def edit(path: Path) -> h5py.File:
    return h5py.File(path, "r+")


def set_cell(path: Path, table: str, row: int, column: str, cell: object) -> None:
    with edit(path) as file:
        rows = file[f"graph/{table}"][:]
        rows[row][column] = cell
        file[f"graph/{table}"][:] = rows


def one_line(path: Path) -> str:
    with pytest.raises(CompareError) as caught:
        trace = open_trace(path)
        for v in trace.graph.values:
            trace.array(v)
        for op in trace.graph.ops:
            for read in op.reads:
                if read.dataset:
                    trace.as_read(read)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")
    return str(caught.value)
