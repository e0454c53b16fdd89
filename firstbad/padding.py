"""Rows of padding: what is computed at them is nobody's, and engines fill them as they please.

A fully masked row is the mean of all values in one implementation of attention and zero in another. Nothing reads it
as long as the mask is applied; where it is not, the rows that count are wrong, and those are judged. Which rows are
padding says the step's own `attention_mask`. Leaves out masks that an engine makes for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.graph import Graph, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

MASK, TOKENS = "attention_mask", "input_ids"


@dataclass(frozen=True)
class Padding:
    """The padding of each step, looked up when the first of its values asks."""

    graph: Graph
    given: Callable[[Value], NDArray[Any] | None]
    steps: dict[str, NDArray[np.bool_] | None] = field(default_factory=dict)

    def of(self, value: Value) -> NDArray[np.bool_] | None:
        """The elements of a value that lie at padding, broadcastable to it; None: there are none."""
        if "float" not in value.dtype:
            return None  # a mask is judged at the padding above all
        if value.step not in self.steps:
            self.steps[value.step] = self._padded(value.step)
        padded = self.steps[value.step]
        return None if padded is None else _spread(padded, value.shape)

    def _padded(self, step: str) -> NDArray[np.bool_] | None:
        """[B, T] of the tokens fed in this step."""
        mask, tokens = self.graph.by_key.get((step, MASK)), self.graph.by_key.get((step, TOKENS))
        if mask is None or tokens is None or mask.kind != "input" or len(mask.shape) != 2 or len(tokens.shape) != 2:
            return None
        array = self.given(mask)
        if array is None or array.shape[0] != tokens.shape[0] or array.shape[1] < tokens.shape[1]:
            return None
        padded = np.asarray(array)[:, array.shape[1] - tokens.shape[1] :] == 0
        return padded if padded.any() else None


def _spread(padded: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """Along the axis of tokens: [B, T, ...], [B, H, T, ...] or both in one, [B T, ...]."""
    B, T = padded.shape
    rank = len(shape)
    if rank >= 2 and shape[0] == B * T and B > 1:
        return padded.reshape(B * T, *(1,) * (rank - 1))
    if rank >= 2 and shape[0] == B:
        axis = rank - 2 if rank > 3 and shape[rank - 2] == T else 1
        if shape[axis] == T and math.prod(shape) > 0:
            return padded.reshape(B, *(1,) * (axis - 1), T, *(1,) * (rank - axis - 1))
    return None


def without(array: NDArray[Any], ignored: NDArray[np.bool_] | None, instead: NDArray[Any]) -> NDArray[Any]:
    """The array with what is not to be judged replaced by what it is compared with."""
    return array if ignored is None else np.where(ignored, instead, array)
