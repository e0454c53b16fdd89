"""The runs of a search: capture a little, judge it, capture inside what is wrong, until nothing is left in between.

What each run stored is merged into one pair of traces in the folder, beside the state of the search; a search that was
stopped takes up its finished runs again. Leaves out what is captured when (search.py, halving.py) and the engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from firstbad import search
from firstbad.alignment import Alignment, align, bears
from firstbad.cuts import nbytes
from firstbad.errors import CompareError
from firstbad.families import Names, proposals
from firstbad.graph import Graph, Value
from firstbad.local import Judged, Local, measure
from firstbad.merge import Key, changed, merge, stored_bytes
from firstbad.precision import as_candidate
from firstbad.replay import Executor
from firstbad.trace import Trace, open_trace

STATE = "bisect.json"
EVERYTHING = ("*",)
MOST_RUNS = 24


class Engines(Protocol):
    """Both engines on one input. `outline`: the reference's graph of a short run, with no arrays."""

    @property
    def executor(self) -> Executor: ...

    @property
    def tokens(self) -> int:
        """How many a run will give, as far as is known."""
        ...

    def outline(self) -> Graph: ...

    def candidate(self, path: Path, want: tuple[str, ...], stop: tuple[str, ...]) -> None: ...

    def reference(self, path: Path, want: tuple[str, ...], stop: tuple[str, ...], tokens: tuple[int, ...]) -> None: ...


@dataclass(frozen=True)
class Run:
    """One run of the candidate, and why it was made."""

    why: str
    want: tuple[str, ...]
    bytes: int
    changed: tuple[Key, ...] = ()  # values that this run made otherwise than the first


@dataclass
class Search:
    """A search under way; `runs` are those made or found again in the folder."""

    engines: Engines
    folder: Path
    budget: Callable[[float], float] | None  # bytes of a full capture → bytes that one run may take
    key: Mapping[str, Any]  # what the runs belong to: another model or candidate starts anew
    tell: Callable[[str], None]
    runs: list[Run] = field(default_factory=list)
    full_bytes: int = 0
    full_capture: bool = False  # the search gave up and captured everything
    left_out: set[Key] = field(default_factory=set)  # further sites of what is wrong: not looked into
    asked: set[Key] = field(default_factory=set)

    @property
    def reference_path(self) -> Path:
        return self.folder / "reference.h5"

    @property
    def candidate_path(self) -> Path:
        return self.folder / "candidate.h5"

    @property
    def path(self) -> Path:
        return self.folder / STATE

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)

    @property
    def unstable(self) -> tuple[Key, ...]:
        """Values that the candidate does not compute alike in every run."""
        return next((run.changed for run in self.runs if run.changed), ())

    def allowed(self) -> float | None:
        return None if self.budget is None else self.budget(self.full_bytes)

    def take_up(self) -> None:
        """The finished runs of a search for the same thing, if the folder holds one."""
        try:
            state = json.loads(self.path.read_text("utf-8"))
            same = state["key"] == json.loads(json.dumps(dict(self.key)))
            runs = [
                Run(r["why"], tuple(r["want"]), r["bytes"], tuple((s, n) for s, n in r["changed"]))
                for r in state["runs"]
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if same and self.reference_path.is_file() and self.candidate_path.is_file():
            self.runs = runs
            self.left_out = {(s, n) for s, n in state["left_out"]}
            self.asked = {(s, n) for run in runs for s, _, n in (w.partition("/") for w in run.want) if "*" not in s}
            self.full_capture = any(run.want == EVERYTHING for run in runs)

    def run(self, why: str, want: tuple[str, ...], stop: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())) -> None:
        """One run of each engine, merged into the traces of the folder.

        `stop`: the last value that is wanted of the candidate and of the reference.
        """
        number = len(self.runs)
        if number >= MOST_RUNS:
            raise CompareError(f"no end after {MOST_RUNS} runs: give a larger --budget, or use `firstbad diff`")
        self.tell(f"run {number + 1}: {why}")
        ours, theirs = self.folder / ".reference.h5", self.folder / ".candidate.h5"
        self.engines.candidate(theirs, want, stop[0])
        with open_trace(theirs) as trace:
            stored = stored_bytes(trace)
            tokens = tuple(int(t) for t in trace.outputs.get("tokens", ()))
        if number:
            with open_trace(self.candidate_path) as first:
                tokens = tuple(int(t) for t in first.outputs.get("tokens", ()))
        self.engines.reference(ours, self._names(want), stop[1], tokens)
        differing: tuple[Key, ...] = ()
        if number:
            with open_trace(self.candidate_path) as first, open_trace(theirs) as again:
                differing = tuple(changed(first, again))
            self._merged(ours, self.reference_path)
            self._merged(theirs, self.candidate_path)
        else:
            ours.replace(self.reference_path)
            theirs.replace(self.candidate_path)
        self.runs.append(Run(why, want, stored, differing))
        self._save()

    def _merged(self, extra: Path, onto: Path) -> None:
        with open_trace(onto) as first, open_trace(extra) as more:
            merge(first, more, onto.with_suffix(".merged"))
        onto.with_suffix(".merged").replace(onto)
        extra.unlink()

    def _save(self) -> None:
        state: dict[str, Any] = {"key": dict(self.key), "left_out": sorted(self.left_out)}
        state["runs"] = [asdict(run) for run in self.runs]
        part = self.folder / (STATE + ".part")
        part.write_text(json.dumps(state), "utf-8")
        part.replace(self.path)

    @contextmanager
    def traces(self) -> Iterator[tuple[Trace, Trace]]:
        with open_trace(self.reference_path) as ours, open_trace(self.candidate_path) as theirs:
            yield ours, theirs

    def judge(self, only: frozenset[int] | None = None) -> tuple[Local, Alignment]:
        """Everything captured so far judged by local replay; `only`: of these values of the reference."""
        with self.traces() as (ours, theirs):
            alignment = align(ours.graph, theirs.graph, ours.array, theirs.array)
            executor = as_candidate(self.engines.executor, ours.graph, theirs.graph, alignment)
            return measure(
                ours,
                theirs,
                alignment,
                executor,
                judged=lambda v: only is None or v.id in only,
                progress=lambda name: self.tell(f"judge {name}"),
            ), alignment

    def _names(self, want: tuple[str, ...]) -> tuple[str, ...]:
        """The reference's names for what is wanted of the candidate."""
        if not self.runs:
            return want
        own = {f"{s}/{n}": f"{v.step}/{v.name}" for v, (s, n) in self.partners().items()}
        return tuple(own.get(pattern, pattern) for pattern in want)

    def partners(self) -> dict[Value, Key]:
        """What the candidate calls the reference's values, by name or by a family's rule."""
        found: dict[Value, Key] = {}
        with self.traces() as (ours, theirs):
            names = Names(ours.graph)
            for value in theirs.graph.values:
                if not bears(value):
                    continue
                for name in (value.name, *proposals(value.name)):
                    meant = ours.graph.by_key.get((value.step, name)) or names.find(value.step, name)
                    if meant is not None and meant not in found:
                        found[meant] = (value.step, value.name)
                        break
        return found

    def graphs(self) -> tuple[Graph, Graph]:
        with self.traces() as (ours, theirs):
            return ours.graph, theirs.graph


