""".npy and .npz files: a value a file, or a value an entry. Never pickled objects."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .dumped import Dumped, cut, files, name_of

KNOWN = ".npy, .npz"


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    for path in files(folder, ".npy", without=taken):
        try:
            yield Dumped(name_of(path, folder), np.load(path, allow_pickle=False), path)
        except (OSError, ValueError, EOFError) as error:
            raise cut(path, error) from None
    for path in files(folder, ".npz", without=taken):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as entries:
                for name in entries.files:
                    yield Dumped(name, entries[name], path)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
            raise cut(path, error) from None
