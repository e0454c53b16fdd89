"""The gate: every case run on several inputs, compared with its baseline, and one answer for CI.

A fault fails whatever the baseline says, unless it is waived; an error that grew fails beyond what clean runs vary;
noise fails nothing. Leaves out arguments (verbs/), text (reports/) and the making of a baseline (accept.py).
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from firstbad import baseline as baselines
from firstbad import waivers
from firstbad.baseline import Baseline
from firstbad.config import Config, GateCase
from firstbad.drift import compare
from firstbad.errors import EXIT_REFERENCE, EXIT_USAGE
from firstbad.finding import FILE, CaseResult, Finding, GateResult, InputRun, Kind
from firstbad.machine import differences, environment
from firstbad.measured import pool
from firstbad.result import FaultResult
from firstbad.statement import number, times
from firstbad.trial import Trial, Tried, inputs_of, run

Tell = Callable[[str], None]

_BY_CODE: dict[int, Kind] = {EXIT_USAGE: "usage", EXIT_REFERENCE: "reference"}


def gate(
    config: Config,
    cases: Sequence[GateCase],
    folder: Path,
    *,
    inputs: int | None = None,
    jobs: int | None = None,
    command: str = "",
    today: datetime.date | None = None,
    tell: Tell = lambda _: None,
) -> GateResult:
    """Runs the cases and judges them; gate.json and the traces of faults land in `folder`."""
    started = datetime.datetime.now(datetime.UTC)
    known = {case.name: baselines.read(config.baselines / case.file) for case in cases}
    accepted = waivers.read(config.baselines)
    folder.mkdir(parents=True, exist_ok=True)
    trials = {
        case.name: [
            Trial(
                case,
                name,
                config.folder,
                folder.resolve() / case.name / _safe(name),
                expected=_tokens(known[case.name], name),
            )
            for name in inputs_of(case, config.folder, inputs)
        ]
        for case in cases
    }
    done = run_all([trial for many in trials.values() for trial in many], jobs, tell)
    results = []
    for case in cases:
        tried = explained(trials[case.name], [done[trial.folder] for trial in trials[case.name]], tell)
        judged = judge(case, tried, known[case.name], accepted, today or waivers.today())
        again = shlex.join(["firstbad", "gate", case.name, "--config", os.path.relpath(config.path)])
        results.append(replace(judged, command=again))
    result = GateResult(
        tuple(results),
        root=str(config.folder),
        command=command,
        started=started.isoformat(timespec="seconds"),
        commit=commit_of(config.folder),
        unused=unused(config),
        extra={"config": config.path.name},
    )
    (folder / FILE).write_text(result.to_json() + "\n", "utf-8")
    return result


def _tokens(baseline: Baseline | None, name: str) -> tuple[int, ...] | None:
    record = baseline.input(name) if baseline else None
    return record.tokens if record else None


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def run_all(trials: Sequence[Trial], jobs: int | None, tell: Tell) -> dict[Path, Tried]:
    """Every trial by its folder, several at a time in processes of their own where cores allow."""
    cores = len(os.sched_getaffinity(0))
    jobs = min(jobs or cores, len(trials))
    if jobs <= 1:
        found = {}
        for n, trial in enumerate(trials):
            tell(f"{trial.case.name} {trial.input} ({n + 1} of {len(trials)})")
            found[trial.folder] = run(trial)
        return found
    share = max(1, cores // jobs)
    shared = [replace(trial, torch_threads=share) for trial in trials]
    # spawned, not forked: PyTorch's threads do not survive a fork
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as workers:
        waiting = {workers.submit(run, trial): trial for trial in shared}
        found = {}
        try:
            for n, future in enumerate(as_completed(waiting), 1):
                trial = waiting[future]
                found[trial.folder] = future.result()
                tell(f"{trial.case.name} {trial.input} ({n} of {len(trials)})")
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise
        return found


def explained(trials: Sequence[Trial], tried: Sequence[Tried], tell: Tell) -> list[Tried]:
    """The same, with the cause searched for in the first trial that shows each fault."""
    done = list(tried)
    known: set[str] = set()
    for n, (trial, one) in enumerate(zip(trials, tried, strict=True)):
        unknown = {fault.value for fault in one.faults if fault.cause.kind == "unknown"} - known
        known |= {fault.value for fault in one.faults}
        if unknown and trial.case.budget > 0:
            tell(f"{trial.case.name} {trial.input}: searching for the cause")
            again = run(replace(trial, budget=trial.case.budget, unprobed=False))
            if again.error is None:
                done[n] = replace(again, findings=one.findings)
    return done


def judge(
    case: GateCase,
    tried: Sequence[Tried],
    baseline: Baseline | None,
    accepted: Sequence[waivers.Waiver],
    today: datetime.date,
) -> CaseResult:
    """One case's findings from its trials and its baseline."""
    ran = [one for one in tried if one.error is None]
    rows = pool(one.sites for one in ran)
    here = environment(case.candidate, case.options, case.environment)
    found = [*_failures(tried), *_faults(case, ran, accepted, today), *_together(ran)]
    if baseline is None:
        words = f"there is no baseline of case {case.name}: make it with `firstbad accept {case.name}`"
        found.append(Finding("usage", words))
    elif ran:
        found += _against(case, baseline, ran, here, found)
    if any(f.red for f in found):  # of a broken run nothing is better
        found = [f for f in found if f.kind != "improved"]
    place = {row.key: n for n, row in enumerate(rows)}
    found.sort(key=lambda f: (not f.red, f.kind != "fault", place.get((f.step.partition(".")[0], f.value), len(place))))
    return CaseResult(
        name=case.name,
        model=next((one.model for one in ran), case.spec.model),
        candidate=case.candidate,
        findings=tuple(found),
        inputs=tuple(InputRun(t.input, t.verdict, t.tokens, t.text, t.seconds, t.folder) for t in tried),
        rows=rows,
        environment=here,
        repeats=baseline.repeats if baseline else 0,
        command="",
        seconds=sum(sum(one.seconds.values()) for one in tried),
        references_cached=sum(one.cached for one in tried),
    )


