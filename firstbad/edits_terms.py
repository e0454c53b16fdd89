"""Edits of sums of products: some of their terms are left out, or count more or less than they should.

The terms of a few hundred wrong elements say which: the last ones (a tail that no tile covers), the first, or an
aligned block (a block of a quantised weight with another scale, a block that is zero). Kind `partial_write` where terms
are left out, `wrong_weight` or `wrong_constant` where they have a factor. Leaves out terms scattered over the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, Edit
from firstbad.edits_constant import nice
from firstbad.edits_variant import word_of
from firstbad.graph import Op
from firstbad.signature import runs
from firstbad.statement import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLES = 512
LEFT = 0.02
"""Share of the difference on the samples that may stay unexplained: only a gate before the replay."""


GONE = 0.01
"""How near to nothing the factor of terms must be that count as left out."""


@dataclass(frozen=True)
class _Found:
    """Terms `first` to `last` count `factor` times; `left`: share of the difference that stays."""

    first: int
    last: int
    factor: float
    left: float


def terms(case: Case) -> Iterator[Edit]:
    """Terms of the sum left out or scaled, in all of the value or in its wrong columns or rows only."""
    op = case.ops[-1]
    if word_of(op) not in ("linear", "matmul", "mm", "bmm") or len(case.ops) != 1 or case.signature.total == 0:
        return
    products, difference = _products(case, op)
    if products is None:
        return
    for found in _hypotheses(products, difference):
        yield from _edit(case, op, found, products.shape[1])


def _products(case: Case, op: Op) -> tuple[NDArray[Any] | None, NDArray[Any]]:
    """The terms [samples, inner] of some of the wrong elements, and the differences there."""
    a, b = (case.preview_value(arg["v"]) for arg in op.attrs["args"][:2])
    nothing = np.zeros(0)
    if a is None or b is None or a.ndim < 2 or b.ndim < 2 or a.shape[-1] < 2:
        return None, nothing
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    rows = b if word_of(op) == "linear" else np.swapaxes(b, -1, -2)  # [.., N, K]
    shape, inner = case.own().shape, a.shape[-1]
    off = np.abs(case.signature.difference).ravel()
    wrong = np.flatnonzero(case.signature.wrong.ravel())
    if wrong.size > SAMPLES:
        worst = wrong[np.argpartition(off[wrong], wrong.size - SAMPLES // 2)[-SAMPLES // 2 :]]
        spread = np.random.default_rng(0).choice(wrong, SAMPLES // 2, replace=False)
        wrong = np.unique(np.concatenate([worst, spread]))
    at = wrong
    *lead, row, column = np.unravel_index(at, shape)
    left = np.broadcast_to(a, (*shape[:-1], inner))[(*lead, row)]
    right = np.broadcast_to(rows, (*shape[:-2], shape[-1], inner))[(*lead, column)]
    return left * right, case.signature.difference.ravel()[at]


def _hypotheses(products: NDArray[Any], difference: NDArray[Any]) -> list[_Found]:
    """The stretches of terms whose sum is the difference up to a factor, the best first."""
    inner = products.shape[1]
    before = np.concatenate([np.zeros((len(products), 1)), np.cumsum(products, 1)], 1)
    stretches = [(k, inner - 1) for k in range(1, inner)] + [(0, k) for k in range(inner - 1)]
    size = 1
    while size < inner:
        stretches += [(k, min(k + size, inner) - 1) for k in range(0, inner, size)]
        size *= 2
    firsts, lasts = (np.array(n) for n in zip(*dict.fromkeys(stretches), strict=True))
    sums = before[:, lasts + 1] - before[:, firsts]
    total = float(difference @ difference)
    power = (sums**2).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(power > 0, difference @ sums / power, 0.0)
    left = ((difference[:, None] - slope * sums) ** 2).sum(0) / max(total, 1e-300)
    # Terms may be left out from an end on; a factor is of a block, or it is a gain of the whole and told as that.
    ends = (firsts == 0) | (lasts == inner - 1)
    left = np.where(ends & (2 * (lasts - firsts + 1) > inner) & (np.abs(slope + 1) > GONE), np.inf, left)
    best = np.argsort(left)[:3]
    return [_Found(int(firsts[i]), int(lasts[i]), 1 + float(slope[i]), float(left[i])) for i in best if left[i] < LEFT]


def _edit(case: Case, op: Op, found: _Found, inner: int) -> Iterator[Edit]:
    s = case.signature
    factor = nice(found.factor, 1e-3 if abs(found.factor) < 0.01 else 1e-5)
    masks = {"groups": s.groups, "rows": s.rows, "columns": s.columns}
    words = {n: spans(runs(m)) for n, m in masks.items() if not m.all() and m.size > 1}
    detail: dict[str, Any] = {"terms": spans([(found.first, found.last)]), "terms_of": inner, **words}
    a_id, b_id = (arg["v"] for arg in op.attrs["args"][:2])
    stretch = np.arange(found.first, found.last + 1)
    linear = word_of(op) == "linear"
    if "rows" in words or "groups" in words:
        held = np.array(case.preview_value(a_id))
        if held.size != s.shape[0] * s.shape[1] * inner:
            return
        part = np.ix_(np.flatnonzero(s.groups), np.flatnonzero(s.rows), stretch)
        held.reshape(*s.shape[:2], inner)[part] *= held.dtype.type(factor)
        replaced = {a_id: held}
    else:
        held = np.array(case.preview_value(b_id))
        columns = np.flatnonzero(s.columns)
        part = np.ix_(columns, stretch) if linear else np.ix_(*map(np.arange, held.shape[:-2]), stretch, columns)
        held[part] *= held.dtype.type(factor)
        replaced = {b_id: held}
    name = case.reference.graph.values[b_id].name if linear else ""
    if factor == 0 and not (linear and "columns" in words):
        detail["holds"] = "a sum without its last terms" if found.first else "a sum without its first terms"
        yield Edit("partial_write", detail, replaced, cost=FITTED)
    elif linear:
        yield Edit("wrong_weight", {"weight": name, "number": factor, **detail}, replaced, cost=FITTED)
    else:
        yield Edit(
            "wrong_constant", {"what": "factor of terms", "number": factor, "model": 1, **detail}, replaced, cost=FITTED
        )
