"""Weights compared before any value: the same bytes, the same after the candidate's rounding, or what else they are.

By hash, so that an engine need not hand its weights over; where a trace holds the weight itself, by content. Leaves out
quantised weights (blocks of them are compared by whoever knows the format).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.graph import Value
from firstbad.hashing import hash_array
from firstbad.precision import LOW, bfloat16_bits, rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.trace import Trace

Weight = Callable[[str], "NDArray[Any]"]
"""The reference's weight of a name."""


@dataclass(frozen=True)
class WeightDifference:
    """A weight that is not what it should be, and what it is, where that was found."""

    name: str
    reason: str  # "" where nothing is known but that it differs


@dataclass(frozen=True)
class Weights:
    """How many weights were compared, and which differ."""

    compared: int
    differ: tuple[WeightDifference, ...]


def compare_weights(reference: Trace, candidate: Trace, weight: Weight) -> Weights:
    """Every weight that both traces name; the reference's bytes are looked at only where the hashes differ."""
    compared, differ = 0, []
    theirs = {v.name: v for v in candidate.graph.values if v.kind == "weight"}
    mine = {v.name: v for v in reference.graph.values if v.kind == "weight"}
    by_hash: dict[int, str] = {v.hash: v.name for v in mine.values() if v.hash}
    for name, value in mine.items():
        other = theirs.get(name)
        if other is None or not value.hash or not other.hash:
            continue
        compared += 1
        if value.hash != other.hash and not _same_after_rounding(weight(name), other):
            differ.append(WeightDifference(name, _reason(weight(name), other, by_hash)))
    return Weights(compared, tuple(differ))


def _same_after_rounding(array: NDArray[Any], other: Value) -> bool:
    return other.dtype in LOW and hash_array(stored_as(array, other.dtype)) == other.hash


def stored_as(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """A weight's bytes as the candidate holds them."""
    if dtype == "bfloat16":
        return bfloat16_bits(np.asarray(array, np.float32))
    return array.astype(np.float16) if dtype == "float16" else array


def _reason(array: NDArray[Any], other: Value, by_hash: dict[int, str]) -> str:
    if other.hash in by_hash:
        return f"holds the numbers of {by_hash[other.hash]}"
    return next(
        (reason for reason, changed in _wrongly_converted(array, other) if hash_array(changed) == other.hash), ""
    )


def _wrongly_converted(array: NDArray[Any], other: Value) -> Iterator[tuple[str, NDArray[Any]]]:
    """What often goes wrong on the way into another format."""
    array = stored_as(array, other.dtype)
    if array.ndim == 2:
        yield "transposed", array.T
    elif array.ndim > 2:
        yield "its first axis is its last", np.moveaxis(array, 0, -1)
    yield "its rows are in reverse order", array[::-1]
    yield "all zeros", np.zeros_like(array)
    if array.dtype.itemsize > 1:
        yield "its bytes are in the other order", array.byteswap()
    if other.dtype == "float32" and array.dtype == np.float32:
        for dtype in LOW:
            yield f"rounded to {dtype} on the way", rounded(array, dtype)
