"""The arrays of an HDF5 file by their path, mapped into memory: nothing is read until somebody looks at it.

A file from anywhere is not trusted: no link leaves it, no dataset keeps its data outside it, no size is believed that
the file does not hold. Leaves out what the arrays mean; see trace.py.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from firstbad.errors import CompareError

_MAX_RATIO = 1040  # what deflate can shrink at most: a declared size beyond it is a lie
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an array lies in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None  # None: not contiguous, or empty: h5py reads it


class Store:
    """An HDF5 file opened for reading. `close` lets go of it; the next look opens it again.

    `spare` says where arrays lie that cannot be found by their path, since a kill in a flush spoilt their group.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._map: mmap.mmap | None = None
        self._layouts: dict[str, Layout] = {}
        self.spare: dict[str, Layout] = {}

    @property
    def file(self) -> Any:
        """The h5py file, opened if need be."""
        if self._file is None:
            import h5py

            if not self.path.is_file():
                raise CompareError(f"no trace `{self.path}`: give the path of a .h5 file that `firstbad capture` wrote")
            try:
                self._file = h5py.File(self.path, "r")
            except Exception as error:  # h5py raises OSError, RuntimeError, ValueError as the bytes may have it
                raise CompareError(f"cannot open the trace `{self.path}`: {_why(error, self.path)}") from None
        return self._file

    def close(self) -> None:
        """Let go of the HDF5 file; arrays handed out stay valid."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._map = None

    def release(self) -> None:
        """Let the system have the pages that were looked at: they count as this process's until then."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def guarded(self, what: str, read: Callable[[], T]) -> T:
        """`read()`, with whatever HDF5 makes of a damaged file turned into one line."""
        try:
            return read()
        except CompareError:
            raise
        except MemoryError:
            raise CompareError(f"{what} of `{self.path}` does not fit into memory") from None
        except Exception as error:
            raise CompareError(f"cannot read {what} of `{self.path}`: {_first_line(error)}") from None

    def layout(self, dataset: str) -> Layout:
        """Where `dataset` lies; CompareError where it does not exist or is none of ours."""
        found = self._layouts.get(dataset)
        if found is None:
            try:
                found = self.guarded(f"`{dataset}`", lambda: self._look(dataset))
            except CompareError:
                if dataset not in self.spare:
                    raise
                found = self.spare[dataset]
            self._layouts[dataset] = found
        return found

    def array(self, dataset: str) -> np.ndarray:
        """The array, read-only: mapped where it is contiguous, else read."""
        layout = self.layout(dataset)
        if layout.offset is None:
            array = self.guarded(f"`{dataset}`", lambda: np.asarray(self.file[dataset][()], layout.dtype))
        else:
            array = self._mapped(dataset, layout)
        array = _native(array)
        array.flags.writeable = False
        return array

    def _look(self, dataset: str) -> Layout:
        from h5py import h5d, h5f, h5i

        file = self.file
        link = dataset.encode()
        if not dataset.startswith("/") or "\0" in dataset:
            raise CompareError(f"`{dataset}` is not a path inside `{self.path}`: a dataset path starts with a slash")
        try:
            identifier = h5d.open(file.id, link)
        except (KeyError, OSError, ValueError) as error:
            raise CompareError(f"no array `{dataset}` in `{self.path}` ({_first_line(error)}): capture again") from None
        properties = identifier.get_create_plist()
        kind = properties.get_layout()
        inside = h5f.get_name(identifier) == h5f.get_name(file.id) and h5i.get_file_id(identifier) == file.id
        if kind == h5d.VIRTUAL or (kind == h5d.CONTIGUOUS and properties.get_external_count()) or not inside:
            raise CompareError(
                f"`{dataset}` of `{self.path}` keeps its data in another file: only the trace itself is read"
            )
        dtype = identifier.dtype
        if dtype.kind not in "fiubc" or dtype.subdtype is not None:
            raise CompareError(f"`{dataset}` of `{self.path}` is of type {dtype}: a value is an array of numbers")
        shape = tuple(identifier.shape)
        size = dtype.itemsize
        for n in shape:
            size *= n
        held = identifier.get_storage_size()
        if size > held * (1 if kind == h5d.CONTIGUOUS else _MAX_RATIO):
            raise CompareError(
                f"`{dataset}` of `{self.path}` declares {size} bytes and holds {held}: the file is cut or forged"
            )
        offset = identifier.get_offset() if kind == h5d.CONTIGUOUS and size else None
        return Layout(shape, dtype, offset)

    def _mapped(self, dataset: str, layout: Layout) -> np.ndarray:
        assert layout.offset is not None
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count = 1
        for n in layout.shape:
            count *= n
        end = layout.offset + count * layout.dtype.itemsize
        if end > len(self._map):
            raise CompareError(
                f"`{dataset}` ends at byte {end} of `{self.path}`, which has {len(self._map)}: the file is cut"
            )
        flat = np.frombuffer(self._map, layout.dtype, count, layout.offset)
        if not flat.flags.aligned:
            flat = flat.copy()
        return flat.reshape(layout.shape)


def _native(array: np.ndarray) -> np.ndarray:
    """Machine byte order; half floats widened; a boolean is 0 or 1 whatever byte the file holds."""
    if array.dtype.kind == "b":
        return np.asarray(np.not_equal(array.view(np.uint8), 0))  # of a scalar NumPy makes no array
    if array.dtype.kind == "f" and array.dtype.itemsize < 4:
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            return array.astype(np.float32)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array.view()


def _first_line(error: Exception) -> str:
    text = str(error).strip("'\"") or type(error).__name__
    return text.splitlines()[0]


def _why(error: Exception, path: Path) -> str:
    try:
        with path.open("rb") as file:
            signature = file.read(8)
    except OSError as failure:
        return failure.strerror or _first_line(failure)
    if signature != b"\x89HDF\r\n\x1a\n":
        return "not an HDF5 file: give a trace that `firstbad capture` wrote"
    return f"{_first_line(error)}: the file is cut or damaged, capture again"
