"""Edits of kind `shape`: a value on the way has another length in the candidate, and a part of it was used.

Only values that the candidate has under the model's name and that could not be compared for their size. Leaves out what
differs in more than one axis; values that are missing altogether are told by the op that was left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, Edit

if TYPE_CHECKING:
    from numpy.typing import NDArray


def shapes(case: Case) -> Iterator[Edit]:
    """The first or the last elements of a longer value; a shorter one with zeros behind or before it."""
    graph = case.reference.graph
    for i in (*case.region.inputs, *(w for op in case.region.ops for w in op.writes)):
        value = graph.values[i]
        pair = case.alignment.by_reference.get(i)
        other = pair.candidate if pair is not None else case.candidate.graph.by_key.get((value.step, value.name))
        if i == case.region.value.id or other is None or value.kind != "value" or not case.candidate.stored(other):
            continue
        for how, content in _parts(case.candidate.array(other), value.shape):
            detail = {"value": value.name, "shape": list(other.shape), "model": list(value.shape), "how": how}
            yield Edit("shape", detail, {i: content}, cost=FITTED)


def _parts(array: NDArray[Any], shape: tuple[int, ...]) -> Iterator[tuple[str, NDArray[Any]]]:
    if array.ndim != len(shape):
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape) if array.ndim < len(shape) else array
    odd = [a for a, (n, m) in enumerate(zip(array.shape, shape, strict=False)) if n != m]
    if array.ndim != len(shape) or len(odd) != 1:
        return
    axis = odd[0]
    n, wanted = array.shape[axis], shape[axis]
    if n > wanted:
        yield f"its first {wanted} of {n}", array.take(range(wanted), axis)
        yield f"its last {wanted} of {n}", array.take(range(n - wanted, n), axis)
        return
    more = [(0, wanted - n) if a == axis else (0, 0) for a in range(len(shape))]
    yield f"{wanted - n} zeros behind it", np.pad(array, more)
    yield f"{wanted - n} zeros before it", np.pad(array, [pair[::-1] for pair in more])
