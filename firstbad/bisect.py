"""One session of `bisect`: prepare the input, search with small captures, compare what was captured.

Ends in the same result as `diff`, from the traces that the search merged. Leaves out arguments (verbs/) and what is
captured when (search.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from firstbad import session
from firstbad.bisection import EVERYTHING, Search, bisect
from firstbad.comparison import Comparison, compare
from firstbad.digest import digest
from firstbad.graph import Graph, Op, Value
from firstbad.halving import halve
from firstbad.replay import Executor
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.trace import open_trace

TOKENS = 32
"""Tokens of a run whose length is not known before."""


@dataclass
class _Outline:
    """A writer that keeps the graph and drops the arrays."""

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def value(self, v: Value, array: Any) -> Value:
        self.values.append(v if array is None else replace(v, dataset="-"))
        return self.values[-1]

    def op(self, op: Op) -> None:
        self.ops.append(op)


@dataclass(frozen=True)
class Both:
    """The two engines of a session, as a search runs them."""

    room: ModuleType
    prepared: Prepared
    kind: str  # KIND[:ARGUMENT] of the candidate
    options: CaptureOptions
    executor: Executor

    @property
    def tokens(self) -> int:
        return self.options.max_tokens or TOKENS

    def outline(self) -> Graph:
        sink = _Outline()
        self.room.capture(self.prepared, sink, tokens=None, options=replace(self.options, max_tokens=2, steps=()))
        return Graph(tuple(sink.values), tuple(sink.ops))

    def candidate(self, path: Path, want: tuple[str, ...], stop: tuple[str, ...]) -> None:
        wishes = replace(self.options, want=None if want == EVERYTHING else want, stop=stop)
        session.capture_candidate(self.kind, self.prepared, path, wishes)

    def reference(self, path: Path, want: tuple[str, ...], stop: tuple[str, ...], tokens: tuple[int, ...]) -> None:
        # a candidate that was stopped in a step has not chosen that step's token
        wanted = None if want == EVERYTHING else want
        wishes = replace(self.options, want=wanted, stop=stop, unfinished=bool(stop))
        session.capture_reference(self.room, self.prepared, path, wishes, tokens)


def run(
    spec: ModelSpec,
    candidate: str,
    folder: Path,
    options: CaptureOptions,
    *,
    budget: Callable[[float], float] | None = None,
    one_value: bool = False,
    cause_budget: float,
    command: str = "",
    tell: session.Tell = session.silent,
) -> Comparison:
    """Searches, compares what was found, and writes the folder. `one_value`: no run stores more than one value."""
    session.output_folder(folder)
    kept, options = options, replace(options, hash_only=False)  # while it searches, it replays
    tell("loading")
    room, prepared = session.prepare(spec)
    engines = Both(room, prepared, candidate, options, room.executor(prepared))
    limit = budget(100e6) if budget else None  # of a capture of a given size: which budget it was
    key: dict[str, Any] = {"spec": _plain(asdict(spec)), "candidate": candidate, "options": _plain(asdict(options))}
    key |= {"budget": limit, "one value": one_value}
    state = Search(engines, folder, budget, key, tell)
    search = halve if one_value else bisect
    search(state)
    with open_trace(state.reference_path) as ours, open_trace(state.candidate_path) as theirs:
        comparison = compare(
            ours,
            theirs,
            engines.executor,
            budget=cause_budget,
            command=command,
            judged=lambda v: (v.step, v.name) not in state.left_out,
            notes=prepared.notes,
            progress=tell,
        )
    comparison = session.finish(replace(comparison, result=_told(comparison.result, state)), folder)
    if kept.hash_only:
        state.path.unlink(missing_ok=True)  # what its runs stored is gone
        for path in (state.reference_path, state.candidate_path):
            digest(path)
    return comparison


def _told(result: Result, state: Search) -> Result:
    """The result with what the search took."""
    share = state.bytes / state.full_bytes if state.full_bytes else 0.0
    runs = len(state.runs)
    said = f"{runs} run{'s' * (runs != 1)} of the candidate, {share:.1%} of the bytes of a full capture"
    notes = [said + (" (one of them was full)" if state.full_capture else "")]
    if state.left_out:
        steps = sorted({step for step, _ in state.left_out})
        notes.append(f"{len(state.left_out)} further sites in {', '.join(steps[:4])} are wrong too: not looked into")
    verdict = result.verdict
    if state.unstable:
        step, name = state.unstable[0]
        notes.append(
            f"the candidate is not deterministic: `{name}` of {step} differs from run to run; the search stopped there"
        )
        verdict = "diverged"
    extra = {
        "runs": [{"why": run.why, "bytes": run.bytes, "values": len(run.want)} for run in state.runs],
        "full_bytes": state.full_bytes,
        "full_capture": state.full_capture,
        "unstable": [list(key) for key in state.unstable],
    }
    return replace(result, verdict=verdict, notes=(*result.notes, *notes), extra={**result.extra, "bisect": extra})


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    def one(item: Any) -> Any:
        if isinstance(item, Path):
            return str(item)
        return [one(i) for i in item] if isinstance(item, tuple | list) else item

    return {k: one(v) for k, v in data.items()}
