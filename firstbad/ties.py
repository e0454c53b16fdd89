"""Near-ties: a choice (the largest of many, the k largest) that noise alone can turn.

The candidate's choice is looked up in the scores that it was made from: where its score is within noise of the best
one, nobody is to blame. Leaves out the choice of a token against the reference's own run, which follows from it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import case_of
from firstbad.graph import Op
from firstbad.local import giver

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.alignment import Alignment
    from firstbad.local import Local
    from firstbad.replay import Executor
    from firstbad.trace import Trace

CHOICES = frozenset("argmax argmin topk sort argsort max min".split())
"""ATen ops that give back places of numbers."""

ROUNDINGS = 4.0
"""Roundings of the scores' own size that two of them may be apart and still tie."""


def chooses(op: Op) -> bool:
    """Whether the op gives back the places of some of its numbers."""
    return op.kind.removeprefix("aten.").partition(".")[0] in CHOICES


def is_tie(op: Op, scores: NDArray[Any], chosen: NDArray[Any], expected: NDArray[Any], slack: float) -> bool:
    """Whether every choice that differs has a score within `slack` (absolute) of the one that was expected.

    `chosen`, `expected`: places along the op's axis, in the shape of its output; exact ties count.
    """
    axis = _axis(op, scores.ndim)
    taken = [_taken(scores, np.asarray(places), axis) for places in (chosen, expected)]
    if taken[0] is None or taken[1] is None:
        return False
    with np.errstate(invalid="ignore"):
        apart = np.abs(taken[0] - taken[1])
    same = (taken[0] == taken[1]) | (np.asarray(chosen) == np.asarray(expected)).reshape(taken[0].shape)
    return bool(np.all(same | (apart <= slack)))


def slack_of(scores: NDArray[Any], u: float, noise: float = 0.0) -> float:
    """What two scores may be apart by noise: roundings of the largest, or what was measured (`noise`, relative)."""
    numbers = np.abs(scores[np.isfinite(scores)])
    size = float(numbers.max(initial=0.0))
    return size * max(ROUNDINGS * u, 2 * noise if math.isfinite(noise) else 0.0)


def _axis(op: Op, rank: int) -> int | None:
    args: Any = op.attrs.get("args", ())
    word = op.kind.removeprefix("aten.").partition(".")[0]
    at = 2 if word == "topk" else 1
    axis = args[at] if len(args) > at else -1
    axis = axis if isinstance(axis, int) and not isinstance(axis, bool) else None
    if axis is None:
        return None if word in ("argmax", "argmin") else rank - 1
    return axis % max(rank, 1)


def _taken(scores: NDArray[Any], places: NDArray[Any], axis: int | None) -> NDArray[Any] | None:
    """The scores at the places; None where the places are none."""
    flat = scores.reshape(-1) if axis is None else scores
    n = flat.shape[axis or 0] if flat.ndim else 0
    if not np.issubdtype(places.dtype, np.integer) or places.size == 0 or places.min() < 0 or places.max() >= n:
        return None
    if axis is None:
        return np.asarray(flat[places])
    if places.ndim == flat.ndim - 1:
        return np.asarray(np.take_along_axis(flat, np.expand_dims(places, axis), axis)).squeeze(axis)
    if places.ndim == flat.ndim:
        return np.asarray(np.take_along_axis(flat, places, axis))
    return None


def near_ties(
    local: Local, reference: Trace, candidate: Trace, alignment: Alignment, executor: Executor
) -> frozenset[int]:
    """Reference ids of the choices that differ from their own scores' by noise alone."""
    given = giver(reference, candidate, alignment)
    found = set()
    for judged in local.values:
        if not judged.bad or not chooses(judged.op) or not judged.op.reads:
            continue
        case = case_of(judged, reference, candidate, alignment, executor, given, local.pools)
        source = judged.op.reads[0].value
        scores = case.preview_value(source)
        if scores is None or case.floats:
            continue
        computed = source not in case.region.inputs and any(source in op.writes for op in case.ops)
        noise = judged.noise_floor if computed else 0.0
        slack = slack_of(np.asarray(scores), case.u, noise) if computed else 0.0  # its own scores: only an exact tie
        if is_tie(judged.op, np.asarray(scores), case.own(), case.expected, slack):
            found.add(judged.pair.reference.id)
    return frozenset(found)
