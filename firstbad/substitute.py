"""A second opinion on every fault: the engine once more, each captured value replaced by the reference's as it is made.

So every op of the real engine runs on golden inputs, and what it gives is its own doing: no replay, no twin, only the
reference's recorded value beside it. Leaves out how large an error may be: the noise floors of the comparison serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firstbad.confirm import apart

if TYPE_CHECKING:
    from firstbad.comparison import Comparison
    from firstbad.trace import Trace

FLOORS = 8.0
"""Noise floors that two right results may be apart: the reference's and the engine's own rounding are both in it, and a
comparison allows three for one of them."""

FEW = 4e-7
"""Relative distance that is never called an error: a few roundings."""


def second_opinion(comparison: Comparison, reference: Trace, substituted: Trace) -> dict[str, Any]:
    """Which values the ops give wrong on the reference's own inputs, and whether these are the faults found."""
    floors: dict[str, float] = {}
    for judged in comparison.local.values:
        floors[judged.name] = max(floors.get(judged.name, 0.0), 0.0 if judged.exact else judged.noise_floor)
    off: dict[str, tuple[float, str]] = {}
    compared = 0
    by_name = {(p.candidate.step, p.candidate.name): p for p in comparison.alignment.pairs}
    for value in substituted.graph.values:
        pair = by_name.get((value.step, value.name))
        if (
            value.kind != "value"
            or pair is None
            or not substituted.stored(value)
            or value.shape != pair.candidate.shape
        ):
            continue
        compared += 1
        own = pair.layout.apply(substituted.array(value))
        error = apart(own, reference.array(pair.reference))
        if not error <= max(FLOORS * floors.get(pair.reference.name, 0.0), FEW):
            off.setdefault(pair.reference.name, (error, value.step))
    named = {fault.name for fault in comparison.localised.faults}
    return {
        "compared": compared,
        "off": [{"value": name, "step": step, "error": error} for name, (error, step) in off.items()],
        "agree": sorted(named & set(off)),
        "only_replay": sorted(named - set(off)),
        "only_substitution": sorted(set(off) - named),
        "agrees": named == set(off),
    }
