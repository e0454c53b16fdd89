"""What stands beside a comparison, in words: lint findings and proofs, as (label, text) lines.

Takes `Result.extra` and gives plain sentences. Leaves out colours and layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LISTED = 4


def lines(extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every line of evidence with its label, in the order of a run."""
    yield from _lint(extra.get("lint", ()))


def _lint(findings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    ordered = sorted(findings, key=lambda f: not f["fault"])  # those that predict a fault first
    for finding in ordered[:LISTED]:
        where = "from the plan alone" if finding["source"] == "plan" else "from this run alone"
        speaks = f"; predicts {finding['fault']}" if finding["fault"] else ""
        yield "lint", f"{finding['rule']}: {finding['text']} ({where}{speaks})"
    if len(findings) > LISTED:
        yield "lint", f"{len(findings) - LISTED} more findings: extra.lint in result.json"
