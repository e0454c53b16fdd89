""".safetensors files: a value an entry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .dumped import Dumped, cut, files, name_of

KNOWN = ".safetensors"


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    for path in files(folder, ".safetensors", without=taken):
        yield from entries(path, folder)


def entries(path: Path, folder: Path, name: str = "") -> Iterator[Dumped]:
    """All entries of a file; one that holds a single entry called `data` gives it the file's name (or `name`)."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            keys = list(file.keys())
            for key in keys:
                tensor: Any = file.get_tensor(key)
                own = (name or name_of(path, folder)) if keys == ["data"] else key
                low = tensor.dtype == torch.bfloat16
                array = tensor.view(torch.int16).numpy().view(np.uint16) if low else tensor.numpy()
                yield Dumped(own, array, path, "bfloat16" if low else "")
    except (OSError, SafetensorError) as error:
        raise cut(path, error) from None
