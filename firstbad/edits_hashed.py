"""Edits of a weight that the candidate holds changed, where its hash says how: tried by hash first, then replayed.

The same numbers as another weight, zeros, rows moved, two heads exchanged, transposed: each is made of the model's own
weight and hashed as the candidate stores it, so what is found is what stands there, bit by bit. Leaves out numbers that
the model has nowhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import Edit
from firstbad.edits_layout import heads_of
from firstbad.graph import Value
from firstbad.hashing import hash_array
from firstbad.weights import stored_as

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Way = tuple[str, Mapping[str, Any], NDArray[Any]]

MOST_HEADS = 32


def hashed(case: Case) -> Iterator[Edit]:
    """All changed weights of the region at once, then each alone."""
    found: list[tuple[Value, Way]] = []
    for i in case.region.weights:
        own = case.reference.graph.values[i]
        other = case.candidate.graph.by_key.get(("weights", own.name))
        if other is None or not other.hash:
            continue
        array = case.executor.weight(own.name)
        if hash_array(stored_as(array, other.dtype)) == other.hash:
            continue
        way = next((w for w in _ways(case, own, array) if hash_array(stored_as(w[2], other.dtype)) == other.hash), None)
        if way is not None:
            found.append((own, way))
    if len(found) > 1:
        (_, (kind, detail, _)), *_ = found
        also = [own.name for own, _ in found[1:]]
        yield Edit(kind, {**detail, "also": also} if kind != "wrong_input" else detail, {o.id: w[2] for o, w in found})
    for own, (kind, detail, changed) in found:
        yield Edit(kind, detail, {own.id: changed})


def _ways(case: Case, own: Value, array: NDArray[Any]) -> Iterator[Way]:
    slot = own.name.rpartition(".")[2]
    for other in case.reference.graph.values:
        if other.kind == "weight" and other.shape == own.shape and other.id != own.id:
            content = case.executor.weight(other.name)
            yield "wrong_weight", {"slot": slot, "weight": own.name, "read": other.name}, content
    if slot == "bias":
        yield "missing_bias", {"slot": slot, "weight": own.name}, np.zeros_like(array)
    yield "wrong_constant", {"statement": f"{own.name} is all zeros", "weight": own.name}, np.zeros_like(array)
    for by in (1, -1):
        detail = {"what": "weight", "input": own.name, "by": by}
        yield "position", {**detail, "edge": "wrapped round"}, np.roll(array, by, axis=0)
        at = np.clip(np.arange(array.shape[0]) - by, 0, array.shape[0] - 1) if array.ndim else None
        if at is not None:
            yield "position", {**detail, "edge": "the last one kept"}, array[at]
    yield from _exchanged(case, own, array)
    if array.ndim == 2 and array.shape[0] == array.shape[1]:
        detail = {"slot": slot, "weight": own.name, "transposed": True}
        yield "wrong_weight", detail, np.ascontiguousarray(array.T)


def _exchanged(case: Case, own: Value, array: NDArray[Any]) -> Iterator[Way]:
    heads = heads_of(case)
    if not 1 < heads <= MOST_HEADS or array.ndim == 0:
        return
    for axis in range(min(array.ndim, 2)):
        if array.shape[axis] % heads:
            continue
        size = array.shape[axis] // heads
        for a, b in itertools.combinations(range(heads), 2):
            order = np.arange(array.shape[axis])
            order[a * size : (a + 1) * size] += (b - a) * size
            order[b * size : (b + 1) * size] -= (b - a) * size
            yield (
                "heads",
                {"how": f"exchanged ({a} and {b})", "weight": own.name},
                array.take(order, axis),
            )