def _against(
    case: GateCase, baseline: Baseline, ran: Sequence[Tried], here: dict[str, str], found: Iterable[Finding]
) -> Iterator[Finding]:
    first = ran[0]
    if first.weights != baseline.weights:
        yield Finding("weights", f"the weights are not the baseline's ({first.model}): accept them or put them back")
    if first.weights_compared < baseline.weights_compared:
        lost = f"{first.weights_compared} weights were compared, {baseline.weights_compared} in the baseline"
        yield Finding("coverage", lost)
    if baseline.reads_checked and not all(one.reads_checked for one in ran):
        yield Finding("coverage", "the engine's reads are not checked any more")
    for one in ran:
        record = baseline.input(one.input)
        if record is None:
            yield Finding("new", f"the input {one.input} is not in the baseline", inputs=(one.input,))
        elif record.hash != one.hash:
            yield Finding("input", f"{one.input} is not the recording of the baseline", inputs=(one.input,))
    changes = differences(baseline.environment, here)
    for words in changes:
        yield Finding("environment", words)
    skipped = {(f.step.partition(".")[0], f.value) for f in found if f.kind in ("fault", "waived")}
    for one in ran:  # an error on numbers that a fault has spoilt is no error of the baseline's kind
        skipped |= one.damage
    yield from compare(
        baseline,
        pool(one.sites for one in ran),
        growth=case.growth,
        tolerances=case.tolerances,
        differs=bool(changes),
        others=_others(baseline, ran),
        # of a run that died what is missing has been said
        partial=any(one.verdict == "incomplete" for one in ran) or bool(case.options.steps),
        skipped=frozenset(skipped),
    )


def _others(baseline: Baseline, ran: Sequence[Tried]) -> frozenset[str]:
    """Groups of steps that saw another history than the baseline's: all that decodes, once a token differs."""
    records = [(baseline.input(one.input), one.tokens) for one in ran]
    same = all(record is not None and record.tokens == tokens for record, tokens in records)
    return frozenset() if same else frozenset({"decode"})


