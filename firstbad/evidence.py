"""What stands beside a comparison: lint, repro folders and the proofs that were asked for, as data in `Result.extra`.

Every proof is a file with one function; this one calls them in order and runs the engines again for them. Leaves out
text (reports/evidence.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from firstbad.errors import FirstbadError, UsageError
from firstbad.lint import extra, lint_run
from firstbad.rooms import load
from firstbad.run import CaptureOptions, Prepared
from firstbad.trace import TraceWriter, open_trace

if TYPE_CHECKING:
    from firstbad.comparison import Comparison
    from firstbad.result import Result
    from firstbad.trace import Trace


@dataclass(frozen=True)
class Wanted:
    """The proofs that a user asked for."""

    confirm: tuple[str, ...] | None = None  # patterns of values to put in place; (): those of the faults; None: no
    substitute: bool = False
    allocations: bool = False
    repeat: int = 1  # runs of the candidate that must give the same bits


@dataclass(frozen=True)
class Evidence:
    """One session with its two traces, and what was asked for beside the comparison."""

    room: ModuleType
    prepared: Prepared
    candidate: str  # KIND[:ARGUMENT]
    folder: Path
    options: CaptureOptions
    reference_trace: Trace
    candidate_trace: Trace
    tell: Callable[[str], None] = lambda _: None
    wanted: Wanted = Wanted()

    @property
    def adapter(self) -> ModuleType:
        return load("probes", self.candidate.partition(":")[0])

    @property
    def argument(self) -> str:
        return self.candidate.partition(":")[2]

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for traces that nobody needs afterwards."""
        with tempfile.TemporaryDirectory(prefix=".evidence-", dir=self.folder) as folder:
            yield Path(folder)

    @contextmanager
    def again(self, path: Path, **how: Any) -> Iterator[Trace]:
        """The candidate once more; `how`: see the adapter's capture."""
        self.adapter.capture(self.argument, self.prepared, path, self.options, **how)
        with open_trace(path) as trace:
            yield trace

    @contextmanager
    def free_reference(self, folder: Path) -> Iterator[Trace]:
        """The reference that follows its own tokens: the one at hand where the candidate chose the same."""
        ours, theirs = (t.outputs.get("tokens", ()) for t in (self.reference_trace, self.candidate_trace))
        if list(ours) == list(theirs) and self.candidate_trace.complete:
            yield self.reference_trace
            return
        path = folder / "reference.h5"
        with TraceWriter(path, role="reference", engine="torch", meta={}) as writer:
            output = self.room.capture(self.prepared, writer, tokens=None, options=self.options)
            writer.outputs({"tokens": list(output.tokens), "text": output.text})
            writer.close(complete=output.complete)
        with open_trace(path) as trace:
            yield trace


def gather(comparison: Comparison, session: Evidence) -> Comparison:
    """The comparison with its evidence in `result.extra`."""
    faults = [asdict(fault) for fault in comparison.result.faults]
    found: dict[str, Any] = dict(comparison.result.extra)
    found["lint"] = extra((*_of_plan(session), *lint_of(session.candidate_trace)), faults)
    if comparison.localised.faults:
        found["repro"] = _convicted(comparison, session)
    if session.wanted.confirm is not None:
        from firstbad.confirm import confirm

        found["confirm"] = confirm(comparison, session, session.wanted.confirm)
    if session.wanted.substitute:
        found["substitute"] = _substituted(comparison, session)
    if session.wanted.allocations:
        found["allocations"] = _allocations(session)
    result = replace(comparison.result, extra=found)
    if session.wanted.repeat > 1:
        result = _repeated(result, session)
    return replace(comparison, result=result)


def check_wanted(candidate: str, wanted: Wanted) -> None:
    """Refuses, before anything runs, what this kind of candidate cannot do."""
    from firstbad.confirm import can_inject

    kind = candidate.partition(":")[0]
    adapter = load("probes", kind)
    if wanted.allocations and not hasattr(adapter, "allocations"):
        raise UsageError(f"--allocations places the buffers of the built-in C engine: `{kind}` has none, leave it out")
    if wanted.substitute and not can_inject(adapter):
        raise UsageError(
            f"--substitute gives values back to an engine under firstbad.h: `{kind}` takes none, leave it out"
        )


def lint_of(trace: Trace) -> tuple[Any, ...]:
    """Findings in a trace by itself."""
    return lint_run(trace)


def _of_plan(session: Evidence) -> tuple[Any, ...]:
    """Findings in the candidate's plan, where its kind has plans."""
    adapter = session.adapter
    return tuple(adapter.lint(session.argument, session.prepared)) if hasattr(adapter, "lint") else ()


def _convicted(comparison: Comparison, session: Evidence) -> list[dict[str, Any]]:
    from firstbad.case import Case
    from firstbad.convict import convict

    session.tell("repro")

    def launch(place: Path, case: Case) -> Any:
        op = case.op
        values = session.candidate_trace.graph.values
        read = [values[r.value] for r in op.reads if r.value >= 0] if op is not None else []
        names = {v.name for v in read if v.kind == "weight"}
        names |= {session.reference_trace.graph.values[w].name for w in case.region.weights}
        return session.adapter.relaunch(session.argument, session.prepared, session.options, place, names)

    possible = hasattr(session.adapter, "relaunch")
    return convict(comparison, session.candidate_trace, launch if possible else None, session.folder)


def _substituted(comparison: Comparison, session: Evidence) -> dict[str, Any]:
    from firstbad.confirm import injector
    from firstbad.substitute import second_opinion

    session.tell("substitute")
    everything = ("*",)
    put = injector(session.reference_trace, comparison.alignment, everything)
    with session.scratch() as scratch:
        try:
            with session.again(scratch / "substituted.h5", replace=put, replaced=everything) as trace:
                return second_opinion(comparison, session.reference_trace, trace)
        except FirstbadError as error:
            return {"why": str(error)}


def _repeated(result: Result, session: Evidence) -> Result:
    """The candidate run again and again, each run against the first."""
    from firstbad.repeat import compared, with_repeats

    def others(folder: Path) -> Iterator[Trace]:
        for n in range(1, session.wanted.repeat):
            session.tell(f"repeat {n + 1} of {session.wanted.repeat}")
            path = folder / "again.h5"
            with session.again(path) as trace:
                yield trace
            path.unlink()

    with session.scratch() as scratch:
        return with_repeats(result, compared(session.candidate_trace, others(scratch)))


def _allocations(session: Evidence) -> dict[str, Any]:
    session.tell("allocations")
    found: dict[str, Any] = session.adapter.allocations(
        session.argument, session.prepared, session.candidate_trace, session.options, session.folder
    )
    return found
