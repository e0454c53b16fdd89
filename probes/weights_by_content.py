"""Weights under other names or transposed: which of the model's weights an engine's array is, told by its numbers.

An array equal to a weight, as it is or transposed, is that weight. What is left is paired with what is left of the
model's weights where one of them is nearest by far: a weight that was changed on the way keeps its name, so that it
can be told from the value that it spoils. Leaves out quantised and merged weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstbad.hashing import hash_array

NEAR = 0.9
"""Relative distance up to which a changed array may still be a weight; that of two unrelated ones is about 1.4."""


@dataclass(frozen=True)
class Named:
    """An engine's array as the model's weight `name`, in the model's layout."""

    name: str
    array: np.ndarray
    transposed: bool


def named(arrays: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]) -> dict[str, Named]:
    """Engine's name → the weight that it is; arrays that are none are left out."""
    by_hash: dict[int, list[str]] = {}
    for name, weight in weights.items():
        by_hash.setdefault(hash_array(weight), []).append(name)
    found: dict[str, Named] = {}
    used: set[str] = set()
    for name, array in arrays.items():
        for way, turned in _ways(array):
            same = by_hash.get(hash_array(turned), [])
            best = next((n for n in same if n == name), None) or next((n for n in same if n not in used), None)
            if best is not None:
                found[name] = Named(best, turned, way)
                used.add(best)
                break
    for name, array in arrays.items():
        if name not in found and array.size > 1 and np.issubdtype(array.dtype, np.floating):
            changed = _nearest(name, array, {n: w for n, w in weights.items() if n not in used})
            if changed is not None:
                found[name] = changed
                used.add(changed.name)
    return found


def _ways(array: np.ndarray) -> Iterator[tuple[bool, np.ndarray]]:
    yield False, array
    if array.ndim == 2:
        yield True, array.T


def _nearest(name: str, array: np.ndarray, weights: Mapping[str, np.ndarray]) -> Named | None:
    if name in weights and weights[name].shape == array.shape:
        return Named(name, array, False)
    options: list[tuple[float, Named]] = []
    for other, weight in weights.items():
        for way, turned in _ways(array):
            if turned.shape == weight.shape:
                options.append((_distance(turned, weight), Named(other, turned, way)))
    options.sort(key=lambda o: o[0])
    if not options or not options[0][0] < NEAR or (len(options) > 1 and options[1][0] < 1.2 * options[0][0]):
        return None
    return options[0][1]


def _distance(a: Any, b: Any) -> float:
    size = float(np.linalg.norm(b)) or 1.0
    return float(np.linalg.norm(np.asarray(a, np.float32) - b)) / size
