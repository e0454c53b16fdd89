"""A case against its baseline: what vanished, changed its form, grew or shrank beyond what clean runs vary.

The limit of an error is the largest of several clean runs of the baseline times the case's growth factor; of a value of
few rows, and of its worst row or element, what the noise floor measured in this very run allows. That floor is also the
limit where the machine differs from the baseline's (processor, compiler, BLAS, threads) or the values do (other tokens
before them): a correct engine may round otherwise there. Leaves out faults (gate.py), which fail whatever a baseline
says, and tokens of single inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from firstbad.baseline import Baseline
from firstbad.finding import Finding
from firstbad.measured import TESTS, Row
from firstbad.statement import short

ANEW = (1.5, 2.0, 2.5, 2.5, 2.5, 2.5)
"""By TESTS: noise floors of this run that an error may have on another machine than the baseline's. Pooled over inputs
a clean engine stays under 1.1 floors in the whole and 1.9 in its worst row or element; twice the floor is a fault that
has not grown up yet, three times is one."""

SLACK = 0.05
"""In units of u x condition: under it an error is a few roundings in a whole value, whose ratio says nothing."""

MANY = 100
"""Rows from which the root mean square of a value's errors is a number of the engine and not of the draw: from fewer,
and for what is the worst of many (a row, a column, an element), the noise floor of the run is the limit. A change
upstream that alters the last bits draws all of them anew, and the repeats of a baseline, whose first ops see the same
bits each time, do not show how far that goes."""

BETTER = 0.67
"""An error that shrank to this share is worth a new baseline."""

_WORDS = {
    "whole": "",
    "worst": " in its worst run",
    "rows": " in its worst row",
    "columns": " in its worst column",
    "groups": " in its worst head",
    "element": " in its worst element",
}


def compare(
    baseline: Baseline,
    rows: Sequence[Row],
    *,
    growth: float,
    tolerances: Sequence[tuple[str, float]] = (),
    differs: bool = False,
    others: frozenset[str] = frozenset(),
    partial: bool = False,
    skipped: frozenset[tuple[str, str]] = frozenset(),
) -> Iterator[Finding]:
    """Findings in the order of execution. `differs`: the machine is not the baseline's; `others`: groups of steps that
    ran on other values than the baseline's; `partial`: steps that did not
    run are not missed; `skipped`: values whose error says nothing, for a fault."""
    before = {row.key: row for row in baseline.rows}
    now = {row.key: row for row in rows}
    ran = {row.step for row in rows}
    yield from _vanished(baseline, now, ran, partial)
    yield from _moved(baseline, rows)
    for row in rows:
        old = before.get(row.key)
        if old is None:
            yield Finding("new", f"{row.name} ({row.step}) is not in the baseline", row.name, row.step)
            continue
        yield from _form(old, row)
        if row.key not in skipped and not row.exact and old.error:
            factor = next((f for pattern, f in tolerances if fnmatchcase(row.name, pattern)), growth)
            highest = baseline.highest[row.key] or old.error
            anew = differs or row.step in others
            yield from _error(old, row, highest, limits(old, row, highest, factor, anew=anew))


def limits(old: Row, row: Row, highest: Sequence[float], factor: float, *, anew: bool) -> tuple[float, ...]:
    """The largest error that passes, by TESTS."""
    settled = not anew and min(old.samples, row.samples) >= MANY
    found = []
    for test, seen, allowed, floor in zip(TESTS, highest, ANEW, row.noise, strict=True):
        clean = 0.0 if settled and test == "whole" else allowed * floor
        found.append(max(seen * factor, seen + SLACK, clean))
    return tuple(found)


def _error(old: Row, row: Row, highest: Sequence[float], allowed: Sequence[float]) -> Iterator[Finding]:
    grown = [n for n, (seen, limit) in enumerate(zip(row.error, allowed, strict=True)) if not seen <= limit]
    if grown:
        # the pooled error is the plainest to read; else the one that grew most
        n = 0 if 0 in grown else max(grown, key=lambda i: row.error[i] / (allowed[i] or 1e-30))
        floor = row.noise[n] or 1.0
        message = (
            f"the error of {short(row.name)} grew{_WORDS[TESTS[n]]}: {row.error[n] / floor:.2f} noise floors, "
            f"{old.error[n] / floor:.2f} in the baseline, where clean runs reach {highest[n] / floor:.2f} "
            f"(limit {allowed[n] / floor:.2f})"
        )
        yield Finding("creep", message, row.name, row.step, row.file, row.line, times_noise=row.error[n] / floor)
    elif old.error[0] > SLACK and row.error[0] < BETTER * old.error[0]:
        message = f"the error of {short(row.name)} shrank to {row.error[0] / old.error[0]:.2f} of the baseline's"
        yield Finding("improved", message, row.name, row.step)


def _form(old: Row, row: Row) -> Iterator[Finding]:
    place = (row.name, row.step, row.file, row.line)
    if not _same_shape(old.shape, row.shape):
        yield Finding("shape", f"{short(row.name)} has shape {_shape(row)}, {_shape(old)} in the baseline", *place)
    if old.dtype != row.dtype:
        yield Finding("dtype", f"{short(row.name)} is {row.dtype}, {old.dtype} in the baseline", *place)
    if old.axes != row.axes and len(old.shape) == len(row.shape):
        words = [f"its axes in the order {list(axes)}" if axes else "contiguous" for axes in (row.axes, old.axes)]
        yield Finding("layout", f"{short(row.name)} lies {words[0]} in memory, {words[1]} in the baseline", *place)


def _same_shape(old: Sequence[int | str], new: Sequence[int | str]) -> bool:
    return len(old) == len(new) and all(a == b or "n" in (a, b) for a, b in zip(old, new, strict=True))


def _shape(row: Row) -> str:
    return f"[{', '.join(map(str, row.shape))}]"


def _vanished(
    baseline: Baseline, now: Mapping[tuple[str, str], Row], ran: set[str], partial: bool
) -> Iterator[Finding]:
    steps = {row.step for row in baseline.rows}
    for step in sorted(steps - ran) if not partial else ():
        count = sum(row.step == step for row in baseline.rows)
        yield Finding("coverage", f"no value of {step} was compared, {count} in the baseline", step=step)
    for row in baseline.rows:
        if row.step in ran and row.key not in now:
            words = f"{row.name} ({row.step}) is in the baseline and was not compared"
            yield Finding("vanished", words, row.name, row.step)


def _moved(baseline: Baseline, rows: Sequence[Row]) -> Iterator[Finding]:
    """Values that run in another order: as few as explain it."""
    place = {row.key: n for n, row in enumerate(baseline.rows)}
    common = [row for row in rows if row.key in place]
    kept = _longest_increasing([place[row.key] for row in common])
    for n, row in enumerate(common):
        if n not in kept:
            before = baseline.rows[place[row.key] - 1].name if place[row.key] else "everything"
            message = f"{row.name} ({row.step}) does not run after {before} any more"
            yield Finding("order", message, row.name, row.step, row.file, row.line)


def _longest_increasing(numbers: Sequence[int]) -> frozenset[int]:
    """Indices of a longest increasing subsequence."""
    if all(a < b for a, b in pairwise(numbers)):
        return frozenset(range(len(numbers)))
    from bisect import bisect_left

    tails: list[int] = []  # smallest last number of a subsequence of each length ...
    at: list[int] = []  # ... and its index
    before: list[int] = []
    for n, number in enumerate(numbers):
        length = bisect_left(tails, number)
        before.append(at[length - 1] if length else -1)
        tails[length : length + 1] = [number]
        at[length : length + 1] = [n]
    kept, n = set(), at[-1]
    while n >= 0:
        kept.add(n)
        n = before[n]
    return frozenset(kept)
