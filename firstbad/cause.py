"""Cause: the edit of a region whose replay reproduces the candidate's wrong values within noise.

A cause never claims more than it reproduced: its proof is `reproduces_to`, the distance left after the edit, judged
by the same limits as every value. Kinds of edits live in files of their own and are listed in EDITS: each is a
function (Case) -> iterator of Edit, the likeliest first. An edit is previewed in float32 on a sample; what explains a
part of the difference is judged in full. Leaves out the words: see statement.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from firstbad.case import Case, Score, case_of
from firstbad.edit import FITTED, NOTHING, Edit
from firstbad.errors import CompareError
from firstbad.faults import Fault
from firstbad.judge import Sums
from firstbad.local import Judged, kind_of, sequential_of, sums_of
from firstbad.noise import FACTOR, QUARTER, Floor, Pool, excesses, floor
from firstbad.replay import Replayed

__all__ = ["BUDGET", "Case", "Cause", "Edit", "Edits", "case_of", "explain", "judge_edit"]

BUDGET = 10.0
"""Seconds of search for one fault."""

MORE = 0.3
"""Share of the budget that is spent on alternatives once a cause is found."""

EQUAL = 1.25
"""Edits that leave at most so many times the least distance reproduce equally well."""

PARTIAL = 0.2
"""Share of the difference that an edit must explain to be joined with a second one."""

PARTNERS = 3
"""Edits that a second one is sought for."""

Make = Callable[[Case], Iterator[Edit]]
Edits = Sequence[Make]


@dataclass(frozen=True)
class Cause:
    """What explains a fault. `reproduces_to` is None where nothing did (kind "unknown")."""

    kind: str
    detail: Mapping[str, Any]
    reproduces_to: float | None
    alternatives: tuple[Cause, ...] = ()
    tried: int = 0
    edit: Edit | None = None
    by: Make | None = None  # what made the edit; None: two edits together


@dataclass
class _Search:
    """The state of one search: what was tried, what came close, what reproduces."""

    case: Case
    until: float
    budget: float
    progress: Callable[[str], None]
    tried: int = 0
    close: list[tuple[float, Edit]] = field(default_factory=list)  # (share, edit), the best first
    found: list[tuple[Edit, float, Make | None]] = field(default_factory=list)  # (edit, distance left, made by)
    out_of_time: bool = False

    def run(self, case: Case, edits: Edits) -> None:
        for make in edits:
            for edit in _while_possible(make(case)):
                if time.monotonic() > self.until:
                    self.out_of_time = True
                    return
                if self.found and edit.cost > max(FITTED, min(e.cost for e, _, _ in self.found)):
                    continue  # simpler ones are known
                self._try(case, edit, make)

    def _try(self, case: Case, edit: Edit, make: Make) -> None:
        joined = edit if case.base is NOTHING else case.base.then(edit)
        if joined is None:
            return
        self.tried += 1
        self.progress(f"explain {case.judged.name}: {self.tried} edits tried")
        try:
            score = score_of(case, edit)
            if not score.promising:
                self._remember(joined, score)
                return
            sums, good = judge_edit(case, edit)
        except CompareError:  # the shapes do not fit: no such engine
            return
        if good:
            if not self.found:
                self.until = min(self.until, time.monotonic() + MORE * self.budget)
            self.found.append((joined, sums.local_error, make if case.base is NOTHING else None))
        else:
            self._remember(joined, score)

    def _remember(self, edit: Edit, score: Score) -> None:
        if score.odd == 0 and score.share > 0 and not edit.dtype:
            self.close = sorted([*self.close, (score.share, edit)], key=lambda c: -c[0])[:8]


def _while_possible(edits: Iterator[Edit]) -> Iterator[Edit]:
    """Edits until one cannot even be made (its op is changed already, its shapes do not fit)."""
    with suppress(CompareError):
        yield from edits


def explain(
    case: Case,
    edits: Edits,
    *,
    budget: float = BUDGET,
    progress: Callable[[str], None] = lambda _: None,
) -> Cause:
    """The simplest edit that reproduces the candidate's values, or "unknown" with the closest one."""
    search = _Search(case, time.monotonic() + budget, budget, progress)
    search.run(case, edits)
    if not search.found:
        for share, partner in list(search.close[:PARTNERS]):
            if share > PARTIAL and not search.found and not search.out_of_time:
                search.run(replace(case, base=partner), edits)
    if search.found:
        return _cause(search)
    return _unknown(case, search, bool(edits))


def again(case: Case, cause: Cause, *, budget: float = BUDGET) -> Cause | None:
    """The cause of another fault, if the very same edit (see Edit.same) reproduces this one too; None if not."""
    if cause.by is None or cause.edit is None:
        return None
    search = _Search(case, time.monotonic() + budget, budget, lambda _: None)
    search.run(case, (cause.by,))
    search.found = [found for found in search.found if found[0].same(cause.edit)]
    return _cause(search) if search.found else None


def _cause(search: _Search) -> Cause:
    best = min(left for _, left, _ in search.found)
    # What the probe saw; then, as good as the best, the simplest; stable, so the earlier kind comes first.
    ranked = sorted(search.found, key=lambda f: (not f[0].seen, f[1] > EQUAL * best, f[0].cost))
    causes: list[Cause] = []
    for edit, left, make in ranked:
        if not any(c.edit is not None and c.edit.key == edit.key and c.detail == edit.detail for c in causes):
            causes.append(Cause(edit.kind, edit.detail, left, edit=edit, by=make))
    return replace(causes[0], alternatives=tuple(causes[1:]), tried=search.tried)


