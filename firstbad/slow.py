"""Slow drift: no single op is wrong, and yet each makes more noise than it should, so that errors grow block by block.

A clean engine's errors lie around the noise floor, some above and some below; where the usual value of a run lies well
above it, the values that have gone too far because of that are called drift and every block's share is told. Leaves out
faults, which stand out by themselves, and trends between runs (the gate's).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstbad.local import Judged

USUAL = 1.5
"""Noise floors that the median of a clean run stays well under (-O0, -O3, -ffast-math, sums term after term)."""

FEWEST = 8
"""Values from which a median says something."""


@dataclass(frozen=True)
class Block:
    """The ops of one layer: how noisy they are, and what they add to the error of what goes through."""

    name: str
    floors: float  # median of error / noise floor
    added: float  # relative error that its ops make, rounding by rounding
    allowed: float  # that a clean engine would make
    values: int


def ratio(judged: Judged) -> float | None:
    """A value's own error in noise floors; None where it computes nothing."""
    if judged.exact or judged.floor.whole <= 0 or not math.isfinite(judged.sums.candidate):
        return None
    return judged.sums.candidate / judged.floor.whole


def is_slow(values: Iterable[Judged]) -> bool:
    """Whether the usual value of these is noisier than a clean engine's."""
    ratios = [r for v in values if not v.bad and (r := ratio(v)) is not None]
    return len(ratios) >= FEWEST and median(ratios) > USUAL


def blocks(values: Iterable[Judged]) -> tuple[Block, ...]:
    """Every layer with its share, in execution order of its first value."""
    by_name: dict[str, list[Judged]] = {}
    for value in values:
        if ratio(value) is not None and not value.bad:
            by_name.setdefault(block_of(value.name), []).append(value)
    return tuple(
        Block(
            name,
            median(r for v in many if (r := ratio(v)) is not None),
            math.sqrt(sum(v.sums.local_error**2 for v in many)),
            math.sqrt(sum(v.noise_floor**2 for v in many)),
            len(many),
        )
        for name, many in by_name.items()
    )


def block_of(name: str) -> str:
    """The path up to a layer's number: "model.encoder.layers.1"; what is in no layer stands under its first parts."""
    found = re.match(r"(.*?\.\d+)(\.|$)", name)
    return found[1] if found else name.rpartition(".")[0] or name
