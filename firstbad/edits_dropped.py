"""Edits in which scattered elements are zero: the small ones, all but the best of a row, or those that chance chose.

Which elements are zero is seen in the candidate's value; that is a cause only where a rule says the same: a threshold,
a number of places in each row, or a share of all elements that the others make up for (dropout, as in training). Kind
`wrong_variant`. Leaves out parts that are zero as a block (edits_partial.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, LOOSE, After, Edit
from firstbad.edits_constant import nice
from firstbad.edits_variant import word_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEVIATIONS = 4
"""Within so many of its deviations a share of dropped elements is what the factor of the others says."""


def dropped(case: Case) -> Iterator[Edit]:
    """What is small is zero; the rest is as it was or makes up for it."""
    if not case.floats or case.signature.share_wrong == 0:
        return
    own = np.asarray(case.signature.own, np.float64)
    y = np.asarray(case.expected, np.float64).reshape(own.shape)
    if not np.isfinite(y).all() or not np.isfinite(own).all():
        return
    gone, kept = (own == 0) & (y != 0), own != 0
    if np.count_nonzero(gone) < 2 or not kept.any():
        return
    for words, keep, number in (*_thresholds(y, gone, kept), *_best(y, kept)):
        yield from _kept(case, y, f"zero for {words}", keep, number)
    yield from _by_chance(own, y, gone, kept)


def _thresholds(y: NDArray[Any], gone: NDArray[Any], kept: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any], float]]:
    size = np.abs(y)
    with np.errstate(all="ignore"):
        beside = np.nan_to_num(size / size.max(-1, keepdims=True))
    for measure, words in ((size, "what is under {:g}"), (beside, "what is under {:g} of the largest of its row")):
        low, high = float(measure[gone].max()), float(measure[kept].min())
        if low < high:
            least = nice((low + high) / 2, (high - low) / 2)
            yield words.format(least), measure >= least, least


def _best(y: NDArray[Any], kept: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any], float]]:
    """As many of each row as are kept in most, which must be its largest."""
    counts = kept.sum(-1)
    most = int(np.median(counts))
    if not 0 < most < y.shape[-1]:
        return
    for size, words in ((y, "largest"), (np.abs(y), "largest in size")):
        least = np.sort(size, -1)[..., -most][..., None]
        yield f"all but the {most} {words} of each row", size >= least, float(most)


def _kept(case: Case, y: NDArray[Any], variant: str, keep: NDArray[Any], number: float) -> Iterator[Edit]:
    detail: dict[str, Any] = {"variant": variant, "model": "", "number": number}
    yield Edit("wrong_variant", detail, after=(times(keep.astype(np.float64)),), computes=True, cost=FITTED)
    if "softmax" in word_of(case.ops[-1]):
        with np.errstate(all="ignore"):
            more = np.nan_to_num(keep * y.sum(-1, keepdims=True) / (y * keep).sum(-1, keepdims=True))
        detail = detail | {"variant": f"{variant}, shared among the others"}
        yield Edit("wrong_variant", detail, after=(times(more),), computes=True, cost=FITTED)


def _by_chance(own: NDArray[Any], y: NDArray[Any], gone: NDArray[Any], kept: NDArray[Any]) -> Iterator[Edit]:
    """Dropout: the others are larger by just what is dropped, 1 / (1 - p)."""
    there = kept | gone
    share, n = float(gone.sum() / there.sum()), int(there.sum())
    factor = float((own * y)[kept].sum() / (y * y)[kept].sum())
    if factor <= 1:
        return
    said, spread = 1 - 1 / factor, math.sqrt(share * (1 - share) / n)
    if abs(said - share) > DEVIATIONS * spread:
        return
    p = nice(said, 1e-6)
    detail = {"variant": f"dropout of {p:g} as in training: {int(gone.sum())} elements are zero", "model": ""}
    by = np.where(gone, 0.0, 1 / (1 - p))
    yield Edit("wrong_variant", detail | {"number": p}, after=(times(by),), computes=True, cost=LOOSE)


def times(by: NDArray[np.float64]) -> After:
    """Each element times a number of its own."""

    def after(y: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.asarray(y) * by.reshape(y.shape), y.dtype)

    return after
