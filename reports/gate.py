"""The gate in a terminal: a line a case, what is wrong with it, what should be known, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firstbad.finding import CaseResult, Finding, GateResult
from firstbad.theme import PLAIN, Theme

_LISTED = 12  # findings of one kind; gate.json has all
_TOLD = 5
_LABEL = 13


def render(gate: GateResult, theme: Theme = PLAIN) -> str:
    """The whole text, without a closing newline."""
    return "\n".join(_lines(gate, theme))


def _lines(gate: GateResult, theme: Theme) -> Iterator[str]:
    for case in gate.cases:
        yield from _case(case, theme)
    for name in gate.unused:
        yield _line("unused", f"the baseline {name} belongs to no case: delete it", theme)
    yield ""
    failed = [case for case in gate.cases if case.verdict != "passed"]
    count = f"{len(gate.cases)} {'case' if len(gate.cases) == 1 else 'cases'}"
    if not failed:
        yield f"{theme.good('✓ gate passed')}  {count}"
    else:
        names = ", ".join(f"{case.name} {case.verdict}" for case in failed)
        yield f"{theme.bad('✗ gate failed')}  {len(failed)} of {count}: {names}"
    if gate.first is not None:
        yield _line("next", _next(*gate.first), theme)


def _line(label: str, text: str, theme: Theme) -> str:
    return f"  {theme.dim(label.ljust(_LABEL))}{text}"


def _case(case: CaseResult, theme: Theme) -> Iterator[str]:
    mark = {"passed": theme.good("✓"), "failed": theme.bad("✗")}.get(case.verdict, theme.warn("?"))
    spent = f"{case.seconds:.1f} s of work"
    cached = f", {case.references_cached} references cached" if case.references_cached else ""
    yield (
        f"{mark} {theme.name(case.name)}  {case.verdict}: {case.candidate} on {case.model}, "
        f"{len(case.inputs)} inputs, {len(case.rows)} values, {spent}{cached}"
    )
    red = case.red
    for finding in red[:_LISTED]:
        yield from _red(finding, theme)
    if len(red) > _LISTED:
        yield _line("more", f"{len(red) - _LISTED} findings: findings[] in gate.json", theme)
    for kind in dict.fromkeys(f.kind for f in case.findings if not f.red):
        told = [f for f in case.findings if f.kind == kind]
        paint = {"waived": theme.warn, "improved": theme.good}.get(kind, theme.dim)
        shown = told if kind == "waived" else told[:_TOLD]
        for finding in shown:
            yield f"  {paint(kind.ljust(_LABEL))}{finding.message}"
        if len(told) > len(shown):
            yield _line("", f"{len(told) - len(shown)} more of these in gate.json", theme)
    if any(f.kind == "improved" for f in case.findings):
        yield _line("keep", f"firstbad accept {case.name} makes it the new baseline", theme)


def _red(finding: Finding, theme: Theme) -> Iterator[str]:
    yield f"  {theme.bad(finding.kind.ljust(_LABEL))}{finding.message}"
    if finding.kind == "creep" and finding.file:
        yield _line("kernel", f"{finding.file}:{finding.line}", theme)
    if finding.cause:
        yield _line("cause", finding.cause, theme)
    if finding.worst:
        yield _line("worst", finding.worst, theme)


def _next(case: CaseResult, finding: Finding) -> str:
    """What to type: the look into the fault, or the case alone."""
    kept = next((one for one in case.inputs if one.folder and one.name in finding.inputs), None)
    if finding.kind == "fault" and kept is not None:
        report = Path(kept.folder) / "report.html"
        look = f"firstbad show {Path(kept.folder) / 'candidate.h5'} {finding.value} --step {finding.step}"
        return f"{report}, or {look}"
    if finding.kind == "usage":
        return f"firstbad accept {case.name}"
    return case.command
