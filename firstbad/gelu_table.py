"""GELU as ggml computes it on a processor: the tanh form, looked up by the float16 nearest to its argument.

Below -10 it is 0, from 10 on the argument itself; in between the table's float16 entry. The entries were computed in
float32, with a*b + c rounded once or twice as the engine's compiler chose: both tables are here, and `nearest` takes
the one that an engine's values are of. Leaves out how a table becomes an edit (edits_table.py) or a declared
approximation (profile.py).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

LIMIT = 10.0


@cache
def table(contracted: bool) -> NDArray[np.float16]:
    """float16 bits → gelu, as float16; `contracted`: with fused multiply-add."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    inside = np.abs(x) <= LIMIT  # 9.9966 is looked up as 10
    x = np.where(inside, x, np.float32(0))
    factor, cubic = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
    square = (cubic * x).astype(np.float32)
    if contracted:
        inner = (square.astype(np.float64) * x.astype(np.float64) + 1).astype(np.float32)
    else:
        inner = np.float32(1) + square * x
    tanh = _tanhf()
    hyperbolic = np.array([tanh(float(z)) for z in factor * x * inner], np.float32)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + hyperbolic), np.float16)


def _tanhf() -> Callable[[float], float]:
    """The C library's, whose last bit NumPy's need not have."""
    try:
        function = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6").tanhf
    except (OSError, AttributeError):
        return math.tanh
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    found: Callable[[float], float] = function
    return found


def gelu(x: NDArray[Any], contracted: bool) -> NDArray[np.float32]:
    """The engine's value for each x."""
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore"):
        looked_up = table(contracted)[x.astype(np.float16).view(np.uint16)].astype(np.float32)
    return np.where(x >= LIMIT, x, np.where(x <= -LIMIT, np.float32(0), looked_up))


def nearest(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Whether the values y of an engine are of the contracted table rather than of the other."""
    off = [int(np.count_nonzero(gelu(x, contracted) != np.asarray(y, np.float32))) for contracted in (True, False)]
    return off[0] <= off[1]
