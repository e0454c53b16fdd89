"""Edits in which an element is a fixed sum of itself and its neighbours: rows that leak into the next, columns turned.

The few numbers of the sum are read off the whole value, which holds many times as many elements; rounded to the
shortest number within their uncertainty where they are one or two. Kind `extra_op`. Leaves out sums with elements
further away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import LOOSE, After, Edit
from firstbad.edits_constant import nice
from firstbad.edits_variant import Chain, Id
from firstbad.judge import MASKED

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEFT = 1e-4
"""Share of the difference that may stay: only a gate before the replay."""

BLOCKS = (2, 4, 8, 16, 32, 64)
MANY = 8
"""Elements for each number of a matrix that is read off them."""


def along(case: Case) -> Iterator[Edit]:
    """Each row (column) is mixed with the one before it: with what that was, or with what it had become."""
    s = case.signature
    if not case.floats or s.total == 0 or not np.isfinite(s.own).all() or (np.asarray(s.expected) <= MASKED).any():
        return
    for axis, name in ((1, "row"), (2, "column")):
        if s.shape[axis] < 3:
            continue
        own, y = (np.moveaxis(np.asarray(x, np.float64), axis, 0) for x in (s.own, s.expected))
        off = float(np.sum((own - y)[1:] ** 2))
        for before, words in ((y, f"the {name} before it"), (own, f"the {name} before it as that had become")):
            for k in (1, -1):
                here, there, mine = (y[1:], before[:-1], own[1:]) if k > 0 else (y[:-1], before[1:], own[:-1])
                numbers = _two(here, there, mine)
                a, b = numbers
                if b == 0 or float(np.sum((mine - a * here - b * there) ** 2)) > LEFT * off:
                    continue
                text = words if k > 0 else words.replace("before", "after")
                detail = {"op": f"share of {text}", "number": b, "keeps": a, "where": "after"}
                after = _recursive if before is own else _shifted
                yield Edit("extra_op", detail, after=(after(a, b, k, axis, s.shape),), computes=True, cost=LOOSE)


def _two(here: NDArray[Any], there: NDArray[Any], mine: NDArray[Any]) -> tuple[float, float]:
    """a, b of mine = a here + b there by least squares, in few digits."""
    pair = np.stack([here.ravel(), there.ravel()], 1)
    power = pair.T @ pair
    if not np.linalg.det(power) > 1e-12 * power[0, 0] * power[1, 1]:
        return 1.0, 0.0
    found = np.linalg.solve(power, pair.T @ mine.ravel())
    slack = 1e-6 * max(1.0, float(np.abs(found).max()))
    return nice(float(found[0]), slack), nice(float(found[1]), slack)


def _shifted(a: float, b: float, k: int, axis: int, folded: tuple[int, int, int]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        rows = np.moveaxis(np.array(y).reshape(folded), axis, 0)
        made = rows.copy()
        inner, other = (slice(1, None), slice(None, -1)) if k > 0 else (slice(None, -1), slice(1, None))
        made[inner] = a * rows[inner] + b * rows[other]
        return np.asarray(np.moveaxis(made, 0, axis).reshape(y.shape), y.dtype)

    return after


def _recursive(a: float, b: float, k: int, axis: int, folded: tuple[int, int, int]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.moveaxis(np.array(y).reshape(folded), axis, 0).copy()
        order = range(1, len(made)) if k > 0 else range(len(made) - 2, -1, -1)
        for t in order:
            made[t] = a * made[t] + b * made[t - k]
        return np.asarray(np.moveaxis(made, 0, axis).reshape(y.shape), y.dtype)

    return after


def turned(case: Case) -> Iterator[Edit]:
    """Every block of columns times one small matrix (a rotation that nothing undoes)."""
    s = case.signature
    C = s.shape[2]
    if not case.floats or s.total == 0 or not np.isfinite(s.own).all() or (np.asarray(s.expected) <= MASKED).any():
        return
    own, y = (np.asarray(x, np.float64).reshape(-1, C) for x in (s.own, s.expected))
    for size in (n for n in BLOCKS if C % n == 0 and y.size >= MANY * n * n):
        for apart in (False, True) if size < C else (False,):
            words = f"each {size} columns" + f" {C // size} apart" * apart
            a, b = _blocks(y, size, apart=apart), _blocks(own, size, apart=apart)
            matrix: NDArray[np.float64] = np.linalg.lstsq(a, b, rcond=None)[0]
            if float(np.sum((b - a @ matrix) ** 2)) > LEFT * s.total or np.allclose(matrix, np.eye(size), atol=1e-6):
                continue
            detail = {"op": f"a matrix on {words}", "where": "after", "matrix": matrix.round(6).tolist()[:8]}
            yield _put_in(case, detail, matrix, size, apart=apart)
            return


def _blocks(x: NDArray[Any], size: int, *, apart: bool) -> NDArray[Any]:
    """[rows x blocks, size]"""
    parts = x.reshape(len(x), size, -1).swapaxes(1, 2) if apart else x.reshape(len(x), -1, size)
    return np.ascontiguousarray(parts).reshape(-1, size)


def _put_in(case: Case, detail: dict[str, Any], matrix: NDArray[Any], size: int, *, apart: bool) -> Edit:
    last, given, middle = case.ops[-1], next(case.fresh), next(case.fresh)
    *lead, C = case.region.value.shape
    chain = Chain(case, last, [replace(last, writes=(middle, *last.writes[1:]))])
    y = chain("reshape.default", Id(middle), [*lead, size, C // size] if apart else [*lead, C // size, size])
    if apart:
        y = chain("transpose.int", Id(y), -1, -2)
    y = chain("matmul.default", Id(y), Id(given))
    if apart:
        y = chain("transpose.int", Id(y), -1, -2)
    chain("reshape.default", Id(y), [*lead, C], last=True)
    return Edit("extra_op", detail, {given: matrix}, {last.id: tuple(chain.made)}, cost=LOOSE)