def bisect(state: Search) -> tuple[Judged, ...]:
    """The values that are wrong given their own inputs, each with nothing more to be captured in between."""
    outline = state.engines.outline()
    repeats = search.steps_of(outline, state.engines.tokens)
    state.full_bytes = search.total_bytes(outline, repeats)
    state.take_up()
    if not state.runs:
        state.run("cuts", search.cuts(outline, repeats, state.allowed()))
    local, alignment = state.judge()
    if state.full_capture:
        return search.flagged(local.values)
    if not any(j for j in local.values if j.pair.reference.kind == "value"):
        return _everything(state, "the candidate has none of the reference's names")
    found = _follow(state, local, alignment)
    if found or state.unstable:
        return found
    hidden = next((j for j in local.values if j.cumulative_bad), None)
    if hidden is None:
        return ()
    found = _follow(state, local, alignment, (hidden,))
    return found or _everything(state, "the outputs differ and no segment is wrong by itself")


def _everything(state: Search, why: str) -> tuple[Judged, ...]:
    state.full_capture = True
    state.left_out.clear()
    state.run(f"everything, as {why}", EVERYTHING)
    local, _ = state.judge()
    return search.flagged(local.values)


def _follow(
    state: Search, local: Local, alignment: Alignment, bad: tuple[Judged, ...] | None = None
) -> tuple[Judged, ...]:
    """Runs inside the flagged segments until each flagged value has nothing left inside."""
    partners = state.partners()
    graph, theirs = state.graphs()
    by_id = {v.id: key for v, key in partners.items()}
    hashed = any(
        v.hash for v in theirs.values if v.kind == "value"
    )  # else what is flagged is stored again, to be compared
    lists_all = any(bears(v) and not v.dataset and v.same_as < 0 for v in theirs.values)

    def listed(value: Value) -> bool:
        key = by_id.get(value.id, (value.step, value.name))
        return key not in state.asked and (not lists_all or value.id in by_id)

    def flagged(local: Local) -> tuple[Judged, ...]:
        return search.flagged(j for j in local.values if (j.step, j.name) not in state.left_out)

    budget = state.allowed() or search.SHARE * state.full_bytes
    found: dict[Key, Judged] = {}
    suspects = flagged(local) if bad is None else bad
    while True:
        state.left_out |= {(j.step, j.name) for j in local.values if j.bad} - {(j.step, j.name) for j in suspects}
        held = set(alignment.by_reference)
        parts = search.segments(graph, suspects, held, listed)
        open_names = {part.judged.name for part in parts}
        found.update(((j.step, j.name), j) for j in suspects if j.bad and j.name not in open_names)
        if not parts or state.unstable:
            break
        state.tell(f"about {search.runs_left(parts, budget)} runs left")
        again = () if hashed else tuple({p.judged.pair.reference.id: p.judged.pair.reference for p in parts}.values())
        values = search.within(parts, max(budget - sum(map(nbytes, again)), 1.0))
        only = search.members(graph, parts, held)
        keys = [by_id.get(v.id, (v.step, v.name)) for v in values]
        state.asked.update(keys)
        keys += [by_id.get(v.id, (v.step, v.name)) for v in again]
        end = max((*values, *again), key=lambda v: v.id)
        last = _last(theirs, keys), (f"{end.step}/{end.name}",)
        named = ", ".join(part.judged.name for part in parts[:3]) + (" ..." if len(parts) > 3 else "")
        state.run(f"inside {named}", tuple(f"{s}/{n}" for s, n in keys), last)
        local, alignment = state.judge(only)
        suspects = flagged(local)
    state.left_out -= set(found)
    return tuple(sorted(found.values(), key=lambda j: j.pair.reference.id))


def _last(theirs: Graph, keys: list[Key]) -> tuple[str, ...]:
    """The wanted value that the candidate writes last; none where its order is not known."""
    wanted = set(keys)
    listed = [(v.step, v.name) for v in theirs.values if (v.step, v.name) in wanted]
    return (f"{listed[-1][0]}/{listed[-1][1]}",) if set(listed) == wanted else ()