def _unknown(case: Case, search: _Search, searched: bool) -> Cause:
    why = "out of time" if search.out_of_time else "no edit reproduces it" if searched else "not searched"
    detail: dict[str, Any] = {"why": why}
    if search.close:
        share, edit = search.close[0]
        try:
            left = judge_edit(replace(case, base=NOTHING), edit)[0].local_error
        except CompareError:
            left = float("nan")
        detail |= {"closest": edit.kind, "closest_detail": dict(edit.detail), "closest_left": left}
        detail |= {"closest_explains": share}
    return Cause("unknown", detail, None, tried=search.tried)


def second(fault: Fault) -> Judged:
    """The site where a cause found at the first one is checked again: the largest value among the others."""
    return max(fault.sites[1:], key=lambda s: (s.sums.count, s.worst.ratio))


def confirmed(case: Case, cause: Cause, edits: Edits, *, budget: float = BUDGET) -> Cause:
    """The cause checked at another site of the fault, with the outcome in its detail.

    An alternative that fails there is dropped; where the cause fails and an alternative holds, that one leads.
    """
    every = [cause, *cause.alternatives]
    keys = {c.edit.key for c in every if c.edit is not None}
    results = _same_edits(case, keys, edits, time.monotonic() + budget)
    holds = [c for c in every if c.edit is not None and results.get(c.edit.key)]
    unknown = [c for c in every if c.edit is not None and c.edit.key not in results]
    kept = [*holds, *unknown] or every
    lead = cause if any(c is cause for c in kept) else kept[0]
    rest = tuple(replace(c, alternatives=()) for c in kept if c is not lead)
    outcome = None if any(c is lead for c in unknown) else any(c is lead for c in holds)
    detail = {**lead.detail, "also_at": case.judged.step, "holds_there": outcome}
    return replace(lead, detail=detail, alternatives=rest, tried=cause.tried)


def _same_edits(case: Case, keys: set[tuple[str, ...]], edits: Edits, until: float) -> dict[tuple[str, ...], bool]:
    """Which of the edits, known by their key, reproduce the value of this case too."""
    results: dict[tuple[str, ...], bool] = {}
    for make in edits:
        for edit in make(case):
            if time.monotonic() > until or all(results.get(k) for k in keys):
                return results
            if edit.key in keys and not results.get(edit.key):
                try:
                    results[edit.key] = score_of(case, edit).promising and judge_edit(case, edit)[1]
                except CompareError:
                    continue
    return results


def score_of(case: Case, edit: Edit) -> Score:
    """How much of the difference an edit explains, by a preview."""
    if edit.dtype:
        return Score(1.0, 1.0, np.inf, 0)  # noise has no bits to compare: judged at once
    return case.score(case.preview(edit))


def judge_edit(case: Case, edit: Edit) -> tuple[Sums, bool]:
    """The sums of the candidate's value against the edited region, and whether the edit is proved.

    Proved: every test of a clean value passes, and the same limits would not have passed the region unedited.
    """
    replayed = case.replay(edit)
    if edit.rounds:
        replayed = _within_rounding(case, edit, replayed)
    if edit.dtype:
        return _judge_noise(case, edit)
    sums = sums_of(case.own(), replayed, case.dtype, case.heads)
    limits = _limits(case, replayed, sums)
    good = not any(t.bad for t in excesses(sums, limits, exact=replayed.exact))
    if good and not replayed.exact:
        unedited = case.replayed
        before = replace(replayed, expected=unedited.expected, twin=unedited.twin)
        good = any(t.bad for t in excesses(sums_of(case.own(), before, case.dtype, case.heads), limits, exact=False))
    return sums, good


def _limits(case: Case, replayed: Replayed, sums: Sums) -> Floor:
    sequential = None
    if not replayed.exact:
        sequential = sequential_of(case.u, replayed) or case.sequential
    return floor(sums, case.pools.get(kind_of(case.judged.op), Pool()), sequential)


def _within_rounding(case: Case, edit: Edit, replayed: Replayed) -> Replayed:
    """A rounding is decided by what noise leaves open: the candidate's choice within it counts.

    `edit.after` is monotone, so every value between its results at both ends of the noise is possible.
    """
    plain = case.replay(replace(edit, after=(), rounds=False))
    scale = np.zeros(1) if plain.scale is None else np.asarray(plain.scale, np.float64)
    slack = case.u * scale * (FACTOR * case.judged.floor.element + QUARTER)
    low, high = edit.finish(plain.expected - slack), edit.finish(plain.expected + slack)
    chosen = np.clip(np.asarray(case.own(), np.float64), low, high)
    return replace(replayed, expected=chosen, twin=chosen.astype(np.float32))


def _judge_noise(case: Case, edit: Edit) -> tuple[Sums, bool]:
    """Arithmetic of lower precision: the error is noise of the size that it makes, no more and no less."""
    low = edit.output if edit.output is not None else case.preview(replace(edit, dtype=""), edit.dtype)
    replayed = replace(case.replayed, twin=np.asarray(low, np.float32))
    sums = sums_of(case.own(), replayed, case.dtype)
    limits = floor(sums, Pool(), None)
    fits = not any(t.bad for t in excesses(sums, limits, exact=False))
    return sums, fits and sums.candidate > 0.3 * sums.twin and sums.candidate > FACTOR * case.judged.floor.whole
