"""compare: two traces in, one result out. The way of the data in one function: align, measure, localise, explain.

Needs no engine, only the files and something that can execute the reference's ops. Leaves out text for people but for
the statement of a cause (statement.py) and every form of report (reports/).
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import firstbad
from firstbad.alignment import Alignment, align
from firstbad.answers import only_near_ties, outputs_of
from firstbad.arithmetic import as_recorded
from firstbad.benign import Benign, benign
from firstbad.benign import words as benign_words
from firstbad.cause import BUDGET, Case, Cause
from firstbad.cause_words import cause_statement
from firstbad.causes import causes, not_searched
from firstbad.faults import Fault, Localised, localise
from firstbad.graph import READ_CHANGED, READ_OK, READ_UNWRITTEN, Value
from firstbad.joined import with_joins
from firstbad.judge import distance
from firstbad.local import Local, giver, measure
from firstbad.places import where
from firstbad.precision import as_candidate
from firstbad.profile import AsDeclared, Profile, as_declared
from firstbad.realign import Measured, realigned
from firstbad.region import replay_region
from firstbad.relabel import words as relabel_words
from firstbad.replay import Executor
from firstbad.result import (
    CauseResult,
    Coverage,
    FaultResult,
    Input,
    Outcome,
    Result,
    SiteResult,
    Source,
    Worst,
)
from firstbad.sampling import unshadowed
from firstbad.stale import blurred, stale, without
from firstbad.stale import words as stale_words
from firstbad.statement import number, unravel
from firstbad.ties import near_ties
from firstbad.weights import Weights, compare_weights

if TYPE_CHECKING:
    from firstbad.mapfile import Mapped
    from firstbad.trace import Trace


@dataclass(frozen=True)
class Comparison:
    """A result, and the records it was made from (for reports that draw values)."""

    result: Result
    local: Local
    localised: Localised
    alignment: Alignment
    explained: tuple[tuple[Case, Cause], ...] = ()  # of each fault, in their order


@dataclass
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.at
        self.at = now


def compare(
    reference: Trace,
    candidate: Trace,
    executor: Executor,
    *,
    budget: float = BUDGET,
    mapped: Mapped | None = None,
    profile: Profile | None = None,
    command: str = "",
    judged: Callable[[Value], bool] = lambda _: True,
    screening: bool = True,
    notes: Iterable[str] = (),
    timings: Mapping[str, float] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Aligns, measures, localises and explains. `budget`: seconds of search for the cause of one fault; `judged`: of
    these values only, the others are there for those that read them; `screening`: large values that pass are measured
    on a sample of their rows (screen.py).
    """
    clock = _Clock()
    late = stale(candidate)
    candidate = without(candidate, late)
    alike = partial(
        align, reference.graph, candidate.graph, reference.array, candidate.array, executor=executor, mapped=mapped
    )
    alignment = alike()
    blurs = blurred(candidate.graph, late, alignment.by_candidate)
    weights = compare_weights(reference, candidate, executor.weight)
    clock.lap("align")

    def measured(aligned: Alignment, *, declared: bool = True) -> Measured:
        """The candidate with what is put together, judged against what it rounds and, if so, what its profile says."""
        own = with_joins(candidate, aligned.joins)
        rounding = as_recorded(as_candidate(executor, reference.graph, own.graph, aligned), own.graph)
        used = as_declared(rounding, profile, aligned, reference, own) if declared else rounding
        local = measure(
            reference,
            own,
            aligned,
            used,
            judged=lambda v: judged(v) and aligned.by_reference[v.id].candidate.id not in blurs,
            progress=lambda name: progress(f"replay {name}"),
            screening=screening,
        )
        return Measured(aligned, own, used, local)

    found = measured(alignment)
    refused = _refused(found.executor, found.local)
    if refused:
        found = measured(alignment, declared=False)
    found = realigned(
        found, reference, partial(measured, declared=not refused), lambda ids: alike(distrusted=ids), mapped is not None
    )
    alignment, candidate, executor, local = found.alignment, found.candidate, found.executor, found.local
    local = unshadowed(local, reference.graph)
    clock.lap("replay")
    localised, harmless = _localised(local, reference, candidate, alignment, executor)
    localised = _approximations(executor, local, localised)
    explained = causes(
        localised.faults, reference, candidate, alignment, local, executor, budget=budget, progress=progress
    )
    clock.lap("explain")
    faults = tuple(
        _fault_result(fault, case, cause, localised, reference)
        for fault, (case, cause) in zip(localised.faults, explained, strict=True)
    )
    coverage = _coverage(reference, candidate, alignment, local, weights)
    outputs = outputs_of(reference, candidate, local)
    result = Result(
        verdict=_verdict(faults, candidate, outputs, local, localised),
        first_bad=faults[0] if faults else None,
        faults=faults,
        damage=tuple(j.name for j in local.values if localised.verdicts[j.pair.reference.id] == "victim"),
        values=_columns(local, localised),
        outputs=outputs,
        coverage=coverage,
        stage=_stage(coverage, faults, outputs),
        notes=(
            *notes,
            *candidate.outputs.get("notes", ()),
            *stale_words(candidate, late, len(blurs)),
            *_notes(alignment, weights),
            *_inputs_apart(local, alignment, reference, candidate),
            *_own_choices(outputs),
            *_drift(localised),
            *benign_words(harmless, number),
            *_followed(reference),
            *not_searched(explained),
            *refused,
            *getattr(executor, "words", ()),
        ),
        environment=environment(reference, candidate),
        timings={**(timings or {}), **clock.seconds},
        files={"reference": str(reference.path), "candidate": str(candidate.path)},
        command=command,
        death=candidate.death,
        extra={"drift": [asdict(block) for block in localised.drift]} if localised.drift else {},
    )
    return Comparison(result, local, localised, alignment, tuple(explained))


