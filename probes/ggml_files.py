"""Weights that an engine holds as blocks, against the file that the reference's were read from: the same bytes or not.

What an engine holds is known by its hash alone; where it differs, the numbers are read from the engine's own file, if
the command names one. Leaves out which weight a leaf is (ggml_weights.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from firstbad.gguf_blocks import FORMATS, differing_blocks
from firstbad.gguf_file import Tensor, is_gguf, read
from firstbad.hashing import hash_array
from firstbad.run import Prepared


@dataclass(frozen=True)
class Held:
    """A weight of the engine: the hash that it has as the reference's, 0 where nothing is known; its own numbers."""

    hash: int
    array: np.ndarray | None = None


@dataclass
class Files:
    """The tensors of both files, by name; empty where the reference is of no GGUF file."""

    ours: Mapping[str, Tensor]
    theirs: tuple[Mapping[str, Tensor], ...]
    differ: dict[str, str] = field(default_factory=dict)  # weight → what is wrong with it

    def held(self, leaf: str, hashed: int, name: str, own: np.ndarray) -> Held | None:
        """None: the file says nothing of this leaf."""
        tensor = self.ours.get(leaf)
        if tensor is None or math.prod(tensor.shape) != own.size:
            return None
        if hash_array(tensor.raw) == hashed:
            return Held(hash_array(own))
        other = next((f[leaf] for f in self.theirs if leaf in f and hash_array(f[leaf].raw) == hashed), None)
        if other is None or other.shape != tensor.shape:
            return Held(hashed)
        array = other.array().reshape(own.shape)[_order(tensor.array().reshape(own.shape), own)]
        self.differ[name] = _words(leaf, tensor, other)
        return Held(hash_array(array), array)


def files_of(prepared: Prepared, command: Sequence[str]) -> Files:
    """The reference's file and those that the engine's command names."""
    own = Path(prepared.spec.model.removeprefix("causal:"))
    if not is_gguf(own):
        return Files({}, ())
    named = {Path(word) for word in command if word.endswith(".gguf") and is_gguf(Path(word))}
    named = {path for path in named if not path.samefile(own)}
    return Files(read(own).tensors, tuple(read(path).tensors for path in sorted(named)))


def _order(filed: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Which row of the file each row of the reference is: by its numbers."""
    if np.array_equal(filed, own):
        return np.arange(len(own))
    places = {row.tobytes(): i for i, row in enumerate(filed)}
    return np.array([places.get(row.tobytes(), i) for i, row in enumerate(own)])


def _words(leaf: str, ours: Tensor, theirs: Tensor) -> str:
    if ours.type != theirs.type:
        return f"{leaf} is of type {theirs.type}, not {ours.type}"
    if ours.type not in FORMATS:
        return f"{leaf} holds other numbers"
    found = list(differing_blocks(ours.type, ours.raw, theirs.raw, most=3))
    said = ", ".join(f"block {d.block}: {' and '.join(d.fields)} (numbers off by {d.largest:.3g})" for d in found)
    return f"{ours.type} blocks of {leaf} differ: {said}"
