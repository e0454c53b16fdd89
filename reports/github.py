"""What GitHub Actions reads: an annotation at the first bad kernel's line, a step summary, and the output `first-bad`.

`publish` is called by the gate where GITHUB_ACTIONS is true; `render` gives the summary alone, as Markdown. Limits of
GitHub: 10 annotations of a kind a step, 1 MiB of summary a step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from firstbad.finding import CaseResult, Finding, GateResult

from .place import place_of, sentence, writable

GATE = True
FILE = "summary.md"

ANNOTATIONS = 10
SUMMARY_BYTES = 1 << 20
_LISTED = 20
_MARKS = {"passed": "✅", "failed": "❌", "incomplete": "⚠️", "not run": "⚠️"}


def publish(gate: GateResult) -> None:
    """Annotations on stderr (stdout may be JSON), the summary and the output into the files that GitHub names."""
    for line in commands(gate):
        print(line, file=sys.stderr)
    _append("GITHUB_STEP_SUMMARY", render(gate))
    _append("GITHUB_OUTPUT", f"first-bad={first_bad(gate)}\n")


def first_bad(gate: GateResult) -> str:
    """The guilty value of the first fault or of what grew, for the steps to come; empty where there is none."""
    found = [f for case in gate.cases for f in case.red if f.value]
    return "".join(found[0].value.split()) if found else ""


def commands(gate: GateResult) -> Iterator[str]:
    """Workflow commands: an error for the first bad of each failed case, a warning for each waiver."""
    firsts = [(case, case.red[0]) for case in gate.cases if case.red]
    for case, finding in firsts[:ANNOTATIONS]:
        yield _command("error", gate, case, finding, f"firstbad: {finding.value or finding.kind}")
    waived = [(case, f) for case in gate.cases for f in case.findings if f.kind == "waived"]
    for case, finding in waived[:ANNOTATIONS]:
        yield _command("warning", gate, case, finding, f"firstbad: waived {finding.value}")


def _command(level: str, gate: GateResult, case: CaseResult, finding: Finding, title: str) -> str:
    place = place_of(gate, finding)
    properties = {"file": place.file, "line": str(place.line)} if place else {}
    words = ",".join(f"{key}={_property(text)}" for key, text in {**properties, "title": title}.items())
    return f"::{level} {words}::{_data(f'{case.name}: {sentence(finding)}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _append(variable: str, text: str) -> None:
    path = os.environ.get(variable)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


def render(gate: GateResult) -> str:
    """The step summary, cut at GitHub's limit."""
    text = writable("\n".join(_summary(gate)) + "\n")
    data = text.encode()
    if len(data) <= SUMMARY_BYTES:
        return text
    note = "\n\n… cut at GitHub's limit of 1 MiB; gate.json has all\n"
    kept = data[: SUMMARY_BYTES - len(note.encode())].decode("utf-8", "ignore")
    return kept[: kept.rfind("\n")] + note


def _summary(gate: GateResult) -> Iterator[str]:
    failed = sum(case.verdict != "passed" for case in gate.cases)
    state = f"❌ {failed} of {len(gate.cases)} cases failed" if failed else f"✅ {len(gate.cases)} cases passed"
    yield f"## firstbad gate: {state}"
    yield ""
    yield "| case | verdict | first bad | inputs | values |"
    yield "|---|---|---|---|---|"
    for case in gate.cases:
        first = f"`{_cell(case.red[0].value or case.red[0].kind)}`" if case.red else ""
        mark = _MARKS[case.verdict]
        yield (f"| {_cell(case.name)} | {mark} {case.verdict} | {first} | {len(case.inputs)} | {len(case.rows)} |")
    for case in gate.cases:
        yield from _findings(gate, case)
    for name in gate.unused:
        yield f"\nThe baseline `{_cell(name)}` belongs to no case."


def _findings(gate: GateResult, case: CaseResult) -> Iterator[str]:
    if not case.findings:
        return
    yield f"\n### {_cell(case.name)}"
    yield ""
    red = case.red
    for finding in red[:_LISTED]:
        place = place_of(gate, finding)
        where = f" ([{place.file}:{place.line}]({_link(place.file, place.line)}))" if place else ""
        yield f"- **{finding.kind}**: {_cell(finding.message)}{where}"
        if finding.cause:
            yield f"  - cause: {_cell(finding.cause)}"
        if finding.worst:
            yield f"  - worst: {_cell(finding.worst)}"
    if len(red) > _LISTED:
        yield f"- {len(red) - _LISTED} more in gate.json"
    told = [f for f in case.findings if not f.red]
    for finding in told[:_LISTED]:
        yield f"- {finding.kind}: {_cell(finding.message)}"
    if len(told) > _LISTED:
        yield f"- {len(told) - _LISTED} more in gate.json"
    if red:
        yield f"\nAgain: `{case.command}`"


def _link(file: str, line: int) -> str:
    server, repository, commit = (os.environ.get(f"GITHUB_{key}", "") for key in ("SERVER_URL", "REPOSITORY", "SHA"))
    return f"{server}/{repository}/blob/{commit}/{file}#L{line}" if repository and commit else file


def _cell(text: str) -> str:
    """Text that breaks no table and is no markup."""
    for sign in "\\`*_|<>[]":
        text = (
            text.replace(sign, f"\\{sign}")
            if sign not in "<>"
            else text.replace(sign, {"<": "&lt;", ">": "&gt;"}[sign])
        )
    return " ".join(text.split())
