"""JUnit XML of a gate: a suite a case, a test a group of values (a layer, a step), failure text = the verdict.

Valid by the schema of Ant and by that of Jenkins: the attributes of both, one failure a test.
"""

from __future__ import annotations

import platform
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import firstbad
from firstbad.finding import CaseResult, Finding, GateResult

from .place import place_of

GATE = True
FILE = "junit.xml"

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(gate: GateResult) -> str:
    """The document as text."""
    suites = ET.Element("testsuites")
    for n, case in enumerate(gate.cases):
        suites.append(_suite(gate, case, n))
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _suite(gate: GateResult, case: CaseResult, n: int) -> ET.Element:
    groups: dict[str, list[Finding]] = {group: [] for group in groups_of(case)}
    for finding in case.red:
        groups.setdefault(group_of(finding.step, finding.value) if finding.value else "inputs and answers", []).append(
            finding
        )
    errors = sum(any(f.kind in ("incomplete", "reference", "usage") for f in found) for found in groups.values())
    suite = ET.Element(
        "testsuite",
        {
            "name": _text(case.name),
            "package": "firstbad",
            "id": str(n),
            "tests": str(len(groups)),
            "failures": str(sum(bool(found) for found in groups.values()) - errors),
            "errors": str(errors),
            "time": f"{case.seconds:.3f}",
            "timestamp": gate.started[:19],
            "hostname": _text(platform.node() or "localhost"),
        },
    )
    properties = ET.SubElement(suite, "properties")
    facts = {"firstbad": firstbad.__version__, "candidate": case.candidate, "model": case.model, **case.environment}
    for name, value in facts.items():
        ET.SubElement(properties, "property", {"name": _text(name), "value": _text(value)})
    for group, found in groups.items():
        test = ET.SubElement(suite, "testcase", {"name": _text(group), "classname": _text(case.name), "time": "0"})
        if found:
            _failure(test, gate, case, found)
    told = "\n".join(f"{f.kind}: {f.message}" for f in case.findings if not f.red)
    ET.SubElement(suite, "system-out").text = _text(told)
    ET.SubElement(suite, "system-err").text = ""
    return suite


def _failure(test: ET.Element, gate: GateResult, case: CaseResult, found: Sequence[Finding]) -> None:
    first = found[0]
    word = "error" if first.kind in ("incomplete", "reference", "usage") else "failure"
    lines = []
    for finding in found:
        place = place_of(gate, finding)
        lines += [f"{finding.kind}: {finding.message}"]
        lines += [f"cause: {finding.cause}"] if finding.cause else []
        lines += [f"worst: {finding.worst}"] if finding.worst else []
        lines += [f"kernel: {place.file}:{place.line}"] if place else []
    lines.append(f"again: {case.command}")
    failure = ET.SubElement(test, word, {"message": _text(first.message), "type": first.kind})
    failure.text = _text("\n".join(lines))


def groups_of(case: CaseResult) -> list[str]:
    """The tests of a case, in the order of execution."""
    return list(dict.fromkeys(["inputs and answers", *(group_of(row.step, row.name) for row in case.rows)]))


def group_of(step: str, name: str) -> str:
    """The step and the layer: "encode model.encoder.layers.1"; outside a layer the step and the part of the model."""
    group = step.partition(".")[0]
    layer = re.match(r"(.*?\.\d+)(\.|$)", name)
    part = layer[1] if layer else ".".join(name.split(".")[:2])
    return f"{group} {part}"


def _text(text: str) -> str:
    """What XML can hold."""
    return _NOT_XML.sub("?", text)
