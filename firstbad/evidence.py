"""What stands beside a comparison: lint, and the proofs that were asked for, each as plain data in `Result.extra`.

Every proof is a file with one function; this one calls them in order. Leaves out text (reports/evidence.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from firstbad.lint import extra, lint_trace
from firstbad.rooms import load
from firstbad.run import CaptureOptions, Prepared

if TYPE_CHECKING:
    from firstbad.comparison import Comparison
    from firstbad.trace import Trace


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


def gather(comparison: Comparison, session: Evidence) -> Comparison:
    """The comparison with its evidence in `result.extra`."""
    faults = [asdict(fault) for fault in comparison.result.faults]
    found: dict[str, Any] = dict(comparison.result.extra)
    found["lint"] = extra((*_of_plan(session), *lint_of(session.candidate_trace)), faults)
    return replace(comparison, result=replace(comparison.result, extra=found))


def lint_of(trace: Trace) -> tuple[Any, ...]:
    """Findings in a trace by itself."""
    return lint_trace(trace.graph, trace.outputs)


def _of_plan(session: Evidence) -> tuple[Any, ...]:
    """Findings in the candidate's plan, where its kind has plans."""
    kind, _, argument = session.candidate.partition(":")
    adapter = load("probes", kind)
    return tuple(adapter.lint(argument, session.prepared)) if hasattr(adapter, "lint") else ()
