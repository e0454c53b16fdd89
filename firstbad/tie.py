"""Near-ties: whether two tokens' scores were so close that rounding alone may choose either.

Leaves out top-k and sampling: the engines are greedy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from firstbad.comparison import Comparison
    from firstbad.trace import Trace

WIDTH = 2.0
"""Each of the two scores may be off by its noise."""


def near_tie(
    comparison: Comparison, reference: Trace, candidate: Trace, step: str, tokens: tuple[int, int]
) -> tuple[bool, str] | None:
    """(whether the two tokens of a step tie within noise, the numbers in words); None where no scores are there.

    Both engines must hold them for close: the reference's scores are not the candidate's mistake.
    """
    chosen = next(
        (op for op in reference.graph.ops if op.step == step and op.kind.startswith("aten.argmax") and op.reads), None
    )
    if chosen is None:
        return None
    scores = reference.graph.values[chosen.reads[0].value]
    judged = next((j for j in comparison.local.values if j.pair.reference.id == scores.id), None)
    if judged is None:
        return None
    noise = _noise(comparison, reference, scores.id)
    gaps = []
    for array in (reference.array(scores), judged.pair.layout.apply(candidate.array(judged.pair.candidate))):
        row = np.asarray(array, np.float64).reshape(-1, array.shape[-1])[-1]
        if not all(0 <= token < row.size for token in tokens):
            return None
        size = row[np.isfinite(row) & (np.abs(row) < 1e30)]
        width = WIDTH * noise * math.sqrt(float(np.mean(size**2))) if size.size else 0.0
        gaps.append((abs(float(row[tokens[0]] - row[tokens[1]])), width))
    tied = all(gap <= width for gap, width in gaps)
    gap, width = max(gaps, key=lambda pair: pair[0])
    return tied, f"the two scores are {gap:.2g} apart and noise is {width:.2g}"


def _noise(comparison: Comparison, reference: Trace, scores: int) -> float:
    """The relative noise that has reached the scores: of what they were moved from, where they only move values."""
    judged = {j.pair.reference.id: j for j in comparison.local.values}
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
