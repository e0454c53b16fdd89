"""Results and traces as a notebook shows them: a small table, every text escaped, no style sheet and no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from firstbad.statement import number, times

if TYPE_CHECKING:
    from firstbad.result import Result
    from firstbad.trace import Trace

_MARKS = {"match": "✓", "diverged": "✗", "incomplete": "?"}
_LISTED = 5


def of_result(result: Result) -> str:
    """The verdict, the faults with their causes, both answers."""
    compared = sum(result.coverage.compared.values())
    rows = [("verdict", f"{_MARKS[result.verdict]} {result.verdict}, {compared} values compared")]
    for fault in result.faults[:_LISTED]:
        source = f", {fault.source}" if fault.source.file else ""
        what = f"{fault.value} ({fault.step}){source}: {number(fault.local_error)}, {times(fault.times_noise)}"
        rows += [("fault", what), ("cause", fault.cause.statement)]
    if len(result.faults) > _LISTED:
        rows.append(("", f"{len(result.faults) - _LISTED} more faults"))
    rows += [(side, str(result.outputs.get(side, {}).get("text", ""))) for side in ("reference", "candidate")]
    if result.files.get("report"):
        rows.append(("report", result.files["report"]))
    return _table(rows)


def of_trace(trace: Trace) -> str:
    """Which run it is and how much is in it."""
    state = "complete" if trace.complete else f"incomplete: {trace.death}"
    rows = [
        ("trace", str(trace.path)),
        ("engine", f"{trace.role} {trace.engine}, {state}"),
        ("steps", ", ".join(trace.graph.steps[:_LISTED]) + (" …" if len(trace.graph.steps) > _LISTED else "")),
        ("values", str(sum(value.kind in ("value", "input") for value in trace.graph.values))),
    ]
    return _table(rows)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = (
        f'<tr><th style="text-align:left">{escape(label)}</th><td style="text-align:left">{escape(text)}</td></tr>'
        for label, text in rows
    )
    return f"<table>{''.join(lines)}</table>"
