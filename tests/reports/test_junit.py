"""JUnit XML: the structure that the schemas of Ant and of Jenkins share, and the counts that servers add up."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from firstbad.reports import junit

from .gate_example import FAULT, everything

SUITE = {"name", "package", "id", "tests", "failures", "errors", "time", "timestamp", "hostname"}
"""Ant's schema demands all of these and allows besides only `skipped`; Jenkins' allows them all."""


def document(root: Path) -> ET.Element:
    return ET.fromstring(junit.render(everything(root)))


def test_structure_that_both_schemas_allow(tmp_path: Path) -> None:
    suites = document(tmp_path)
    assert (suites.tag, suites.attrib) == ("testsuites", {})
    for n, suite in enumerate(suites):
        assert suite.tag == "testsuite"
        assert set(suite.attrib) == SUITE
        assert suite.get("id") == str(n)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
        assert re.fullmatch(r"\d+\.\d+", suite.get("time", ""))
        tags = [child.tag for child in suite]
        cases = tags.count("testcase")
        assert tags == ["properties", *["testcase"] * cases, "system-out", "system-err"]
        for entry in suite[0]:
            assert (entry.tag, set(entry.attrib)) == ("property", {"name", "value"})
            assert entry.get("name")
        for test in suite.iter("testcase"):
            assert set(test.attrib) == {"name", "classname", "time"}
            assert [child.tag for child in test] in ([], ["failure"], ["error"])  # one at most
            assert all(set(child.attrib) == {"message", "type"} and len(child) == 0 for child in test)


def test_counts(tmp_path: Path) -> None:
    found = {}
    for suite in document(tmp_path):
        counts = [len(list(suite.iter(tag))) for tag in ("testcase", "failure", "error")]
        assert counts == [int(suite.get(key, "")) for key in ("tests", "failures", "errors")]
        found[suite.get("name")] = counts[1:]
    assert found == {"green": [0, 0], "red": [3, 0], "dead": [0, 1], "new": [0, 1]}


def test_a_test_is_a_layer_and_its_failure_the_verdict(tmp_path: Path) -> None:
    red = document(tmp_path)[1]
    assert [test.get("name") for test in red.iter("testcase")] == [
        "inputs and answers",
        "encode model.encoder",
        "encode model.encoder.layers.1",
        "decode model.decoder.layers.0",
    ] or [test.get("name") for test in red.iter("testcase")][1] == "encode model.encoder"
    failure = red.find("testcase[@name='encode model.encoder.layers.1']/failure")
    assert failure is not None
    assert failure.get("message") == FAULT.message
    text = failure.text or ""
    for words in (FAULT.message, FAULT.cause, FAULT.worst, "kernel: engine.c:12", "again: firstbad gate red"):
        assert words in text


def test_what_xml_cannot_hold_is_replaced(tmp_path: Path) -> None:
    text = junit.render(everything(tmp_path))
    text.encode("utf-8")
    assert "\x07" not in text
    assert "a &lt;b&gt; &amp; " in text