def _refused(executor: Executor, local: Local) -> list[str]:
    """Why the profile does not count: a declared op whose values are not what was declared."""
    if not isinstance(executor, AsDeclared):
        return []
    wrong = [j for j in local.values if j.bad and executor.declared(j.op) is not None]
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"the profile of {executor.profile.engine} is refused: {first.name} of {first.step} is not what it declares "
        f"(off by {number(first.sums.local_error)})" + (f", nor are {len(wrong) - 1} more" if len(wrong) > 1 else "")
    ]


def _approximations(executor: Executor, local: Local, localised: Localised) -> Localised:
    """Values of declared ops are approximations, and neither clean nor at fault."""
    if not isinstance(executor, AsDeclared):
        return localised
    verdicts = dict(localised.verdicts)
    for j in local.values:
        if executor.sizes.get((j.step, j.name), 0) > 0 and not j.bad:
            verdicts[j.pair.reference.id] = "approximation"
    return replace(localised, verdicts=verdicts)


def _drift(localised: Localised) -> Iterable[str]:
    """Where the errors of a run that drifts come from."""
    if localised.drift:
        most = max(localised.drift, key=lambda block: block.added)
        yield (
            f"drift: the usual value is noisier than a clean engine's; {most.name} adds most, {number(most.added)} "
            f"where {number(most.allowed)} would be noise ({most.floors:.1f} noise floors)"
        )


def _followed(reference: Trace) -> Iterable[str]:
    """Where the candidate chose otherwise than the reference would have on its own numbers."""
    ops = [op for op in reference.graph.ops if op.attrs.get("followed")]
    if ops:
        yield (
            f"{len(ops)} choices of a top-k are the candidate's, the reference's own would be others; first "
            f"{ops[0].name} of {ops[0].step}"
        )


def _localised(
    local: Local, reference: Trace, candidate: Trace, alignment: Alignment, executor: Executor
) -> tuple[Localised, list[Benign]]:
    ties = near_ties(local, reference, candidate, alignment, executor)
    localised = localise(local, alignment, reference.graph, candidate.graph, ties)
    given = giver(reference, candidate, alignment)
    found = benign(localised.faults, local, alignment, reference, candidate, executor, given)
    if found:
        harmless = frozenset[int]().union(*(b.values for b in found))
        localised = localise(local, alignment, reference.graph, candidate.graph, ties, harmless)
    return localised, found


def _notes(alignment: Alignment, weights: Weights) -> Iterable[str]:
    if alignment.words:
        yield alignment.words
    yield from relabel_words(alignment)
    yield from (f"{w.name} of the candidate: {w.reason}" for w in weights.differ if w.reason)


def _own_choices(outputs: Mapping[str, Any]) -> Iterable[str]:
    for one in outputs.get("own_choices", ()):
        yield (
            f"token {one['token']} is the engine's own choice: its scores follow from values that round as replayed, "
            f"{number(one['scores_apart'])} from the reference's, whose two are {number(one['gap'])} apart"
        )


def _inputs_apart(local: Local, alignment: Alignment, reference: Trace, candidate: Trace) -> Iterable[str]:
    """How far an input of numbers is from the reference's: engines compute features of sound themselves."""
    for pair in alignment.pairs:
        value = pair.reference
        if value.kind == "input" and "float" in value.dtype and not local.inputs.get((value.step, value.name), True):
            apart, _ = distance(pair.layout.apply(candidate.array(pair.candidate)), reference.array(value))
            yield f"{value.name} of {value.step} is the engine's own: off by {number(apart)} from the reference's"


def _fault_result(fault: Fault, case: Case, cause: Cause, localised: Localised, reference: Trace) -> FaultResult:
    first = fault.first
    worst = first.worst
    candidate_op = case.op
    return FaultResult(
        value=fault.name,
        step=first.step,
        op=first.op.kind.removeprefix("aten.").partition(".")[0],
        source=Source(candidate_op.file, candidate_op.line) if candidate_op else Source(),
        inputs=tuple(_inputs(case)),
        local_error=first.sums.local_error,
        kernel_error=cause.reproduces_to if cause.kind in ("wrong_input", "clobbered", "stale") else None,
        noise_floor=first.noise_floor,
        times_noise=worst.ratio,
        cumulative_error=first.cumulative,
        test=worst.test,
        where=where(first),
        worst=_worst(case, reference),
        cause=CauseResult(
            cause.kind,
            cause_statement(cause.kind, fault.name, cause.detail),
            cause.detail,
            cause.reproduces_to,
            tuple({"kind": a.kind, "detail": a.detail, "reproduces_to": a.reproduces_to} for a in cause.alternatives),
            cause.tried,
        ),
        verdict=localised.verdicts[first.pair.reference.id],
        sites=tuple(
            SiteResult(s.step, s.sums.local_error, s.noise_floor, s.worst.ratio, s.cumulative) for s in fault.sites
        ),
        damage=tuple(reference.graph.values[i].name for i, source in localised.damage.items() if source == fault.name),
    )


