"""C-Kernel-Engine's dumps: CKDMP streams, tensor manifests, exports of hidden states and of the key-value cache.

Most of them are flat arrays without a shape: the alignment finds it. The name of a layer's value is `layer.N.NAME`. The
token that a CKDMP record belongs to says the step. It is the position: 0 for a whole prompt, then the prompt's length,
and so on; so the first there is the model's first step, the n-th after it `decode.n-1`.
Leaves out call IR and memory layouts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import CompareError

from .dumped import NAMES, Dumped, cut, files, json_of, raw

KNOWN = "C-Kernel-Engine's dumps"
MAGIC = b"CKDMP\0\0\0"
HEADER = struct.Struct("<8sIi32sII4qIi32x")
DTYPES = ("float32", "float16")
CACHE = b"CXKV"
MANIFEST = "cke.v8.parity_tensor_manifest"
HIDDEN = re.compile(r"tok_(\d+)_layer_(\d+)_(.+)\.f32")
OLD = re.compile(r"L(\d+)_(.+)\.bin")


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    for path in files(folder, ".json", without=taken):
        if MANIFEST.encode() in path.read_bytes():
            yield from _manifest(path)
    for path in files(folder, ".bin", ".kv", ".f16", without=taken):
        with path.open("rb") as file:
            start = file.read(8)
        old = OLD.fullmatch(path.name)
        if start == MAGIC:
            yield from _stream(path)
        elif start[:4] == CACHE:
            yield from _cache(path)
        elif old is not None:
            yield Dumped(f"layer.{int(old[1])}.{old[2]}", raw(path, "float32", None), path)
    yield from _hidden([p for p in files(folder, ".f32", without=taken) if HIDDEN.fullmatch(p.name)])


def _stream(path: Path) -> Iterator[Dumped]:
    """Records one after the other: header, numbers."""
    data = path.read_bytes()
    at = 0
    tokens: list[int] = []
    while at < len(data):
        if len(data) - at < HEADER.size:
            raise cut(path, f"the header at byte {at} is cut short")
        magic, version, layer, op, dtype, rank, *shape, count, token = HEADER.unpack_from(data, at)
        if magic != MAGIC or version != 1 or dtype >= len(DTYPES) or not 0 < rank <= 4:
            raise cut(path, f"there is no record of version 1 at byte {at}")
        at += HEADER.size
        kind = np.dtype("<f4" if dtype == 0 else "<f2")
        if len(data) - at < count * kind.itemsize:
            raise cut(path, f"the numbers at byte {at} are cut short")
        array = np.frombuffer(data, kind, count, at)
        at += count * kind.itemsize
        sizes = tuple(shape[:rank])
        if int(np.prod(sizes, dtype=np.int64)) == count:
            array = array.reshape(sizes)
        name = op.split(b"\0")[0].decode("utf-8", "replace")
        if token not in tokens:
            tokens.append(token)
        n = tokens.index(token)
        step = f"decode.{n - 1}" if n else ""
        yield Dumped(f"layer.{layer}.{name}" if layer >= 0 else name, array, path, step=step)


def _cache(path: Path) -> Iterator[Dumped]:
    """Keys, then values, head by head, the valid rows of each."""
    head = raw(path, "int32", None)[:8] if path.stat().st_size % 4 == 0 else np.zeros(0, np.int32)
    if head.size < 8:
        raise cut(path, "the header is cut short")
    layer, rows, heads, _capacity, size = (int(n) for n in head[2:7])
    shape = (heads, rows, size)
    count = heads * rows * size
    for i, part in enumerate(("keys", "values")):
        yield Dumped(f"layer.{layer}.{part}", raw(path, "float16", shape, 32 + i * 2 * count), path)


def _hidden(paths: list[Path]) -> Iterator[Dumped]:
    """A file for each token: the tokens of a value are its rows."""
    rows: dict[str, list[tuple[int, Path]]] = {}
    for path in paths:
        match = HIDDEN.fullmatch(path.name)
        if match is not None:
            rows.setdefault(f"layer.{int(match[2])}.{match[3]}", []).append((int(match[1]), path))
    for name, tokens in rows.items():
        tokens.sort()
        arrays = [raw(path, "float32", None) for _, path in tokens]
        numbers = [token for token, _ in tokens]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            missing = min(set(range(numbers[0], numbers[-1])) - set(numbers))
            raise CompareError(f"token {missing} of `{name}` is missing beside `{tokens[0][1]}`: export all tokens")
        if len({a.size for a in arrays}) > 1:
            raise CompareError(f"the tokens of `{name}` beside `{tokens[0][1]}` differ in size: export them again")
        yield Dumped(name, np.stack(arrays), tokens[0][1])


def _manifest(path: Path) -> Iterator[Dumped]:
    """Checkpoints with named axes: transposed to their canonical order where that is another one."""
    data = json_of(path)
    rows = data.get("tensors") if isinstance(data, dict) and data.get("schema") == MANIFEST else None
    if not isinstance(rows, list):
        raise CompareError(f"`{path}` is no tensor manifest of C-Kernel-Engine")
    for n, row in enumerate(rows):
        try:
            yield _tensor(path, row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CompareError(f"tensor {n} of `{path}` is not understood: {type(error).__name__} {error}") from None


def _tensor(path: Path, row: dict[str, Any]) -> Dumped:
    file = (path.parent / row["path"]).resolve()
    if not file.is_relative_to(path.parent.resolve()):
        raise CompareError(f"`{path}` names a file outside of its folder: `{row['path']}`")
    if row.get("format", "raw") == "npy":
        array = np.load(file, allow_pickle=False)
    else:
        array = raw(file, row["dtype"], tuple(int(n) for n in row["shape"]))
    axes, wanted = row.get("axes"), row.get("canonical_axes")
    if axes and wanted and axes != wanted and sorted(axes) == sorted(wanted):
        array = array.transpose([axes.index(a) for a in wanted])
    return Dumped(row["checkpoint"], np.ascontiguousarray(array), file, NAMES.get(row["dtype"], row["dtype"]))
