"""GitLab's code quality report of a gate: one entry a finding, in the merge request at the kernel's line."""

from __future__ import annotations

import json

from firstbad.finding import GateResult

from .place import config_of, fingerprint, place_of, sentence

GATE = True
FILE = "gl-code-quality-report.json"

_MAJOR = ("creep", "order", "layout")


def render(gate: GateResult) -> str:
    """The report as text."""
    entries = []
    for case in gate.cases:
        for finding in case.findings:
            if not finding.red and finding.kind != "waived":
                continue
            place = place_of(gate, finding) or config_of(gate)
            severity = "info" if finding.kind == "waived" else "major" if finding.kind in _MAJOR else "critical"
            entries.append(
                {
                    "description": f"{case.name}: {sentence(finding)}",
                    "check_name": f"firstbad/{finding.kind}",
                    "fingerprint": fingerprint(case, finding),
                    "severity": severity,
                    "location": {"path": place.file, "lines": {"begin": place.line}},
                }
            )
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
