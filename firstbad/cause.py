"""Cause: the edit of a region whose replay reproduces the candidate's wrong values within noise.

A cause never claims more than it reproduced: its proof is `reproduces_to`, the distance left after the edit, judged
by the same limits as every value. Kinds of edits live in files of their own and are listed in EDITS: each is a
function (Case) -> iterator of Edit, the likeliest first. Leaves out the words: see statement.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from firstbad.alignment import Alignment
from firstbad.graph import Op
from firstbad.judge import Sums
from firstbad.local import Judged, kind_of, sequential_of, sums_of
from firstbad.noise import ROUNDOFF, Pool, excesses, floor
from firstbad.region import Given, Region, region_of, replay_region
from firstbad.replay import Executor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.trace import Trace

BUDGET = 10.0
"""Seconds of search for one fault."""


@dataclass(frozen=True)
class Case:
    """One fault under investigation: its first site, its region, and where all values are."""

    reference: Trace
    candidate: Trace
    alignment: Alignment
    executor: Executor
    given: Given
    pools: Mapping[str, Pool]
    judged: Judged
    region: Region

    @property
    def op(self) -> Op | None:
        """The candidate's op that made the value, where the probe recorded one."""
        made_by = self.judged.pair.candidate.op
        return self.candidate.graph.ops[made_by] if made_by >= 0 else None

    def own(self) -> NDArray[Any]:
        """The candidate's wrong value in the reference's layout."""
        pair = self.judged.pair
        return pair.layout.apply(self.candidate.array(pair.candidate))


@dataclass(frozen=True)
class Edit:
    """A change of the region: some inputs (or weights) replaced; `detail` says what, in plain data."""

    kind: str
    detail: Mapping[str, Any]
    replaced: Mapping[int, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cause:
    """What explains a fault. `reproduces_to` is None where nothing did (kind "unknown")."""

    kind: str
    detail: Mapping[str, Any]
    reproduces_to: float | None
    alternatives: tuple[Cause, ...] = ()
    tried: int = 0


def case_of(
    judged: Judged,
    reference: Trace,
    candidate: Trace,
    alignment: Alignment,
    executor: Executor,
    given: Given,
    pools: Mapping[str, Pool],
) -> Case:
    """Everything an edit needs to know about one site of a fault."""
    region = region_of(reference.graph, judged.pair.reference, given)
    return Case(reference, candidate, alignment, executor, given, pools, judged, region)


def explain(
    case: Case,
    edits: tuple[Callable[[Case], Iterator[Edit]], ...],
    *,
    budget: float = BUDGET,
    progress: Callable[[str], None] = lambda _: None,
) -> Cause:
    """The first edit that reproduces the candidate's values, or "unknown" with the closest one."""
    until = time.monotonic() + budget
    tried, closest = 0, None
    for make in edits:
        for edit in make(case):
            tried += 1
            progress(f"explain {case.judged.name}: {tried} edits tried")
            good, left = attempt(case, edit)
            if good:
                return Cause(edit.kind, edit.detail, left, tried=tried)
            if closest is None or left < closest[0]:
                closest = (left, edit)
            if time.monotonic() > until:
                return _unknown(tried, closest, "out of time")
    return _unknown(tried, closest, "no edit reproduces it")


def attempt(case: Case, edit: Edit) -> tuple[bool, float]:
    """Whether the edited region reproduces the candidate's value within noise, and the relative distance left."""
    sums, good = judge_edit(case, edit)
    return good, sums.local_error


def judge_edit(case: Case, edit: Edit) -> tuple[Sums, bool]:
    """The sums of the candidate's value against the edited region, and whether every test passes."""
    replayed = replay_region(case.reference.graph, case.region, case.executor, case.given, edit.replaced)
    dtype = case.judged.pair.candidate.dtype
    sums = sums_of(case.own(), replayed, dtype)
    sequential = None if replayed.exact else sequential_of(ROUNDOFF.get(dtype, ROUNDOFF["float32"]), replayed)
    limits = floor(sums, case.pools.get(kind_of(case.judged.op), Pool()), sequential)
    return sums, not any(t.bad for t in excesses(sums, limits, exact=replayed.exact))


def _unknown(tried: int, closest: tuple[float, Edit] | None, why: str) -> Cause:
    detail: dict[str, Any] = {"why": why}
    if closest is not None:
        detail |= {"closest": closest[1].kind, "closest_detail": dict(closest[1].detail), "closest_left": closest[0]}
    return Cause("unknown", detail, None, tried=tried)
