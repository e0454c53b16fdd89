"""Faults, damage and the verdict of each value: the second half of localising.

A fault is one cause at one op of the model, with the sites (steps) where it shows. Damage is attributed to the faults
upstream of it through the candidate's graph where the probe recorded it, else the reference's.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from firstbad.alignment import Alignment
from firstbad.graph import Graph, Op
from firstbad.local import Judged, Local
from firstbad.slow import Block, blocks, is_slow

Verdict = Literal[
    "clean", "culprit", "victim", "masked", "near-tie", "approximation", "benign", "drift", "misaligned", "unknown"
]


@dataclass(frozen=True)
class Fault:
    """One op that computes what its own inputs do not give; `sites[0]` is the first in execution order."""

    name: str
    sites: tuple[Judged, ...]

    @property
    def first(self) -> Judged:
        return self.sites[0]


@dataclass(frozen=True)
class Localised:
    """The faults in execution order, and a verdict for every judged value (by reference id)."""

    faults: tuple[Fault, ...]
    verdicts: Mapping[int, Verdict]
    damage: Mapping[int, str]  # reference id of a victim → name of the nearest fault upstream of it
    drift: tuple[Block, ...] = ()  # every block's share, where errors grow without a fault


def localise(
    local: Local,
    alignment: Alignment,
    reference: Graph,
    candidate: Graph,
    ties: Container[int] = (),
    harmless: Container[int] = (),
) -> Localised:
    """Groups what is locally bad into faults and attributes what is only cumulatively bad to them.

    `ties`: reference ids of choices that differ by noise alone; see ties.py. `harmless`: of values whose difference
    has no effect; see benign.py.
    """
    sites: dict[str, list[Judged]] = {}
    for judged in local.values:
        if judged.bad and judged.pair.reference.id not in ties and judged.pair.reference.id not in harmless:
            sites.setdefault(judged.name, []).append(judged)
    faults = tuple(Fault(name, tuple(many)) for name, many in sites.items())
    source = _sources(reference, candidate, alignment, faults)
    verdicts: dict[int, Verdict] = {}
    damage: dict[int, str] = {}
    slow = is_slow(local.values)
    for judged in local.values:
        key = judged.pair.reference.id
        if judged.bad and key in ties:
            verdicts[key] = "near-tie"
        elif key in harmless and (judged.bad or (judged.cumulative_bad and key not in source)):
            verdicts[key] = "benign"
        elif judged.bad:
            verdicts[key] = "culprit" if judged.cumulative_bad else "masked"
        elif judged.cumulative_bad and key in source:
            verdicts[key] = "victim"
            damage[key] = source[key]
        elif judged.cumulative_bad and "float" not in judged.pair.reference.dtype:
            verdicts[key] = "near-tie"  # the scores are right, and the choice follows from them
        elif judged.cumulative_bad and slow:
            verdicts[key] = "drift"
        elif judged.pair.how == "relabelled":
            verdicts[key] = "misaligned"
        else:
            verdicts[key] = "clean"
    return Localised(faults, verdicts, damage, blocks(local.values) if slow else ())


def _sources(reference: Graph, candidate: Graph, alignment: Alignment, faults: Iterable[Fault]) -> Mapping[int, str]:
    """Reference id of each value that a fault reaches → the name of the fault, the latest on the way."""
    own = {site.pair.reference.id: fault.name for fault in faults for site in fault.sites}
    reached: dict[int, str] = {}
    for op in reference.ops:
        inputs = [reached[r.value] for r in op.reads if r.value in reached]
        inputs += _also_read(op, alignment, candidate, reached)
        for written in op.writes:
            if written in own:
                reached[written] = own[written]
            elif inputs:
                reached[written] = inputs[-1]
    return reached


def _also_read(op: Op, alignment: Alignment, candidate: Graph, reached: Mapping[int, str]) -> list[str]:
    """Faults that reach this op through what the candidate really read, where that was recorded."""
    found = []
    for written in op.writes:
        pair = alignment.by_reference.get(written)
        if pair is None or pair.candidate.op < 0:
            continue
        for read in candidate.ops[pair.candidate.op].reads:
            other = alignment.by_candidate.get(read.value)
            if other is not None and other.reference.id in reached:
                found.append(reached[other.reference.id])
    return found
