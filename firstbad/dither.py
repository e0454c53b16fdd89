"""The last bit of every weight drawn anew: what an engine makes of it is what noise may do to its values.

A rounding of another order and a rounding of a weight are of one size, and both go through the same model: a value that
loses digits (a difference of large numbers, a norm of a small row) loses them for either. Leaves out buffers, as tables
of rotary frequencies: their error grows with the position, and no rounding of a run does that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.run import Prepared

if TYPE_CHECKING:
    from numpy.typing import NDArray

DROPPED = {"bfloat16": 16, "float16": 13, "float32": 0}
"""Bits of a float32 that a number of this dtype does not have."""

SHARE = {"bfloat16": 1 / 256, "float16": 1 / 256}
"""Of a narrow dtype so many of the weights are moved: its sums are kept in float32, and another order of them changes
the rounding of few elements. All of them would hide an error of a tenth in bfloat16."""

TINY = 2.0**-100
"""Smaller numbers have no neighbours worth the name."""


def dithered(prepared: Prepared, dtype: str, seed: int = 1) -> Prepared:
    """The same model with its parameters moved to a neighbour in `dtype`, up or down by chance."""
    model = copy.deepcopy(prepared.model_object)
    random = np.random.Generator(np.random.PCG64(seed))
    for _, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        if array.dtype == np.float32:
            array[...] = moved(array, dtype, random)
    named = [*model.named_parameters(), *model.named_buffers()]
    weights: Mapping[str, Any] = {name: tensor.detach().numpy() for name, tensor in named}
    return replace(prepared, model_object=model, weights=weights)


def moved(array: NDArray[np.float32], dtype: str, random: np.random.Generator) -> NDArray[np.float32]:
    """Each number's neighbour in `dtype` (of a narrow one a SHARE of them), the larger or the smaller one."""
    step = 1 << DROPPED[dtype]
    bits = np.ascontiguousarray(array, np.float32).view(np.int32)
    kept = (bits + (step >> 1)) & -step  # on the grid of `dtype`
    other = kept + np.where(random.random(array.shape) < 0.5, -step, step).astype(np.int32)
    still = (np.abs(array) < TINY) | (random.random(array.shape) >= SHARE.get(dtype, 1.0))
    return np.where(still, array, other.view(np.float32))
