"""A new baseline: a case run several times in clean ways, what would change, and then the file.

The repeats show what clean runs vary: the same inputs dithered in their last bits (every rounding is drawn anew, also
of an engine that repeats itself bit by bit), one thread and all, and each variation that the case declares. Leaves out
the comparison itself: trial.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstbad import baseline as baselines
from firstbad import waivers
from firstbad.baseline import Baseline, InputRecord, merged, rounded
from firstbad.config import Config, GateCase, Variation
from firstbad.drift import compare
from firstbad.finding import Finding
from firstbad.gate import explained, judge, run_all
from firstbad.machine import differences, environment
from firstbad.measured import highest, pool
from firstbad.trial import Trial, Tried, inputs_of

REPEATS = 3


@dataclass(frozen=True)
class Proposal:
    """A baseline that could be written."""

    case: GateCase
    path: Path
    old: Baseline | None
    new: Baseline | None  # None: the case is not clean, and `refused` says why
    refused: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return self.new is not None and (self.old is None or baselines.to_text(self.old) != baselines.to_text(self.new))

    def changes(self) -> Iterator[str]:
        """What would be different, a line each."""
        if self.new is None:
            return
        if self.old is None:
            yield f"new: {len(self.new.rows)} values, {len(self.new.inputs)} inputs"
            return
        yield from (f"environment  {words}" for words in differences(self.old.environment, self.new.environment))
        if self.old.weights != self.new.weights:
            yield f"weights      {self.old.weights[:8]} becomes {self.new.weights[:8]}"
        yield from self._inputs(self.old, self.new)
        for finding in compare(self.old, self.new.rows, growth=1.1):
            word = {"vanished": "gone", "coverage": "gone", "creep": "grew"}.get(finding.kind, finding.kind)
            yield f"{word:12} {finding.message}"

    def _inputs(self, old: Baseline, new: Baseline) -> Iterator[str]:
        for one in new.inputs:
            before = old.input(one.name)
            if before is None:
                yield f"input        {one.name} is new"
            elif before.hash != one.hash:
                yield f"input        {one.name} is another recording"
            elif before.tokens != one.tokens:
                yield f"tokens       {one.name}: {list(before.tokens)} become {list(one.tokens)}"
        yield from (f"input        {one.name} is gone" for one in old.inputs if new.input(one.name) is None)


def propose(
    config: Config,
    cases: Sequence[GateCase],
    folder: Path,
    *,
    repeat: int = REPEATS,
    inputs: int | None = None,
    jobs: int | None = None,
    today: datetime.date | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Proposal]:
    """Runs the cases and says what would be written; nothing is."""
    accepted = waivers.read(config.baselines)
    plans = {case.name: _trials(config, case, folder, repeat, inputs) for case in cases}
    done = run_all([trial for runs in plans.values() for run in runs for trial in run], jobs, tell)
    proposals = []
    for case in cases:
        runs = [[done[trial.folder] for trial in trials] for trials in plans[case.name]]
        runs[0] = explained(plans[case.name][0], runs[0], tell)
        path = config.baselines / case.file
        partial = inputs is not None and inputs < case.inputs
        proposals.append(_proposal(case, path, runs, accepted, partial, today or waivers.today()))
    return proposals


def _trials(config: Config, case: GateCase, folder: Path, repeat: int, inputs: int | None) -> list[list[Trial]]:
    """The plain run, the repeats, the variations: each over all inputs."""
    names = inputs_of(case, config.folder, inputs)
    ways = [(0, Variation())]
    ways += [(seed, Variation(threads=1) if seed % 2 else Variation()) for seed in range(1, repeat)]
    ways += [(0, variation) for variation in case.variations]
    return [
        [
            Trial(
                case,
                name,
                config.folder,
                folder.resolve() / case.name / f"{n}-{i}",
                variation,
                dither,
                unprobed=n == 0,
            )
            for i, name in enumerate(names)
        ]
        for n, (dither, variation) in enumerate(ways)
    ]


def _proposal(
    case: GateCase,
    path: Path,
    runs: Sequence[Sequence[Tried]],
    accepted: Sequence[waivers.Waiver],
    partial: bool,
    today: datetime.date,
) -> Proposal:
    old = baselines.read(path) if _readable(path) else None
    first = [one for one in runs[0] if one.error is None]
    red = [f for run in runs for f in judge(case, run, None, accepted, today).red]
    refused = [f for f in red if f.kind != "usage" or f.inputs]  # that there is no baseline refuses none
    if refused or not first:
        return Proposal(case, path, old, None, tuple(_once(refused)))
    rows = pool(one.sites for one in first)
    new = Baseline(
        case=case.name,
        model=first[0].model,
        weights=first[0].weights,
        weights_compared=min(one.weights_compared for one in first),
        reads_checked=all(one.reads_checked for one in first),
        repeats=len(runs),
        environment=environment(case.candidate, case.options, case.environment),
        inputs=tuple(InputRecord(one.input, one.hash, one.tokens) for one in first),
        rows=tuple(replace(row, file="", line=0) for row in rows),
        highest=highest(pool(one.sites for one in run) for run in runs),
    )
    notes = [
        f"{one.input} gives other tokens in repeat {n}: rounding decides there"
        for n, run in enumerate(runs[1:], 1)
        for one, plain in zip(run, runs[0], strict=True)
        if one.tokens != plain.tokens
    ]
    return Proposal(case, path, old, rounded(merged(old, new, partial=partial)), notes=tuple(notes))


def _readable(path: Path) -> bool:
    """A baseline that cannot be read is replaced as a whole."""
    from firstbad.errors import UsageError

    try:
        return baselines.read(path) is not None
    except UsageError:
        return False


def _once(findings: Sequence[Finding]) -> Iterator[Finding]:
    seen = set()
    for finding in findings:
        if (finding.kind, finding.value) not in seen:
            seen.add((finding.kind, finding.value))
            yield finding


def write(proposal: Proposal) -> None:
    """The baseline, in one piece or not at all."""
    assert proposal.new is not None
    proposal.path.parent.mkdir(parents=True, exist_ok=True)
    scratch = proposal.path.with_suffix(".new")
    scratch.write_text(baselines.to_text(proposal.new), "utf-8", newline="\n")
    scratch.replace(proposal.path)
