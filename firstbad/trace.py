"""Read a trace: the records of one run as a Graph, and its arrays mapped into memory.

A trace of a killed run opens too, with all up to the writer's last flush. A file that is damaged, forged or of another
kind gives one clear line. Leaves out the writing (writer.py) and the page of rules (trace_schema.md, schema.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from firstbad import tables
from firstbad.errors import CompareError
from firstbad.graph import Graph, Op, Read, Value
from firstbad.sketch import Sketch
from firstbad.store import Layout, Store
from firstbad.writer import TraceWriter

__all__ = ["Trace", "TraceWriter", "mark_default", "open_trace"]

_MAX_ROWS = 50_000_000


@dataclass(frozen=True)
class Trace:
    """One run of one engine, read from its file."""

    path: Path
    role: str
    engine: str
    meta: Mapping[str, Any]
    graph: Graph
    outputs: Mapping[str, Any]
    complete: bool
    death: str
    _store: Store = field(repr=False, compare=False)
    sketches: Mapping[int, Sketch] = field(default_factory=dict, repr=False)  # of a trace that keeps no arrays

    def array(self, value: Value | str) -> np.ndarray:
        """The array of a value (or of a dataset path), read-only, mapped where the file allows it.

        float32 for every float of up to four bytes, the file's type for the rest; `same_as` is followed.
        """
        if isinstance(value, str):
            return self._store.array(value)
        where = self._where(value)
        if not where.dataset:
            raise CompareError(
                f"`{value.name}` of {value.step} is not stored in `{self.path}`: {where.reason or 'not captured'}"
            )
        array = self._store.array(where.dataset)
        if array.shape == value.shape:
            return array
        if where is not value and array.size == _count(value.shape):
            return array.reshape(value.shape)
        raise CompareError(
            f"`{value.name}` of {value.step} is recorded as {list(value.shape)} and `{where.dataset}` of "
            f"`{self.path}` holds {list(array.shape)}: the file is damaged, capture again"
        )

    def stored(self, value: Value) -> bool:
        """Whether `array(value)` has bytes to show; in the trace of a killed run the file itself is asked."""
        where = self._where(value)
        if not where.dataset:
            return False
        if self.complete:
            return True
        try:
            self._store.layout(where.dataset)
        except CompareError:
            return False
        return True

    def as_read(self, read: Read) -> np.ndarray:
        """What an op read: the bytes stored for this read, or else the value as it was written."""
        if read.dataset:
            return self._store.array(read.dataset)
        if not 0 <= read.value < len(self.graph.values):
            raise CompareError(f"what the slot `{read.slot}` read is not stored in `{self.path}` and is no known value")
        return self.array(self.graph.values[read.value])

    @property
    def hdf5(self) -> Any:
        """The h5py file itself, for whoever wants more than the records."""
        return self._store.file

    def _repr_html_(self) -> str:
        """For notebooks."""
        from firstbad.notebook import of_trace

        return of_trace(self)

    def close(self) -> None:
        """Let go of the HDF5 file, so that this process may write to it; arrays stay valid, a later look reopens it."""
        self._store.close()

    def release(self) -> None:
        """Let go of the file's pages that are in memory; arrays stay valid, and a look brings them back."""
        self._store.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _where(self, value: Value) -> Value:
        """The value whose dataset holds the bytes of `value` (open_trace has ruled out circles)."""
        while not value.dataset and value.same_as >= 0:
            value = self.graph.values[value.same_as]
        return value


def open_trace(path: Path | str) -> Trace:
    """Open a trace, whole or cut; CompareError where it is none, or where its records contradict each other."""
    path = Path(path)
    store = Store(path)
    file = store.file
    attrs = store.guarded("the root attributes", lambda: dict(file.attrs))
    schema, version = attrs.get("schema"), attrs.get("version")
    if schema != tables.SCHEMA:
        raise CompareError(f"`{path}` is an HDF5 file but no firstbad trace: give one that `firstbad capture` wrote")
    if not isinstance(version, int | np.integer) or version < 1:
        raise CompareError(f"`{path}` has no readable schema version: write the trace again")
    if version > tables.VERSION:
        raise CompareError(
            f"`{path}` is of schema version {version}, this firstbad reads up to {tables.VERSION}: update firstbad"
        )
    complete = bool(attrs.get("complete", False))
    rows = {name: _rows(store, name, complete) for name in tables.TABLES}
    try:
        graph = _graph(rows, complete)
    except CompareError as error:
        raise CompareError(f"in the trace `{path}`: {error}") from None
    if not complete:
        store.spare = _spare(rows["values"], graph.values, path.stat().st_size)
    return Trace(
        path,
        str(attrs.get("role", "")),
        str(attrs.get("engine", "")),
        _json(store, "meta"),
        graph,
        _json(store, "outputs"),
        complete,
        str(attrs.get("death", "")),
        store,
        _sketches(store, graph),
    )