def _failures(tried: Sequence[Tried]) -> Iterator[Finding]:
    """Trials that could not be made, alike ones together."""
    messages: dict[tuple[int, str], list[str]] = {}
    for one in tried:
        if one.error is not None:
            messages.setdefault(one.error, []).append(one.input)
    for (code, message), names in messages.items():
        kind: Kind = _BY_CODE.get(code, "incomplete")
        yield Finding(kind, message, inputs=tuple(names))


def _together(ran: Sequence[Tried]) -> Iterator[Finding]:
    """What was found for single inputs, alike ones together; of several messages the first stands."""
    kinds: dict[str, list[Finding]] = {}
    for one in ran:
        for finding in one.findings:
            kinds.setdefault(finding.kind, []).append(finding)
    for many in kinds.values():
        names = tuple(name for finding in many for name in finding.inputs)
        more = f" ({names[0]}; {_share(names, ran)})" if len(ran) > 1 else ""
        yield replace(many[0], message=f"{many[0].message}{more}", inputs=names)


def _share(names: Sequence[str], ran: Sequence[Tried]) -> str:
    return f"in {len(names)} of {len(ran)} inputs"


def _faults(
    case: GateCase, ran: Sequence[Tried], accepted: Sequence[waivers.Waiver], today: datetime.date
) -> Iterator[Finding]:
    """Faults by value, each with the share of inputs in which it shows; a waived one is told and fails nothing."""
    shown: dict[str, list[tuple[str, FaultResult]]] = {}
    for one in ran:
        for fault in one.faults:
            shown.setdefault(fault.value, []).append((one.input, fault))
    for value, many in shown.items():
        names = tuple(name for name, _ in many)
        fault = next((f for _, f in many if f.cause.kind != "unknown"), many[0][1])
        finding = _fault(fault, names, f"; shows {_share(names, ran)}" if len(ran) > 1 else "")
        waiver = next((w for w in accepted if w.covers(case.name, value)), None)
        if waiver is None:
            yield finding
        elif waiver.expired(today):
            yield replace(finding, message=f"{finding.message}; its waiver ran out on {waiver.until} ({waiver.reason})")
        else:
            words = f"{finding.message}; waived until {waiver.until}: {waiver.reason}"
            yield replace(finding, kind="waived", message=words)
    for waiver in accepted:
        if waiver.covers(case.name, waiver.fault) and not any(waiver.covers(case.name, value) for value in shown):
            yield Finding("note", f"the waiver of {waiver.fault} covers nothing any more: {waiver.reason}")


def _fault(fault: FaultResult, names: tuple[str, ...], share: str) -> Finding:
    source = f", {fault.source}" if fault.source.file else ""
    where = f" in {fault.where}" if fault.where else ""
    message = (
        f"{fault.value} ({fault.step}), op {fault.op}{source}: local error {number(fault.local_error)}{where}, "
        f"{times(fault.times_noise)}{share}"
    )
    worst = ""
    if fault.worst is not None:
        w = fault.worst
        worst = f"element {list(w.index)}: candidate {w.candidate:.9g}, expected {w.expected:.9g} ({w.ulp:,.0f} ulp)"
    return Finding(
        "fault",
        message,
        fault.value,
        fault.step,
        fault.source.file,
        fault.source.line,
        f"{fault.cause.kind}: {fault.cause.statement}",
        worst,
        fault.times_noise,
        names,
    )


def unused(config: Config) -> tuple[str, ...]:
    """Baselines that no case of the configuration uses."""
    own = {case.file for case in config.cases} | {waivers.FILE}
    found = config.baselines.glob("*.jsonl") if config.baselines.is_dir() else ()
    return tuple(sorted(path.name for path in found if path.name not in own))


def commit_of(folder: Path) -> str:
    """The commit that is checked out; "" outside a repository."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
