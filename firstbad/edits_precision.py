"""Edits of kind `precision` and `overflow`: the right arithmetic in too few bits, or beyond its range.

A rounding of the output, of an input or of a weight to a narrower type is reproduced bit for bit (near its steps the
candidate's choice counts). Leaves out arithmetic inside the op in a narrower type (edits_noise.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, SIMPLE, Edit

if TYPE_CHECKING:
    from numpy.typing import NDArray

Rounding = Callable[["NDArray[Any]"], "NDArray[Any]"]


def _mantissa(x: NDArray[Any], bits: int, *, truncate: bool = False) -> NDArray[Any]:
    """float32 with its last mantissa bits gone: rounded to nearest even, or cut off."""
    as_float = np.asarray(x, np.float32)
    raw = as_float.view(np.uint32).astype(np.uint64)
    drop = 23 - bits
    if not truncate:
        raw = raw + ((1 << (drop - 1)) - 1) + ((raw >> np.uint64(drop)) & np.uint64(1))
    raw = (raw >> np.uint64(drop)) << np.uint64(drop)
    made = (raw & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(as_float), made, as_float).astype(np.float32)


def bfloat16(x: NDArray[Any]) -> NDArray[Any]:
    return _mantissa(x, 7)


def bfloat16_cut(x: NDArray[Any]) -> NDArray[Any]:
    return _mantissa(x, 7, truncate=True)


def tf32(x: NDArray[Any]) -> NDArray[Any]:
    return _mantissa(x, 10)


def float16(x: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def float8(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.clip(_mantissa(x, 3), -448, 448))


def _int(bits: int, axis: int | None) -> Rounding:
    top = 2 ** (bits - 1) - 1

    def rounding(x: NDArray[Any]) -> NDArray[Any]:
        if x.size == 0:  # the empty past of a first step
            return x
        if not x.size:
            return x
        size = np.abs(x).max(axis, keepdims=True) if axis is not None and x.ndim else np.abs(x).max(initial=0.0)
        step = np.where(size > 0, size / top, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.round(x / step) * step, np.float32)

    return rounding


ROUNDINGS: dict[str, Rounding] = {
    "bfloat16": bfloat16,
    "float16": float16,
    "bfloat16, cut off": bfloat16_cut,
    "tf32": tf32,
    "float8 (e4m3)": float8,
}
QUANTISED: dict[str, Rounding] = {
    "int8 for the whole": _int(8, None),
    "int8 by row": _int(8, -1),
    "int8 by column": _int(8, 0),
    "int4 by row": _int(4, -1),
}


def stored(case: Case) -> Iterator[Edit]:
    """The output in a narrower type."""
    if not case.floats:
        return
    own = np.asarray(case.own(), np.float32).ravel()[case.sample]
    for name, rounding in ROUNDINGS.items():
        if np.array_equal(rounding(own), own, equal_nan=True):
            detail = {"what": "output", "dtype": name}
            yield Edit("precision", detail, after=(_kept(rounding),), rounds=True, computes=True, cost=SIMPLE)
    steps = {"int8 for the whole": QUANTISED["int8 for the whole"]}
    for name, rounding in steps.items():
        detail = {"what": "output", "dtype": name}
        if len(np.unique(own)) <= 256 < own.size:
            yield Edit("precision", detail, after=(_kept(rounding),), computes=True, cost=SIMPLE)


def read(case: Case) -> Iterator[Edit]:
    """An input or a weight, or all of them, rounded to a narrower type before use."""
    if not case.floats:
        return
    arrays: dict[int, NDArray[Any]] = {}
    for i in (*case.region.inputs, *case.region.weights):
        held = case.array(i)
        if held is not None and np.issubdtype(held.dtype, np.floating) and np.isfinite(held).all():
            arrays[i] = held
    for name, rounding in (*ROUNDINGS.items(), *QUANTISED.items()):
        rounded = {i: rounding(a) for i, a in arrays.items()}
        changed = {i: a for i, a in rounded.items() if not np.array_equal(a, arrays[i])}
        names = {i: case.reference.graph.values[i].name for i in changed}
        for i, a in changed.items():
            weight = case.reference.graph.values[i].kind == "weight"
            detail = {"what": "weight" if weight else "input", "input": names[i], "dtype": name}
            yield Edit("precision", detail, {i: a})
        big = {i: a for i, a in changed.items() if a.ndim > 1}
        if len(big) > 1:
            detail = {"what": "operands", "input": " and ".join(names[i] for i in big), "dtype": name}
            yield Edit("precision", detail, big)
        if len(big) < len(changed) > 1:
            yield Edit("precision", {"what": "inputs and weights", "dtype": name}, changed)


def saturated(case: Case) -> Iterator[Edit]:
    """A value, or an input, held within the range of a narrower type, or infinite beyond it."""
    if not case.floats:
        return
    held: list[tuple[str, int | None, NDArray[Any]]] = [("output", None, np.asarray(case.expected, np.float64))]
    for i in case.region.inputs:
        array = case.array(i)
        if array is not None and np.issubdtype(array.dtype, np.floating):
            held.append((case.reference.graph.values[i].name, i, array))
    for name, source, array in held:
        top = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
        for limit, dtype in ((65504.0, "float16"), (32767.0, "int16"), (448.0, "float8"), (127.0, "int8")):
            if top <= limit:
                continue
            for how, function in (("clipped", _clipped(limit)), ("infinite", _infinite(limit))):
                detail = {
                    "what": "output" if source is None else "input",
                    "input": name,
                    "dtype": dtype,
                    "limit": limit,
                }
                detail["how"] = how
                if source is None:
                    yield Edit("overflow", detail, after=(function,), computes=True)
                else:
                    yield Edit("overflow", detail, {source: function(array)})
    s = case.signature
    largest = float(np.nanmax(np.abs(s.own), initial=0.0))
    at_top = np.abs(s.own) == largest
    if at_top.sum() > 4 and math.isfinite(largest) and float(np.abs(case.expected).max()) > largest:
        detail = {"what": "output", "how": "clipped", "limit": largest, "input": "output", "dtype": ""}
        yield Edit("overflow", detail, after=(_clipped(largest),), computes=True, cost=FITTED)


def _kept(rounding: Rounding) -> Rounding:
    """In the dtype of what it is given; float64 goes through float32, as a kernel's does."""

    def after(y: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(rounding(np.asarray(y, np.float32)), y.dtype).reshape(y.shape)

    return after


def _clipped(limit: float) -> Rounding:
    return lambda y: np.clip(y, -limit, limit)


def _infinite(limit: float) -> Rounding:
    return lambda y: np.where(np.abs(y) > limit, np.copysign(np.inf, y), y).astype(y.dtype)