def mark_default(path: Path | str, step: str, name: str, difference: np.ndarray | None = None) -> bool:
    """Make HDF5 viewers open the file on the value `name` of `step` (and its difference from the reference).

    False where that value is not stored. The file must not be open in this process: close its Trace first.
    """
    import h5py

    with open_trace(path) as trace:
        value = trace.graph.by_key.get((step, name))
        where = trace._where(value) if value else None
    if where is None or not where.dataset:
        return False
    try:
        with h5py.File(path, "r+", track_order=True) as file:
            if "first_bad" in file:
                del file["first_bad"]
            group = file.create_group("first_bad", track_order=True)
            group["value"] = h5py.SoftLink(where.dataset)
            if difference is not None:
                group.create_dataset("difference", data=np.ascontiguousarray(difference))
                group.attrs["auxiliary_signals"] = ["value"]
            group.attrs["NX_class"] = "NXdata"
            group.attrs["signal"] = "value" if difference is None else "difference"
            group.attrs["title"] = f"first bad: {tables.clean(name).decode()} of {tables.clean(step).decode()}"
            file.attrs["NX_class"] = "NXroot"
            file.attrs["default"] = "first_bad"
    except OSError as error:
        line = str(error).splitlines()[0]
        raise CompareError(f"cannot mark the first bad value in `{path}`: {line}: close the trace first") from None
    return True


def _json(store: Store, name: str) -> Mapping[str, Any]:
    def read() -> Any:
        dataset = store.file.get(name)
        if dataset is None:
            return {}
        text = dataset[()]
        return tables.from_json(text.decode() if isinstance(text, bytes) else str(text), f"/{name} of `{store.path}`")

    data = store.guarded(f"/{name}", read)
    if not isinstance(data, dict):
        raise CompareError(f"/{name} of `{store.path}` is not a JSON object: write the trace again")
    return data


def _sketches(store: Store, graph: Graph) -> Mapping[int, Sketch]:
    """The sketches of a trace that keeps hashes alone, by value."""
    found = {}
    for key, entry in _json(store, "sketches").items():
        try:
            rms, apart, numbers = entry
            value = graph.values[int(key)]
            found[value.id] = Sketch(_count(value.shape), np.asarray(numbers, np.float64), float(rms), int(apart))
        except (ValueError, TypeError, IndexError):
            raise CompareError(f"the sketches of `{store.path}` are damaged: capture it again") from None
    return found


def _rows(store: Store, name: str, complete: bool) -> list[dict[str, Any]]:
    """The rows of a table as dicts; an incomplete trace may lack the table, an older one a column."""
    import h5py

    def read() -> list[dict[str, Any]]:
        table = store.file["graph"].get(name) if "graph" in store.file else None
        if table is None:
            if complete:
                raise CompareError(f"`{store.path}` has no table /graph/{name}: it is no whole trace, capture again")
            return []
        if not isinstance(table, h5py.Dataset) or table.ndim != 1 or table.dtype.names is None:
            raise CompareError(f"/graph/{name} of `{store.path}` is no table: write the trace again")
        held = table.id.get_storage_size()
        room = held * (1000 if table.compression else 1) // table.dtype.itemsize
        # a kill in the middle of a flush may leave the new length without its rows: those that are held are read
        if table.shape[0] > _MAX_ROWS or (complete and table.shape[0] > room):
            raise CompareError(f"/graph/{name} of `{store.path}` declares {table.shape[0]} rows and holds {held} bytes")
        missing = [column for column in tables.REQUIRED[name] if column not in table.dtype.names]
        if missing:
            raise CompareError(
                f"/graph/{name} of `{store.path}` lacks the column `{missing[0]}`: write the trace again"
            )
        data = table[:] if complete else _readable(table)[:room]
        columns = [_column(store, name, column, kind, data) for column, kind in tables.TABLES[name].items()]
        return [dict(zip(tables.TABLES[name], cells, strict=True)) for cells in zip(*columns, strict=True)]

    return store.guarded(f"/graph/{name}", read)


