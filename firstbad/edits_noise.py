"""Edits of kind `precision` where arithmetic inside the op, not what it reads or gives, is of a narrower type.

Sums of products kept in few bits are worked out term after term; the statistics of a norm and the sum of a softmax are
rounded once. Where nobody knows the order of a sum, the size of its noise decides, and the detail says so; it counts
only where the numbers themselves lie on the grid of the narrower type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import LAST, LOOSE, Edit
from firstbad.edits_precision import Rounding, bfloat16, float16
from firstbad.edits_variant import word_of
from firstbad.graph import Op
from firstbad.judge import MASKED

if TYPE_CHECKING:
    from numpy.typing import NDArray

NARROW: dict[str, Rounding] = {"bfloat16": bfloat16, "float16": float16}

MOST = 400_000_000
"""Products that a sum is worked out with term after term."""

PROBE = 24
"""Rows and columns on which the ways to sum are told apart."""


def statistics(case: Case) -> Iterator[Edit]:
    """The mean and variance of a norm, the terms or the sum of a softmax, rounded to a narrower type."""
    for op in case.ops:
        made = (
            _norm(case, op) if word_of(op) == "layer_norm" else _softmax(case, op) if "softmax" in word_of(op) else {}
        )
        if op is case.ops[-1]:
            for (what, dtype), output in made.items():
                detail = {"what": what, "op": word_of(op), "dtype": dtype}
                yield Edit("precision", detail, output=output, computes=True)


def sums(case: Case) -> Iterator[Edit]:
    """A sum of products that is rounded after every term."""
    op = case.ops[-1]
    if word_of(op) not in ("linear", "matmul", "mm", "bmm") or len(case.ops) != 1 or not case.floats:
        return
    operands = _operands(case, op)
    if operands is None:
        return
    a, b, offset = operands
    own = np.asarray(case.own(), np.float32)
    rows = np.linspace(0, a.shape[-2] - 1, min(PROBE, a.shape[-2])).astype(int)
    columns = np.linspace(0, b.shape[-1] - 1, min(PROBE, b.shape[-1])).astype(int)
    part = np.ix_(*(np.arange(n) for n in own.shape[:-2]), rows, columns)
    d = own[part].astype(np.float64) - np.asarray(case.expected).reshape(own.shape)[part]
    size = float((d**2).sum())
    for dtype, rounding in NARROW.items():
        for way in ("product and sum", "sum"):
            few = _summed(
                a[..., rows, :], b[..., columns], offset if offset is None else offset[columns], rounding, way
            )
            left = float(((own[part] - few.astype(np.float64)) ** 2).sum())
            if left < 0.2 * size and own.size * a.shape[-1] <= MOST:
                detail = {"what": "sum", "op": word_of(op), "dtype": dtype, "rounds": way, "order": "term after term"}
                whole = _summed(a, b, offset, rounding, way)
                yield Edit("precision", detail, output=whole, computes=True)
                yield Edit("precision", detail | {"by": "its size"}, output=whole, dtype=dtype, cost=LOOSE)
    for dtype, rounding in NARROW.items():
        if own.size * a.shape[-1] <= MOST and _on_grid(own - (0 if offset is None else offset), own, rounding):
            detail = {"what": "sum", "op": word_of(op), "dtype": dtype, "by": "the size of its noise"}
            yield Edit("precision", detail, output=_summed(a, b, offset, rounding, "sum"), dtype=dtype, cost=LAST)


def noise(case: Case) -> Iterator[Edit]:
    """The whole op in a narrower type: told by the size of its noise."""
    if not case.floats or case.replayed.exact or case.replayed.scale is None:
        return
    if word_of(case.ops[-1]) in ("add", "mul", "sub", "div"):
        return
    own = np.asarray(case.own(), np.float32)
    for dtype, rounding in NARROW.items():
        if not _on_grid(own, own, rounding):
            continue
        detail = {"what": "arithmetic", "op": word_of(case.ops[-1]), "dtype": dtype, "by": "the size of its noise"}
        yield Edit("precision", detail, dtype=dtype, cost=LAST)


def _operands(case: Case, op: Op) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None] | None:
    """[.., R, K], [.., K, C] and the bias."""
    args = op.attrs["args"]
    a, b = (case.preview_value(args[n]["v"]) for n in (0, 1))
    if a is None or b is None or a.ndim < 2 or b.ndim < 2:
        return None
    offset = None
    if word_of(op) == "linear":
        b = b.T
        if len(args) > 2 and isinstance(args[2], dict):
            offset = case.preview_value(args[2]["v"])
    return np.asarray(a, np.float32), np.asarray(b, np.float32), offset


def _summed(
    a: NDArray[Any], b: NDArray[Any], offset: NDArray[Any] | None, rounding: Rounding, way: str
) -> NDArray[np.float32]:
    """a @ b with the sum rounded after each term, the bias added at the end in float32."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*lead, a.shape[-2], b.shape[-1]), np.float32)
    for k in range(a.shape[-1]):
        term = a[..., :, k, None] * b[..., k, None, :]
        total = rounding(total + (rounding(term) if way != "sum" else term))
    return total if offset is None else np.asarray(total + offset, np.float32)


def _on_grid(x: NDArray[Any], size: NDArray[Any], rounding: Rounding) -> bool:
    """Whether the numbers are those of a narrower type, but for a last addition in float32."""
    with np.errstate(all="ignore"):
        off = np.abs(x - rounding(x)) > 2.0**-23 * np.maximum(np.abs(size), np.abs(x))
    return bool(np.isfinite(x).all() and off.mean() < 0.01)


def _norm(case: Case, op: Op) -> dict[tuple[str, str], NDArray[Any]]:
    args = op.attrs["args"]
    held = case.preview_value(args[0]["v"])
    if held is None:
        return {}
    x = np.asarray(held, np.float64)
    axes = tuple(range(-len(args[1]), 0))
    gain, offset = (
        np.asarray(case.array(a["v"]), np.float64) if isinstance(a, dict) else default
        for a, default in ((args[2], 1.0), (args[3], 0.0))
    )
    made: dict[tuple[str, str], NDArray[Any]] = {}

    def norm(mean: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(all="ignore"):
            return np.asarray((x - mean) / np.sqrt(second + float(args[4])) * gain + offset)

    mean, second = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    for dtype, rounding in NARROW.items():
        m, v = rounding(mean).astype(np.float64), rounding(second).astype(np.float64)
        made["mean and variance", dtype] = norm(m, v)
        made["variance", dtype] = norm(mean, v)
        made["mean", dtype] = norm(m, second)
    return made


def _softmax(case: Case, op: Op) -> dict[tuple[str, str], NDArray[Any]]:
    held = case.preview_value(op.attrs["args"][0]["v"])
    if held is None:
        return {}
    x, axis = np.asarray(held, np.float64), int(op.attrs["args"][1])
    x = np.where(x <= MASKED, -np.inf, x)
    made: dict[tuple[str, str], NDArray[Any]] = {}
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True))
        total = e.sum(axis, keepdims=True)
        for dtype, rounding in NARROW.items():
            r = rounding(e).astype(np.float64)
            made["terms", dtype] = r / r.sum(axis, keepdims=True)
            made["sum", dtype] = e / rounding(total)
            made["terms over the exact sum", dtype] = r / total
    return made
