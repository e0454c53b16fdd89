"""Converted weights against the original's: for each tensor, what was done to it on the way.

In this order: the same numbers; rounded to the converted file's type; quantised to within its format's step;
transposed, permuted for rotary positions of adjacent pairs, scaled, rows moved, the numbers of another tensor; else
wrong, by how much. Leaves out formats that only their own programs can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad import whisper_file
from firstbad.gguf_blocks import FORMATS, differing_blocks
from firstbad.gguf_file import is_gguf, read
from firstbad.precision import rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEP = {"Q8_0": 1 / 127, "Q6_K": 1 / 16, "Q5_0": 1 / 15, "Q5_1": 1 / 15, "Q5_K": 1 / 15}
"""Error of the largest element of a block that its format may make, relative to it; 1/4 for fewer bits."""

CLOSE = 0.02
"""Relative distance under which a change explains a tensor that is also rounded or quantised."""


@dataclass(frozen=True)
class Held:
    """A tensor of a file: its numbers, the type they are stored in, its bytes where that has blocks."""

    array: NDArray[Any]
    type: str
    raw: NDArray[Any] | None = None


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool
    equal: bool
    what: str
    distance: float


def load_weights(given: str) -> Mapping[str, Held]:
    """The weights of a file, a folder, or a model that firstbad knows by name."""
    path = Path(given)
    if is_gguf(path):
        return {
            t.name: Held(t.array(), t.type, t.raw.reshape(-1).view(np.uint8) if t.blocks else None)
            for t in read(path).tensors.values()
        }
    if whisper_file.is_whisper_file(path):
        held = whisper_file.read(path)
        return {name: Held(array, held.types[name].upper()) for name, array in held.state.items()}
    from firstbad.run import ModelSpec
    from firstbad.session import prepare

    _, prepared = prepare(ModelSpec(given))
    return {name: Held(array, "F32") for name, array in prepared.weights.items()}


def checked(original: Mapping[str, Held], converted: Mapping[str, Held]) -> Iterator[Finding]:
    """Every tensor of either side, in the original's order."""
    for name, ours in original.items():
        if name not in converted:
            tied = name == "proj_out.weight"
            yield Finding(name, tied, tied, "the embedding's own" if tied else "missing", 0.0 if tied else 1.0)
        else:
            yield _finding(name, ours, converted[name], original)
    for name in converted:
        if name not in original:
            yield Finding(name, False, False, "not in the original", 1.0)


def _finding(name: str, ours: Held, theirs: Held, original: Mapping[str, Held]) -> Finding:
    a, b = np.asarray(ours.array, np.float32), np.asarray(theirs.array, np.float32)
    if a.size != b.size:
        return Finding(name, False, False, f"shape {list(b.shape)} where the original has {list(a.shape)}", 1.0)
    same_shape = a.shape == b.shape or _dropped(a.shape) == _dropped(b.shape)
    flat = b.reshape(a.shape)
    if same_shape and np.array_equal(a, flat, equal_nan=True):
        return Finding(name, True, True, "equal", 0.0)
    off = _apart(flat, a)
    stored = _stored(ours, theirs, a, flat) if same_shape else None
    if stored is not None:
        return Finding(name, stored[0], False, stored[1], off)
    for what, changed in _changes(a, b, name, original):
        if changed.size == b.size and _apart(b.reshape(-1), changed.reshape(-1)) <= CLOSE:
            return Finding(name, False, False, what, off)
    slope = float((a.ravel() @ flat.ravel()) / max(float(a.ravel() @ a.ravel()), 1e-30))
    scaled = same_shape and _apart(flat, slope * a) <= CLOSE
    return Finding(
        name, False, False, f"scaled by {slope:.6g}" if scaled else f"wrong: off by {off:.3g} of its size", off
    )


def _stored(ours: Held, theirs: Held, a: NDArray[Any], b: NDArray[Any]) -> tuple[bool, str] | None:
    """(fine, what) where the difference is one of how the same numbers are stored."""
    for dtype in ("float16", "bfloat16"):
        if np.array_equal(rounded(a, dtype), b):
            return True, f"rounded to {dtype}"
    if ours.type == theirs.type and ours.raw is not None and theirs.raw is not None:
        return False, _blocks(theirs.type, ours.raw, theirs.raw)
    if theirs.type in FORMATS and _within(theirs.type, a, b):
        return True, f"quantised to {theirs.type}, off by {_apart(b, a):.2g}"
    return None


def _changes(a: NDArray[Any], b: NDArray[Any], name: str, original: Mapping[str, Held]) -> Iterator[tuple[str, Any]]:
    if a.ndim == 2:
        yield "transposed", a.T
        for heads in (h for h in range(1, 129) if a.shape[0] % (2 * h) == 0):
            half = a.shape[0] // heads // 2
            if half > 1:
                paired = a.reshape(heads, 2, half, -1).swapaxes(1, 2)
                yield f"rows permuted for rotary positions of adjacent pairs, {heads} heads", paired
                back = a.reshape(heads, half, 2, -1).swapaxes(1, 2)
                yield f"rows permuted for rotary positions of halves, {heads} heads", back
    if a.ndim:
        for by in (1, -1):
            yield f"rows moved by {by}", np.roll(a, by, 0)
    if not b.any():
        yield "all zeros", np.zeros_like(a)
    for other, held in original.items():
        if other != name and held.array.size == b.size:
            yield f"holds the numbers of {other}", held.array


def _within(kind: str, a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether each block is as near as its format allows."""
    size = FORMATS[kind][0]
    if a.shape[-1] % size:
        return False
    x, y = a.reshape(-1, size), b.reshape(-1, size)
    most = np.abs(x).max(1)
    return bool((np.abs(x - y).max(1) <= STEP.get(kind, 0.25) * most + 1e-12).mean() > 0.999)


def _blocks(kind: str, ours: NDArray[Any], theirs: NDArray[Any]) -> str:
    if ours.size != theirs.size:
        return f"{theirs.size} bytes of {kind} where the original has {ours.size}"
    found = list(differing_blocks(kind, ours, theirs, most=3))
    said = ", ".join(f"block {d.block}: {' and '.join(d.fields)} (numbers off by {d.largest:.3g})" for d in found)
    return f"{kind} blocks differ: {said}"


def _dropped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _apart(b: NDArray[Any], a: NDArray[Any]) -> float:
    size = float(np.linalg.norm(a.ravel())) or 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.linalg.norm(np.nan_to_num(b.ravel() - a.ravel(), nan=1e30))) / size
