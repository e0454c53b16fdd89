"""Prove by patching: the reference's value heals the candidate, the cause's edit breaks the reference alike.

`heal` runs the candidate once more with values of the reference put in place through the header's replacement call, and
looks at what comes after. `break_alike` runs the recorded reference with the edit of each cause in the place of its op
and looks whether the candidate's values come out. Leaves out whether the run of the reference is right.
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import Alignment
from firstbad.case import Case, case_of
from firstbad.cause import Cause, judge_edit, score_of
from firstbad.edit import Edit
from firstbad.edits import EDITS
from firstbad.errors import CompareError
from firstbad.faults import Fault
from firstbad.graph import Value
from firstbad.joined import with_joins
from firstbad.judge import distance
from firstbad.layout import Layout
from firstbad.local import CUMULATIVE_FLOOR, giver
from firstbad.region import Region, run_region
from firstbad.replay import MASKED, Executor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.comparison import Comparison
    from firstbad.evidence import Evidence
    from firstbad.trace import Trace

ALIKE = 1e-4
"""Relative distance under which two runs of float32 that went the same wrong way count as the same."""


# ---- the reference's value in the candidate ----


def can_inject(adapter: ModuleType) -> bool:
    """Whether a kind of candidate takes values through the header's replacement call."""
    return "replace" in inspect.signature(adapter.capture).parameters


def injector(
    reference: Trace, alignment: Alignment, patterns: Sequence[str]
) -> Callable[[str, str, NDArray[Any]], NDArray[Any] | None]:
    """(step, name, what the engine wrote) → the reference's value in the engine's order, of what the patterns name."""
    partner = _partners(alignment)
    keys = reference.graph.by_key

    def replace(step: str, name: str, own: NDArray[Any]) -> NDArray[Any] | None:
        if name not in partner or not any(matches(p, step, name) for p in patterns):
            return None
        reference_name, layout = partner[name]
        value = keys.get((step, reference_name))
        if value is None or not reference.stored(value):
            return None
        array = reference.array(value)
        if layout is not None and array.shape == layout.shape:
            array = layout.undo(array)
        if array.size != own.size:
            return None
        return np.ascontiguousarray(array.reshape(own.shape), own.dtype)

    return replace


def matches(pattern: str, step: str, name: str) -> bool:
    """As the header has it: a pattern with a slash is step/name, one without is a name in any step."""
    return fnmatch.fnmatchcase(f"{step}/{name}" if "/" in pattern else name, pattern)


def _partners(alignment: Alignment) -> Mapping[str, tuple[str, Layout | None]]:
    """Candidate's name → the reference's name, and the layout where every step has the same."""
    found: dict[str, tuple[str, Layout | None]] = {}
    for pair in alignment.pairs:
        plain = not pair.layout.part
        if plain:
            changed = pair.layout if pair.layout.axes or pair.layout.order else None
            found.setdefault(pair.candidate.name, (pair.reference.name, changed))
    return found


def healed(
    free: Trace, healed_trace: Trace, comparison: Comparison, injected: Sequence[str], before: int
) -> dict[str, Any]:
    """How the run with injected values compares with the reference's own run."""
    limits = _limits(comparison)
    partner = _partners(comparison.alignment)
    off: list[tuple[float, str, str]] = []
    compared = 0
    for value in healed_trace.graph.values:
        put_in = any(matches(p, value.step, value.name) for p in injected)
        if value.kind != "value" or value.name not in partner or put_in:
            continue
        other = free.graph.by_key.get((value.step, partner[value.name][0]))
        if other is None or not (free.stored(other) and healed_trace.stored(value)):
            continue
        layout = partner[value.name][1]
        own = healed_trace.array(value)
        own = layout.apply(own) if layout is not None else own
        if own.size != free.array(other).size:
            continue
        compared += 1
        error = apart(own.reshape(other.shape), free.array(other))
        if not error <= max(limits.get(other.name, 0.0), ALIKE):
            off.append((error, value.step, value.name))
    ours, theirs = list(free.outputs.get("tokens", ())), list(healed_trace.outputs.get("tokens", ()))
    return {
        "injected": list(injected),
        "compared": compared,
        "off_before": before,
        "off_after": len(off),
        "worst_after": max(off)[0] if off else 0.0,
        "first_off": list(off[0][1:]) if off else [],
        "tokens": theirs,
        "text": str(healed_trace.outputs.get("text", "")),
        "transcript_equal": ours == theirs,
        "heals": not off and ours == theirs,
    }


