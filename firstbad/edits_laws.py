"""Edits that are laws read off the wrong values: straight lines, a term or factor that depends on the place alone.

A law is read off some elements and proved on others: what a term or factor is in one place follows from all the other
elements of the same kind (its column, its row, its distance), never from the element itself. Kinds `wrong_variant`,
`extra_op`. Leaves out parts that hold something else altogether (edits_partial.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, LOOSE, Edit
from firstbad.edits_constant import nice
from firstbad.edits_dropped import times
from firstbad.edits_pointwise import FEW, POINTWISE
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import Op
from firstbad.judge import MASKED

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRIDS = [2.0**-k for k in range(-2, 9)] + [0.1, 0.2, 0.05, 0.02, 0.01]
"""Distances between the points of a table that is read in straight lines."""

FEWEST = 4
"""Elements of one kind from which a term or a factor of theirs is read."""

SEEN = 1e-6
"""What a row must add up to beside 1, to be told."""

LEFT = 0.02
"""Share of the difference that a law may leave on the samples: only a gate before the replay."""


def lines(case: Case) -> Iterator[Edit]:
    """A function of one number read from a table, in straight lines between its points."""
    op = case.ops[-1]
    if word_of(op) not in POINTWISE or len(case.ops) != 1 or not case.floats:
        return
    x = case.preview_value(op.reads[0].value)
    if x is None or x.size != case.own().size:
        return
    at = case.sample[:: max(1, len(case.sample) // FEW)]
    few = np.asarray(x, np.float64).reshape(-1)[at]
    own = np.asarray(case.own(), np.float64).reshape(-1)[at]

    def f(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(case.executor.run(op, {op.reads[0].value: v}, "float64")[0], np.float64)

    before = float(np.sum((own - f(few)) ** 2))
    for step in GRIDS:
        low = np.floor(few / step) * step
        part = (few - low) / step
        if float(np.sum((own - f(low) * (1 - part) - f(low + step) * part) ** 2)) < LEFT * before:
            detail = {"variant": f"straight lines between points {step:g} apart", "model": word_of(op), "number": step}
            yield Edit("wrong_variant", detail, ops={op.id: _lines(case, op, step)}, cost=FITTED)


def _lines(case: Case, op: Op, step: float) -> tuple[Op, ...]:
    x, *rest = op.attrs["args"]
    chain = Chain(case, op, [])
    kind, more = op.kind.removeprefix("aten."), op.attrs.get("kwargs", {})
    low = chain("mul.Tensor", Id(chain("floor.default", Id(chain("mul.Tensor", x, 1 / step)))), step)
    part = chain("mul.Tensor", Id(chain("sub.Tensor", x, Id(low))), 1 / step)
    ends = [chain(kind, Id(v), *rest, **more) for v in (low, chain("add.Tensor", Id(low), step))]
    rise = chain("mul.Tensor", Id(chain("sub.Tensor", Id(ends[1]), Id(ends[0]))), Id(part))
    chain("add.Tensor", Id(ends[0]), Id(rise), last=True)
    return tuple(chain.made)


def by_place(case: Case) -> Iterator[Edit]:
    """A term, or a factor, that is the same in all elements of a column, a row or a distance between both."""
    s = case.signature
    if not case.floats or s.total == 0 or not np.isfinite(s.own).all():
        return
    y = np.where(np.isfinite(s.expected) & (s.expected > MASKED), s.expected, 0.0).astype(np.float64)
    G, R, C = s.shape
    g, i, j = np.ogrid[:G, :R, :C]
    distance = i + C - R - j  # the last row is that of the last column, as in a step of decoding
    yield from _slopes(case, np.broadcast_to(np.abs(distance), s.shape))
    apart = distance - distance.min()
    span = int(apart.max()) + 1
    for words, cells in (
        ("column", j + 0 * g * i),
        ("row of each head" if G > 1 else "row", g * R + i + 0 * j),
        ("distance", apart + 0 * g),
        ("column of each head", g * C + j + 0 * i),
        ("distance of each head", g * span + apart),
    ):
        if words.endswith("each head") and G == 1:
            continue
        flat = cells.ravel()
        for what, table in (("term", _terms(s.difference, flat)), ("factor", _factors(s.difference, y, flat))):
            if table is not None and what == "factor" and words.startswith("row") and _shares(case):
                yield _other_sum(table)
            elif table is not None:
                yield _put_in(case, what, f"{what} of its own for each {words}", table)


def _shares(case: Case) -> bool:
    return word_of(case.ops[-1]) in ("softmax", "_softmax")


def _other_sum(table: NDArray[np.float64]) -> Edit:
    """A factor for each row of a softmax is another sum that its terms were divided by."""
    rows = table[..., 0][np.abs(table[..., 0] - 1) > SEEN]
    said = f"{rows.min():.4g}" + (f" to {rows.max():.4g}" if rows.max() > rows.min() else "")
    detail = {"variant": f"another sum to divide by: {rows.size} rows add up to {said}", "model": ""}
    return Edit("wrong_variant", detail, after=(times(table),), computes=True, cost=LOOSE)


def _slopes(case: Case, distance: NDArray[np.int64]) -> Iterator[Edit]:
    """A term that grows with the distance, by one number or by one for each head."""
    d, size = case.signature.difference, np.asarray(distance, np.float64)
    power = (size**2).sum((1, 2))
    if not power.all():
        return
    slopes = (d * size).sum((1, 2)) / power
    one = float((slopes * power).sum() / power.sum())
    for found in (np.full(len(slopes), one), slopes) if len(slopes) > 1 else (np.array([one]),):
        left = d - found[:, None, None] * size
        if float((left**2).sum()) < LEFT * case.signature.total:
            slack = 4 * np.sqrt((left**2).sum((1, 2)) / d[0].size / power)
            numbers = np.array([nice(float(n), float(o)) for n, o in zip(found, slack, strict=True)])
            detail: dict[str, Any] = {"op": "slope by distance", "number": float(numbers[0])}
            if len(set(numbers.tolist())) > 1:
                detail = {"op": "slope by distance for each head", "where": "after", "numbers": numbers.tolist()}
            yield _put_in(case, "term", "", numbers[:, None, None] * size, detail)
            return


def _terms(d: NDArray[np.float64], cells: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """What the others of its cell are off by, for each element; None: that is not what is wrong."""
    flat = d.ravel()
    count = np.bincount(cells)[cells]
    others = (np.bincount(cells, flat)[cells] - flat) / np.maximum(count - 1, 1)
    return _if_it_holds(d, others, count, others)


def _factors(d: NDArray[np.float64], y: NDArray[np.float64], cells: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """The factor of the others of its cell, for each element, by least squares."""
    flat, size = d.ravel(), y.ravel()
    power = np.bincount(cells, size * size)[cells] - size * size
    with np.errstate(all="ignore"):
        gain = np.where(power > 0, (np.bincount(cells, flat * size)[cells] - flat * size) / power, 0.0)
    return _if_it_holds(d, gain * size, np.bincount(cells)[cells], 1 + gain)


def _if_it_holds(
    d: NDArray[np.float64], said: NDArray[np.float64], count: NDArray[np.int64], table: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    flat = d.ravel()
    if (flat[count < FEWEST] != 0).any() or float(((flat - said) ** 2).sum()) > LEFT * float(flat @ flat):
        return None
    return table.reshape(d.shape)


def _put_in(
    case: Case, what: str, words: str, table: NDArray[np.float64], detail: dict[str, Any] | None = None
) -> Edit:
    """The table added to, or multiplied with, what the last op gives."""
    said, cost = detail or {"op": f"a {words}", "where": "after"}, LOOSE if detail is None else FITTED
    if what == "factor":
        return Edit("extra_op", said, after=(times(table),), computes=True, cost=cost)
    last, given, middle = case.ops[-1], next(case.fresh), next(case.fresh)
    chain = Chain(case, last, [replace(last, writes=(middle, *last.writes[1:]))])
    chain("add.Tensor", Id(middle), Id(given), last=True)
    shaped = table.reshape(case.region.value.shape)
    return Edit("extra_op", said, {given: shaped}, {last.id: tuple(chain.made)}, cost=cost)