def _readable(table: Any) -> np.ndarray:
    """All rows, or as many from the start as can be read: a kill in the middle of a flush spoils the newest ones."""
    good, bad = 0, table.shape[0] + 1
    rows = table[:0]
    tried = table.shape[0]
    while bad - good > 1:
        try:
            rows, good = table[:tried], tried
        except (OSError, RuntimeError, ValueError):
            bad = tried
        tried = (good + bad) // 2
    return np.asarray(rows)


def _column(store: Store, table: str, column: str, kind: str, data: np.ndarray) -> list[Any]:
    if column not in (data.dtype.names or ()):
        return [tables.DEFAULTS.get(column, "" if kind == "s" else 0)] * len(data)
    cells: list[Any] = data[column].tolist()
    if kind == "s":
        cells = [cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell for cell in cells]
    wanted: type = str if kind == "s" else int
    if not all(type(cell) is wanted for cell in cells):
        raise CompareError(
            f"column `{column}` of /graph/{table} of `{store.path}` is not of the type that the schema names"
        )
    return cells


def _graph(rows: Mapping[str, list[dict[str, Any]]], complete: bool) -> Graph:
    """Records of the rows, checked against each other; what the cut of a killed run left dangling is dropped."""
    values = [tables.to_value(row) for row in rows["values"]]
    n_values, n_ops = len(values), len(rows["ops"])
    reads: dict[int, list[Read]] = {}
    for row in rows["reads"]:
        read = tables.to_read(row)
        _in_range("a read", "value", read.value, n_values, complete)
        _in_range("a read", "op", row["op"], n_ops, complete)
        reads.setdefault(row["op"], []).append(read if read.value < n_values else replace(read, value=-1))
    ops = [tables.to_op(row, reads.get(row["id"], ())) for row in rows["ops"]]
    for i, value in enumerate(values):
        where = f"value {i} `{value.name}`"
        if value.id != i:
            raise CompareError(f"{where} has id {value.id}: ids must count the rows, write the trace again")
        _in_range(where, "op", value.op, n_ops, complete)
        _in_range(where, "same_as", value.same_as, n_values, complete=True)
        if value.op >= n_ops:
            values[i] = replace(value, op=-1)
    _no_circles(values)
    return Graph(tuple(values), tuple(_checked_ops(ops, n_values, complete)))


def _spare(rows: list[dict[str, Any]], values: tuple[Value, ...], size: int) -> dict[str, Layout]:
    """Where the arrays lay when they were written; all of it is in the file before the row that says so."""
    spare = {}
    for row, value in zip(rows, values, strict=True):
        try:
            dtype = np.dtype(row["stored"])
        except TypeError:
            continue
        start = row["offset"]
        if value.dataset and dtype.kind in "fiubc" and 0 < start <= size - _count(value.shape) * dtype.itemsize:
            spare[value.dataset] = Layout(value.shape, dtype, start)
    return spare


def _checked_ops(ops: list[Op], n_values: int, complete: bool) -> Iterator[Op]:
    for i, op in enumerate(ops):
        where = f"op {i} `{op.name}`"
        if op.id != i:
            raise CompareError(f"{where} has id {op.id}: ids must count the rows, write the trace again")
        for write in op.writes:
            _in_range(where, "write", write, n_values, complete)
        known = tuple(write for write in op.writes if 0 <= write < n_values)
        yield op if known == op.writes else replace(op, writes=known)


def _in_range(who: str, column: str, number: int, limit: int, complete: bool) -> None:
    """-1 (none) or the number of a row; beyond the rows only where a kill cut the tables short."""
    if number < -1 or (number >= limit and complete):
        raise CompareError(f"{who} names {column} {number}, there are {limit}: the file is damaged, capture again")


def _no_circles(values: list[Value]) -> None:
    """`same_as` must lead to an end: it may only point backwards."""
    for value in values:
        if value.same_as >= value.id:
            raise CompareError(
                f"value {value.id} `{value.name}` is the same as value {value.same_as}, which comes later: "
                "same_as must point backwards"
            )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