def apart(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Relative distance of two arrays; integers are equal (0) or not (1); masked scores count as one number."""
    if not np.issubdtype(b.dtype, np.floating):
        return float(not np.array_equal(a, b))
    x, y = (np.where(v <= -MASKED, np.float32(0), v).astype(np.float32) for v in (a, b))
    if np.array_equal(a <= -MASKED, b <= -MASKED):
        return distance(x, y)[0]
    return float("inf")


def _limits(comparison: Comparison) -> Mapping[str, float]:
    limits: dict[str, float] = {}
    for judged in comparison.local.values:
        limits[judged.name] = max(limits.get(judged.name, CUMULATIVE_FLOOR), judged.cumulative_limit)
    return limits


# ---- the cause's edit in the reference ----


@dataclass
class _Reference:
    """The recorded reference, computed again from where an edit reaches; everything else is read from the trace."""

    trace: Trace
    executor: Executor
    changed: dict[int, NDArray[Any]] = field(default_factory=dict)
    kept: dict[int, NDArray[Any]] = field(default_factory=dict)  # views and what is not stored

    def array(self, value_id: int) -> NDArray[Any]:
        for known in (self.changed, self.kept):
            if value_id in known:
                return known[value_id]
        value = self.trace.graph.values[value_id]
        if value.kind == "weight":
            return self.executor.weight(value.name)
        if self.trace.stored(value):
            return self.trace.array(value)
        if value.op < 0:
            raise CompareError(
                f"`{value.name}` of {value.step} is not in `{self.trace.path}`: capture it with all steps"
            )
        op = self.trace.graph.ops[value.op]
        made = self.executor.run(op, self._inputs(op.reads), "float32")
        self.kept.update(zip(op.writes, made, strict=True))
        return self.kept[value_id]

    def _inputs(self, reads: Iterable[Any]) -> dict[int, NDArray[Any]]:
        ids = {r.value for r in reads if r.value >= 0}
        return {i: self.array(i) for i in ids if self.trace.graph.values[i].kind != "weight"}

    def run(self, sites: Mapping[int, tuple[Region, Edit]]) -> Iterator[Value]:
        """Every value that comes out otherwise than recorded, in order."""
        graph = self.trace.graph
        for op in graph.ops:
            site = next((sites[w] for w in op.writes if w in sites), None)
            if site is not None:
                region, edit = site
                inputs = frozenset(region.inputs)

                def given(value: Value, inputs: frozenset[int] = inputs) -> NDArray[Any] | None:
                    own = value.id in inputs or value.kind == "constant"
                    return self.array(value.id) if own else None

                self.changed[region.value.id] = run_region(graph, region, self.executor, given, edit)
                yield region.value
            elif any(r.value in self.changed for r in op.reads):
                made = self.executor.run(op, self._inputs(op.reads), "float32")
                self.changed.update(zip(op.writes, made, strict=True))
                yield from (graph.values[w] for w in op.writes)


def break_alike(comparison: Comparison, reference: Trace, candidate: Trace) -> dict[str, Any]:
    """The reference with every cause's edit, against the candidate."""
    candidate = with_joins(candidate, comparison.alignment.joins)
    sites: dict[int, tuple[Region, Edit]] = {}
    edited: list[str] = []
    left_out: list[str] = []
    for fault, (case, cause) in zip(comparison.localised.faults, comparison.explained, strict=True):
        found = dict(_sites(fault, case, cause, comparison.alignment))
        sites.update(found)
        (edited if len(found) == len(fault.sites) else left_out).append(fault.name)
    if not sites:
        return {"edited": [], "left_out": left_out, "compared": 0, "alike": 0, "worst": 0.0, "breaks_alike": False}
    executor = comparison.explained[0][0].executor
    again = _Reference(reference, executor)
    compared, alike, worst, first = 0, 0, 0.0, ""
    limits = _limits(comparison)
    stop = _first_untouched(comparison, sites)
    for value in again.run(sites):
        pair = comparison.alignment.by_reference.get(value.id)
        if stop is not None and value.step == stop:
            break  # from here on a site that could not be edited would show
        if pair is None or pair.reference.kind != "value" or not candidate.stored(pair.candidate):
            continue
        compared += 1
        error = apart(pair.layout.apply(candidate.array(pair.candidate)), again.changed[value.id])
        if error <= max(ALIKE, limits.get(value.name, 0.0)):
            alike += 1
        elif not first:
            first = f"{value.step}/{value.name}"
        worst = max(worst, error)
    return {
        "edited": edited,
        "left_out": left_out,
        "compared": compared,
        "alike": alike,
        "worst": worst,
        "first_other": first,
        "until": stop or "",
        "breaks_alike": compared > 0 and alike == compared,
    }


def _first_untouched(comparison: Comparison, sites: Mapping[int, object]) -> str | None:
    """The first step in which a fault shows that has no edit."""
    bare = [s for f in comparison.localised.faults for s in f.sites if s.pair.reference.id not in sites]
    first = min(bare, key=lambda s: s.pair.reference.id, default=None)
    return first.step if first is not None else None


def _sites(fault: Fault, case: Case, cause: Cause, alignment: Alignment) -> Iterator[tuple[int, tuple[Region, Edit]]]:
    """The cause's edit at every site of its fault: the one that was found, and those of the same words elsewhere."""
    if cause.edit is None:
        return
    yield case.region.value.id, (case.region, cause.edit)
    given = giver(case.reference, case.candidate, alignment)
    for site in fault.sites[1:]:
        other = case_of(site, case.reference, case.candidate, alignment, case.executor, given, case.pools)
        edit = _same_edit(other, cause.edit)
        if edit is not None:
            yield other.region.value.id, (other.region, edit)


def _same_edit(case: Case, known: Edit) -> Edit | None:
    for make in EDITS:
        try:
            for edit in make(case):
                if edit.key == known.key and score_of(case, edit).promising and judge_edit(case, edit)[1]:
                    return edit
        except CompareError:  # a shape that does not fit: no such edit here
            continue
    return None


def confirm(comparison: Comparison, session: Evidence, patterns: Sequence[str]) -> dict[str, Any]:
    """Both proofs as plain data; `patterns`: what is put in place, by default the value of every fault."""
    names = [fault.name for fault in comparison.localised.faults]
    chosen = list(patterns) or _candidate_names(comparison)
    said: dict[str, Any] = {"faults": names}
    if not can_inject(session.adapter):
        said["heal"] = {"why": "this kind of candidate cannot be given values: build it with firstbad.h"}
    elif chosen:
        session.tell("confirm: the reference's values in the candidate")
        with session.scratch() as scratch, session.free_reference(scratch) as free:
            replace = injector(free, comparison.alignment, chosen)
            with session.again(scratch / "healed.h5", replace=replace, replaced=chosen) as after:
                off = len(comparison.localised.damage) + sum(len(f.sites) for f in comparison.localised.faults)
                said["heal"] = healed(free, after, comparison, chosen, off)
    if names:
        session.tell("confirm: the cause in the reference")
        said["break"] = break_alike(comparison, session.reference_trace, session.candidate_trace)
    return said


def _candidate_names(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(site.pair.candidate.name for f in comparison.localised.faults for site in f.sites))
