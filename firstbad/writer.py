"""Write a trace as a stream: every value goes to the file at once, so that a run that dies leaves what came before.

The rules of the file are in trace_schema.md. Datasets are made through h5py's low level (a fifth of the time for small
values). Leaves out compression (real activations barely shrink) and SWMR (no new datasets after it starts).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from firstbad import tables
from firstbad.behind import Behind
from firstbad.errors import CompareError, UsageError
from firstbad.graph import Op, Value

_BEHIND = 256 << 10  # bytes of an array from which on another thread writes it
FLUSH_BYTES = 64 << 20  # what a kill may lose at most,
FLUSH_SECONDS = 0.5  # or the values of this time, looked at in each call
_SIGNATURE = b"\x89HDF\r\n\x1a\n"  # with which an HDF5 file begins
_SPARE = 2 << 20  # bytes of the disk that are left alone, for what closing the file writes,
_ROW = 1 << 10  # and for each row of a table with its texts
_ALIGNMENT = 64  # of every array in the file: a reader maps it and may use vector loads
_END_OF_FILE = 40  # byte of the superblock (version 0) where the end-of-file address stands
HASH_ONLY = "its hash and a sketch alone were kept"
_SMALL_META = 1024  # characters up to which a text of `meta` is also a root attribute, for viewers


class TraceWriter:
    """One run of one engine on its way into a file.

    Left normally, the trace is marked complete; left by an exception, incomplete with the exception as its death.
    """

    def __init__(
        self,
        path: Path | str,
        role: Literal["reference", "candidate"] = "reference",
        engine: str = "",
        meta: Mapping[str, Any] | None = None,
        *,
        hash_only: bool = False,
    ) -> None:
        """`hash_only`: of every array its hash and a sketch are kept, and nothing else."""
        import h5py

        self.path = Path(path)
        self._h5 = h5py
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in tables.TABLES}
        self._values = 0
        self._ops = 0
        self._sketches: dict[str, Any] | None = {} if hash_only else None
        self._closed = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            check_replaceable(self.path)
            self.path.unlink(missing_ok=True)  # whoever has the old file mapped keeps it
            self._file = h5py.File(
                self.path,
                "x",
                track_order=True,
                libver=("earliest", "v114"),
                locking=False,  # so that the trace of a running engine can be looked at
                alignment_threshold=1,
                alignment_interval=_ALIGNMENT,
            )
        except OSError as error:
            raise CompareError(f"cannot write the trace `{self.path}`: {_reason(error)}") from None
        self._raw = self._file.id.get_vfd_handle()
        self._behind = Behind(self._raw)
        self._unchecked = 0
        self._check_room(0)
        self._prepare()
        self._attributes(role, engine, dict(meta or {}))
        self._tables = {
            name: self._file.create_dataset(
                f"graph/{name}", (0,), tables.row_dtype(name), maxshape=(None,), chunks=(256,), track_order=True
            )
            for name in tables.TABLES
        }
        self._groups: dict[str, Any] = {}
        self._datasets: set[str] = set()
        self._spaces: dict[tuple[int, ...], Any] = {}
        self._types: dict[str, Any] = {}
        self._bytes = 0
        self._last_flush = 0.0
        self._h5.h5f.flush(self._file.id)
        with self.path.open("rb") as file:
            self._movable = file.read(9)[8] == 0  # later superblocks carry a checksum
        self.flush()

    def _prepare(self) -> None:
        """Property lists, made once; and metadata reaches the disk in flushes only, never half of it in between."""
        h5p = self._h5.h5p
        self._contiguous = h5p.create(h5p.DATASET_CREATE)
        self._contiguous.set_layout(self._h5.h5d.CONTIGUOUS)
        self._contiguous.set_alloc_time(self._h5.h5d.ALLOC_TIME_EARLY)
        self._contiguous.set_fill_time(self._h5.h5d.FILL_TIME_NEVER)
        self._contiguous.set_obj_track_times(False)
        self._ordered = h5p.create(h5p.GROUP_CREATE)
        self._ordered.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
        self._utf8 = h5p.create(h5p.LINK_CREATE)
        self._utf8.set_char_encoding(self._h5.h5t.CSET_UTF8)
        cache = self._file.id.get_mdc_config()
        cache.evictions_enabled = False
        cache.incr_mode = 0
        cache.flash_incr_mode = 0
        cache.decr_mode = 0
        self._file.id.set_mdc_config(cache)

    def _attributes(self, role: str, engine: str, meta: dict[str, Any]) -> None:
        attrs = self._file.attrs
        own = {"schema", "version", "role", "engine", "complete", "death", "default", "NX_class"}
        attrs["schema"] = tables.SCHEMA
        attrs["version"] = tables.VERSION
        attrs["role"] = role
        attrs["engine"] = tables.clean(engine).decode()
        attrs["complete"] = False
        attrs["death"] = ""
        for name, data in meta.items():
            if name and name not in own and isinstance(data, str | int | float) and len(str(data)) <= _SMALL_META:
                text = tables.clean(name).decode()
                attrs[text] = tables.clean(data).decode() if isinstance(data, str) else data
        self._text("meta", meta)

    def value(self, v: Value, array: np.ndarray | None) -> Value:
        """Record a value, and store its array unless it is None; returns `v` with `dataset` and `reason` set."""
        if v.id != self._values:
            raise CompareError(
                f"value `{v.name}` of {v.step} has id {v.id}: the next one of this trace is {self._values}"
            )
        offset, stored = -1, ""
        if array is not None and self._sketches is not None:
            v, array = self._digested(v, array), None
        if array is None:
            v = replace(v, dataset="", reason=v.reason or _why_not_stored(v))
        else:
            if array.shape != tuple(v.shape):
                raise CompareError(
                    f"value `{v.name}` of {v.step} is recorded as {list(v.shape)}, its array is {list(array.shape)}: "
                    "mend the engine's adapter"
                )
            path, offset, stored = self._store(f"/values/{link_name(v.step)}", link_path(v.name), array, v.dtype)
            v = replace(v, dataset=path, reason="")
        self._rows["values"].append(tables.held("values", tables.value_row(v, offset, stored)))
        self._values += 1
        self._tick(0 if array is None else array.nbytes)
        return v

    def as_read(self, op_id: int, slot: str, array: np.ndarray, dtype: str = "") -> str:
        """Store what an op read where that differs from what was written; returns the path for `Read.dataset`.

        `dtype` is the engine's: needed for bfloat16 handed over as uint16.
        """
        if self._sketches is not None:
            return ""
        path, _, _ = self._store(f"/as_read/{op_id}", [link_name(slot or "x")], array, dtype or str(array.dtype))
        self._tick(array.nbytes)
        return path

    def op(self, op: Op) -> None:
        """Record an op with all its reads."""
        if op.id != self._ops:
            raise CompareError(f"op `{op.name}` of {op.step} has id {op.id}: the next one of this trace is {self._ops}")
        self._rows["ops"].append(tables.held("ops", tables.op_row(op)))
        self._rows["reads"].extend(tables.held("reads", tables.read_row(op.id, read)) for read in op.reads)
        self._ops += 1
        self._tick(0)

    def outputs(self, outputs: Mapping[str, Any]) -> None:
        """What the engine answered, as plain data: tokens, text."""
        if "outputs" in self._file:
            del self._file["outputs"]
        self._text("outputs", outputs)

    def flush(self) -> None:
        """Bring everything so far to the file; a kill after this loses none of it."""
        try:
            self._behind.wait()
            self._commit()  # the arrays first, then the rows that name them
            for name, rows in self._rows.items():
                if rows:
                    table = self._tables[name]
                    start = table.shape[0]
                    table.resize(start + len(rows), axis=0)
                    table[start:] = np.array(rows, table.dtype)
                    rows.clear()
            self._commit()
        except OSError as error:
            raise self._failed(error) from None
        self._bytes = 0
        self._last_flush = time.monotonic()

    def _commit(self) -> None:
        """A flush that may be killed half-way: what was in the file before it stays readable.

        HDF5 writes the end-of-file address last, and a reader refuses every block beyond it; so it is moved first.
        """
        end = self._file.id.get_filesize()
        if end > os.fstat(self._raw).st_size:
            os.ftruncate(self._raw, end)
        if self._movable:
            os.pwrite(self._raw, end.to_bytes(8, "little"), _END_OF_FILE)
        self._h5.h5f.flush(self._file.id)

    def close(self, complete: bool, death: str = "") -> None:
        """Finish the file; `death` says in one line how an incomplete run ended. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._sketches is not None:
                self._text("sketches", self._sketches)
            self.flush()
            if death:
                self._file.attrs["death"] = tables.clean(death).decode()
            self._file.attrs["complete"] = complete
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None
        finally:
            self._behind.close()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close(complete=True)
        else:
            lines = str(error).splitlines() or [""]
            self.close(complete=False, death=f"{type(error).__name__}: {lines[0]}")

    def _digested(self, v: Value, array: np.ndarray) -> Value:
        """The value with the hash of its array, whose sketch is kept for the end of the file."""
        from firstbad.hashing import hash_array
        from firstbad.sketch import sketch

        assert self._sketches is not None
        made = sketch(widened(array, v.dtype))
        self._sketches[str(v.id)] = [made.rms, made.apart, made.numbers.tolist()]
        return replace(v, hash=v.hash or hash_array(np.ascontiguousarray(array)), reason=HASH_ONLY)

    def _check_room(self, nbytes: int) -> None:
        """Ends the trace while there is room to end it: HDF5 does not survive a write that fails."""
        self._unchecked += nbytes + _ROW
        if self._unchecked < _SPARE // 4 and nbytes:  # asking takes as long as a small array
            return
        self._unchecked = 0
        disk = os.fstatvfs(self._raw)
        unwritten = self._file.id.get_filesize() - os.fstat(self._raw).st_size
        rows = _ROW * sum(map(len, self._rows.values()))
        if disk.f_bavail * disk.f_frsize < nbytes + max(0, unwritten) + rows + _SPARE:
            raise self._failed(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _tick(self, nbytes: int) -> None:
        self._bytes += nbytes
        if self._bytes >= FLUSH_BYTES or time.monotonic() - self._last_flush >= FLUSH_SECONDS:
            self.flush()

    def _text(self, name: str, data: Mapping[str, Any]) -> None:
        self._file.create_dataset(name, data=tables.clean(tables.to_json(data)), dtype=self._h5.string_dtype("utf-8"))

    def _store(self, root: str, parts: list[str], array: np.ndarray, dtype: str) -> tuple[str, int, str]:
        """The path of the new dataset, its byte in the file (-1: empty) and its type."""
        array = widened(array, dtype)
        if array.dtype.kind not in "fiubc":
            raise CompareError(
                f"`{root}/{'/'.join(parts)}` is of NumPy type {array.dtype}, which has no place in a trace"
            )
        self._check_room(array.nbytes)
        try:
            group, name, path = self._place(root, parts)
            kind = self._type(array.dtype)
            space = self._space(array.shape)
            identifier = self._h5.h5d.create(group, name, kind, space, self._contiguous, lcpl=self._utf8)
            offset = identifier.get_offset()
            if array.size:
                memory = np.ascontiguousarray(array)
                if offset is not None and array.nbytes >= _BEHIND:
                    self._behind.put(memory, offset)
                else:
                    identifier.write(self._h5.h5s.ALL, self._h5.h5s.ALL, memory, kind)
            if _name_of(array.dtype) != dtype:
                self._h5.Dataset(identifier).attrs["dtype"] = tables.clean(dtype).decode()
        except OSError as error:
            raise self._failed(error) from None
        return path, -1 if offset is None else offset, array.dtype.str

    def _place(self, root: str, parts: list[str]) -> tuple[Any, bytes, str]:
        """The group and a free name for a dataset; what is taken (by a dataset or a group) gets `_1`, `_2` ..."""
        where = root
        group = self._group(None, root)
        for part in parts[:-1]:
            where = self._free(f"{where}/{part}", self._datasets)
            group = self._group(group, where)
        path = self._free(f"{where}/{parts[-1]}", self._datasets, self._groups)
        self._datasets.add(path)
        return group, path.rpartition("/")[2].encode(), path

    @staticmethod
    def _free(path: str, *taken: Any) -> str:
        free, n = path, 0
        while any(free in names for names in taken):
            n += 1
            free = f"{path}_{n}"
        return free

    def _group(self, parent: Any, path: str) -> Any:
        group = self._groups.get(path)
        if group is None:
            above, _, name = path.rpartition("/")
            if parent is None:
                parent = self._group(None, above) if above else self._file.id
            group = self._h5.h5g.create(parent, name.encode(), lcpl=self._utf8, gcpl=self._ordered)
            self._groups[path] = group
        return group

    def _space(self, shape: tuple[int, ...]) -> Any:
        space = self._spaces.get(shape)
        if space is None:
            space = self._h5.h5s.create_simple(shape) if shape else self._h5.h5s.create(self._h5.h5s.SCALAR)
            self._spaces[shape] = space
        return space

    def _type(self, dtype: np.dtype[Any]) -> Any:
        kind = self._types.get(dtype.str)
        if kind is None:
            kind = self._types[dtype.str] = self._h5.h5t.py_create(dtype, logical=True)
        return kind

    def _failed(self, error: OSError) -> CompareError:
        return CompareError(f"cannot write the trace `{self.path}`: {_reason(error)}: is the disk full?")


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Its text, which NumPy puts together anew each time."""
    return str(dtype)


def widened(array: np.ndarray, dtype: str) -> np.ndarray:
    """bfloat16 (as uint16 or any two-byte type) and float16 as float32, exactly; everything else as it is."""
    if dtype == "bfloat16" and array.dtype.itemsize == 2:
        bits = array.view(np.uint16).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    if dtype == "float16" and array.dtype.kind == "u":
        array = array.view(np.float16)
    if array.dtype != np.float16:
        return array
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return array.astype(np.float32)


def link_name(text: str) -> str:
    """One HDF5 link name of any text: no slash, not empty, not a dot alone."""
    name = tables.clean(text).decode().replace("/", "_")
    return name if name.strip(".") else "_"


def link_path(name: str) -> list[str]:
    """The links that a value's name stands for: `model.layers.0.fc1` and ONNX's `/model/layers.0/fc1` alike."""
    parts = [part for part in tables.clean(name).decode().replace("/", ".").split(".") if part]
    return parts or ["_"]


def _why_not_stored(v: Value) -> str:
    if v.same_as >= 0:
        return f"the same bytes as value {v.same_as}"
    return "a view of another value" if v.kind == "view" else "not captured"


def check_replaceable(path: Path) -> None:
    """Only a trace gives way to a trace: a mistyped name must not cost a recording, nor root a device."""
    if not path.exists():
        return
    if not path.is_file():
        raise UsageError(f"`{path}` is a folder or a device: give the name of a file for the trace")
    with path.open("rb") as file:
        start = file.read(len(_SIGNATURE))
    if start and start != _SIGNATURE:
        raise UsageError(f"`{path}` is there and is no trace: give another name, or remove it first")


def _reason(error: OSError) -> str:
    return (error.strerror or "").lower() or (str(error).splitlines() or [type(error).__name__])[0]
