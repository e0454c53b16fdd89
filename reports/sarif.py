"""SARIF 2.1.0 of a gate, for code scanning: a result a finding, at the kernel's line where it is known."""

from __future__ import annotations

import json
from typing import Any

import firstbad
from firstbad.finding import CaseResult, Finding, GateResult

from .place import config_of, fingerprint, place_of, sentence

GATE = True
FILE = "firstbad.sarif"

RULES = {
    "fault": "A value that its own inputs do not explain",
    "creep": "An error that grew beyond what clean runs vary",
    "vanished": "A value of the baseline that was not compared",
    "shape": "A value of another shape than in the baseline",
    "dtype": "A value of another type than in the baseline",
    "layout": "A value that lies in memory in another order than in the baseline",
    "order": "A value that is computed at another place in the order",
    "coverage": "Less was compared than in the baseline",
    "tokens": "Another answer than the baseline's",
    "probe": "Another answer when the engine is probed",
    "weights": "Other weights than the baseline's",
    "input": "Another input than the baseline's",
    "incomplete": "The case could not be compared",
    "reference": "The reference does not reproduce itself",
    "usage": "The case cannot be run as it is written",
    "waived": "A fault that is known and accepted",
}


def render(gate: GateResult) -> str:
    """The log as text."""
    pairs = [(case, f) for case in gate.cases for f in case.findings if f.red or f.kind == "waived"]
    used = [kind for kind in RULES if any(f.kind == kind for _, f in pairs)]
    driver = {
        "name": "firstbad",
        "version": firstbad.__version__,
        "semanticVersion": firstbad.__version__,
        "rules": [
            {"id": kind, "shortDescription": {"text": RULES[kind]}, "defaultConfiguration": {"level": _level(kind)}}
            for kind in used
        ],
    }
    invocation: dict[str, Any] = {"executionSuccessful": True, "exitCode": gate.exit_code}
    if gate.command:
        invocation["commandLine"] = gate.command
    run = {
        "tool": {"driver": driver},
        "columnKind": "utf16CodeUnits",
        "invocations": [invocation],
        "results": [_result(gate, case, finding, used) for case, finding in pairs],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _level(kind: str) -> str:
    return "note" if kind == "waived" else "warning" if kind in ("creep", "order", "layout") else "error"


def _result(gate: GateResult, case: CaseResult, finding: Finding, used: list[str]) -> dict[str, Any]:
    place = place_of(gate, finding) or config_of(gate)
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(place.file)},
            "region": {"startLine": place.line},
        }
    }
    if finding.value:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.value, "kind": "variable"}]
    result: dict[str, Any] = {
        "ruleId": finding.kind,
        "ruleIndex": used.index(finding.kind),
        "level": _level(finding.kind),
        "message": {"text": f"{case.name}: {sentence(finding)}"},
        "locations": [location],
        "partialFingerprints": {"firstbad/v1": fingerprint(case, finding)},
    }
    if finding.kind == "waived":
        result["suppressions"] = [{"kind": "external", "justification": finding.message}]
    return result


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path)