def _inputs(case: Case) -> Iterable[Input]:
    for value_id in case.region.inputs:
        value = case.reference.graph.values[value_id]
        pair = case.alignment.by_reference.get(value_id)
        if pair is None:
            continue
        error, _ = distance(pair.layout.apply(case.candidate.array(pair.candidate)), case.reference.array(value))
        yield Input(value.name, value.step, error, error <= max(case.judged.cumulative_limit, 1e-5))


def _worst(case: Case, reference: Trace) -> Worst | None:
    """The worst element by the test that failed; expected is what the op should have given."""
    sums = case.judged.sums
    index = sums.first_bad if sums.first_bad >= 0 else sums.element_index
    shape = case.judged.pair.reference.shape
    if index < 0:
        return None
    at = unravel(index, shape)
    expected = replay_region(reference.graph, case.region, case.executor, case.given).expected[at]
    own = case.own()[at]
    theirs = reference.array(case.judged.pair.reference)[at]
    within = np.isfinite(expected) and abs(expected) < np.finfo(np.float32).max
    spacing = float(np.spacing(np.float32(abs(expected)))) if within else 1.0
    ulp = abs(float(own) - float(expected)) / spacing
    return Worst(at, float(expected), float(own), float(theirs), ulp)


def _columns(local: Local, localised: Localised) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "step name op shape dtype verdict local_error noise_floor times_noise cumulative_error test region_length"
        ).split()
    }
    for j in local.values:
        row = (
            j.step,
            j.name,
            j.op.kind.removeprefix("aten.").partition(".")[0],
            list(j.pair.reference.shape),
            j.pair.candidate.dtype,
            localised.verdicts[j.pair.reference.id],
            j.sums.local_error,
            j.noise_floor,
            j.worst.ratio,
            j.cumulative,
            j.worst.test,
            j.length,
        )
        for column, entry in zip(columns.values(), row, strict=True):
            column.append(entry)
    return columns


def _coverage(reference: Trace, candidate: Trace, alignment: Alignment, local: Local, weights: Weights) -> Coverage:
    compared: dict[str, int] = {}
    for judged in local.values:
        group = judged.step.partition(".")[0]
        compared[group] = compared.get(group, 0) + 1
    states = [read.state for op in candidate.graph.ops for read in op.reads]
    return Coverage(
        compared=compared,
        candidate_values=sum(v.kind in ("value", "input") for v in candidate.graph.values),
        reference_values=sum(v.kind in ("value", "input") for v in reference.graph.values),
        only_reference=tuple((u.value.step, u.value.name, u.reason) for u in alignment.only_reference),
        only_candidate=tuple((u.value.step, u.value.name, u.reason) for u in alignment.only_candidate),
        inputs_equal=sum(local.inputs.values()),
        inputs_differ=tuple(key for key, equal in local.inputs.items() if not equal),
        weights_compared=weights.compared,
        weights_differ=tuple(w.name for w in weights.differ),
        edges_checked=sum(s in (READ_OK, READ_CHANGED, READ_UNWRITTEN) for s in states),
        edges_changed=sum(s in (READ_CHANGED, READ_UNWRITTEN) for s in states),
    )


def _verdict(
    faults: tuple[FaultResult, ...],
    candidate: Trace,
    outputs: dict[str, Any],
    local: Local,
    localised: Localised,
) -> Outcome:
    if faults:
        return "diverged"
    if not candidate.complete or not local.values:
        return "incomplete"
    if outputs.get("prompt", {}).get("first_differing", -1) >= 0:
        return "diverged"
    near_tie = only_near_ties(outputs) or "near-tie" in localised.verdicts.values()
    if outputs["first_differing_token"] >= 0 and not near_tie:
        return "diverged"
    return "match"


def _stage(coverage: Coverage, faults: tuple[FaultResult, ...], outputs: Mapping[str, Any]) -> str:
    """The first stage that differs, in the order in which a run goes."""
    if outputs.get("prompt", {}).get("first_differing", -1) >= 0:
        return "tokens"
    # decoder ids are chosen by the candidate and given to both; only what comes from outside can differ at the input
    if coverage.inputs_differ:
        return "input"
    if coverage.weights_differ:
        return "weights"
    if faults:
        return "values"
    return "choice" if outputs["first_differing_token"] >= 0 else ""


def environment(reference: Trace, candidate: Trace) -> dict[str, Any]:
    """What ran, for the record: versions, machine, engines."""
    return {
        "firstbad": firstbad.__version__,
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "reference": dict(reference.meta),
        "candidate": dict(candidate.meta),
    }
