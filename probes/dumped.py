"""One value of a dump, and what every importer needs: files by suffix, and errors in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import CompareError

DTYPES = {
    "float32": "<f4",
    "float64": "<f8",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int8": "<i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "<u1",
    "bool": "?",
    "fp32": "<f4",
    "fp16": "<f2",
    "bf16": "<u2",
    "f32": "<f4",
    "f16": "<f2",
    "i32": "<i4",
    "i64": "<i8",
}
"""How a dtype's numbers lie in a file; those of bfloat16 are kept as their bits."""

NAMES = {"fp32": "float32", "f32": "float32", "fp16": "float16", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Dumped:
    """A value as it was found: `step` is "" where nothing says it."""

    name: str
    array: np.ndarray
    file: Path
    dtype: str = ""  # of the engine, where the array cannot say it: "bfloat16" for bits in uint16
    step: str = ""

    def __post_init__(self) -> None:
        if not self.dtype:
            object.__setattr__(self, "dtype", str(self.array.dtype))
        if self.array.dtype.hasobject or self.array.dtype.kind not in "biuf":
            raise CompareError(f"`{self.name}` in `{self.file}` is of type {self.array.dtype}: numbers are meant")


def files(folder: Path, *suffixes: str, without: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Files below the folder with one of these suffixes, in order of their names, numbers as numbers."""
    found = [p for p in folder.rglob("*") if p.suffix in suffixes and p.is_file() and p not in without]
    yield from sorted(found, key=lambda p: _natural(str(p.relative_to(folder))))


def _natural(text: str) -> list[tuple[int, str]]:
    import re

    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def name_of(path: Path, folder: Path) -> str:
    """The file's place in the folder without its suffix."""
    return path.relative_to(folder).with_suffix("").as_posix()


def cut(path: Path, why: object) -> CompareError:
    """A file that cannot be read to its end."""
    line = str(why).strip().partition("\n")[0].rstrip(".") or "it ends too early"
    return CompareError(f"cannot read `{path}`: {line[:1].lower()}{line[1:]}: write the dump again")


def json_of(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise cut(path, error) from None


def raw(path: Path, dtype: str, shape: tuple[int, ...] | None, offset: int = 0) -> np.ndarray:
    """Numbers as they lie in a file; with a shape exactly as many as it says."""
    if dtype not in DTYPES:
        raise CompareError(f"`{path}` has a dtype `{dtype}` that is not known: {', '.join(DTYPES)}")
    kind = np.dtype(DTYPES[dtype])
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read() if shape is None else file.read(int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
    except OSError as error:
        raise cut(path, error.strerror or error) from None
    if shape is None:
        if len(data) % kind.itemsize:
            raise cut(path, f"{len(data)} bytes are no whole number of {dtype}")
        return np.frombuffer(data, kind)
    wanted = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(data) != wanted:
        raise cut(path, f"{len(data)} bytes are left for {list(shape)} of {dtype}, which needs {wanted}")
    return np.frombuffer(data, kind).reshape(shape)
