"""Raw binaries with a small index: the format to write from anything.

    index.json: {"values": [{"name": "layers.0.q", "file": "q.bin", "dtype": "float32", "shape": [10, 64]}, ...]}

`step`, and `offset` in bytes where several values share a file, may be given with a value. Numbers are little-endian
and in C order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firstbad.errors import CompareError

from .dumped import NAMES, Dumped, json_of, raw

KNOWN = "index.json with raw binaries"


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    index = folder / "index.json"
    if not index.is_file() or index in taken:
        return
    data = json_of(index)
    rows = data.get("values") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise CompareError(f'`{index}` is no index: {{"values": [{{"name", "file", "dtype", "shape"}}]}} is meant')
    for n, row in enumerate(rows):
        shape = row.get("shape") if isinstance(row, dict) else None
        plain = isinstance(shape, list) and all(isinstance(i, int) and i >= 0 for i in shape)
        if not plain or not all(isinstance(row.get(key), str) for key in ("name", "file", "dtype")):
            raise CompareError(f"value {n} of `{index}` needs name, file, dtype and shape")
        path = (folder / row["file"]).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise CompareError(f"value {n} of `{index}` is outside of the folder: `{row['file']}`")
        array = raw(path, row["dtype"], tuple(shape or ()), int(row.get("offset", 0)))
        dtype = NAMES.get(row["dtype"], row["dtype"])
        yield Dumped(row["name"], array, path, dtype, str(row.get("step", "")))
