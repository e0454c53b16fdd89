"""Polygraphy's RunResults (JSON): each output of each iteration. The way back is the report `polygraphy`.

The first runner is read. Iteration 0 is the model's first step; later ones stand under `iteration.1` and so on, since
nothing says what was fed to them.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import CompareError

from .dumped import Dumped, cut, files, json_of

KNOWN = "Polygraphy's RunResults"


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    for path in files(folder, ".json", without=taken):
        if b"polygraphy_class" not in path.read_bytes():
            continue
        data = json_of(path)
        try:
            runners = data["lst"]
            _name, iterations = runners[0]
            for i, iteration in enumerate(iterations):
                step = f"iteration.{i}" if i else ""
                for name, held in iteration["outputs"].items():
                    yield Dumped(name, _array(held, path), path, step=step)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise CompareError(f"`{path}` is no RunResults of Polygraphy: save them with RunResults.save") from None


def _array(held: Any, path: Path) -> np.ndarray:
    while isinstance(held, dict) and "array" not in held:
        held = held["values"]
    try:
        return np.asarray(np.load(io.BytesIO(base64.b64decode(held["array"], validate=True)), allow_pickle=False))
    except (binascii.Error, ValueError, EOFError, OSError) as error:
        raise cut(path, error) from None
