"""Near-ties: whether two tokens' scores were so close that rounding alone may choose either.

Leaves out top-k (ties.py) and sampling: the engines are greedy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.replay import moves_only

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.local import Local
    from firstbad.trace import Trace

WIDTH = 2.0
"""Each of the two scores may be off by its noise."""


@dataclass(frozen=True)
class Scores:
    """What a step's tokens were chosen from, on both sides: [B, V] each."""

    value: int  # of the reference: what was compared
    ours: NDArray[Any]
    theirs: NDArray[Any]


@dataclass(frozen=True)
class Tie:
    """Two tokens' scores: how far apart on the side where they are farther, and what noise can move."""

    tied: bool
    gap: float
    width: float

    @property
    def words(self) -> str:
        return f"the two scores are {self.gap:.2g} apart and noise is {self.width:.2g}"


def scores_of(local: Local, reference: Trace, candidate: Trace) -> dict[str, Scores]:
    """Step → the scores that its tokens were chosen from; only steps in which both sides have them."""
    judged = {j.pair.reference.id: j for j in local.values}
    found: dict[str, Scores] = {}
    for op in reference.graph.ops:
        if not op.kind.startswith("aten.argmax") or not op.reads or op.step in found:
            continue
        at = op.reads[0].value
        while at not in judged and reference.graph.values[at].op >= 0:
            source = reference.graph.ops[reference.graph.values[at].op]
            if not moves_only(source) or not source.reads:
                break
            at = source.reads[0].value
        if at not in judged:
            continue
        B = max(1, math.prod(reference.graph.values[op.writes[0]].shape))
        pair = judged[at].pair
        sides = (reference.array(pair.reference), pair.layout.apply(candidate.array(pair.candidate)))
        V = pair.reference.shape[-1]
        if any(side.size % (B * V) for side in sides):
            continue
        ours, theirs = (np.asarray(side, np.float64).reshape(B, -1, V)[:, -1] for side in sides)
        found[op.step] = Scores(at, ours, theirs)
    return found


def near_tie(scores: Scores, local: Local, reference: Trace, tokens: tuple[int, int], row: int = -1) -> Tie | None:
    """Whether the two tokens of a step tie within noise; None where they are no tokens of the vocabulary.

    Both engines must hold them for close: the reference's scores are not the candidate's mistake.
    """
    noise = _noise(local, reference, scores.value)
    gaps = []
    for side in (scores.ours[row], scores.theirs[row]):
        if not all(0 <= token < side.size for token in tokens):
            return None
        size = side[np.isfinite(side) & (np.abs(side) < 1e30)]
        width = WIDTH * noise * math.sqrt(float(np.mean(size**2))) if size.size else 0.0
        gaps.append((abs(float(side[tokens[0]] - side[tokens[1]])), width))
    gap, width = max(gaps, key=lambda pair: pair[0])
    return Tie(all(gap <= width for gap, width in gaps), gap, width)


def _noise(local: Local, reference: Trace, scores: int) -> float:
    """The relative noise that has reached the scores: of what they were moved from, where they only move values."""
    judged = {j.pair.reference.id: j for j in local.values}
    at, seen = scores, 0.0
    while at in judged or at >= 0:
        if at in judged:
            seen = max(seen, judged[at].cumulative_limit)
            if not judged[at].exact:
                break
        op = reference.graph.values[at].op
        reads = reference.graph.ops[op].reads if op >= 0 else ()
        at = reads[0].value if reads else -1
    return seen
