"""Traces that keep hashes and sketches alone: small, set beside each other or a whole one, and never replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstbad.hashing import hash_array
from firstbad.probes import edits
from firstbad.probes.plan import save
from firstbad.schema import validate
from firstbad.trace import open_trace

from .conftest import MICRO, Bench, Command

FAULT, READS = "model.decoder.layers.1.fc1", "model.decoder.layers.1.add_1"
ASKED = (*MICRO, "--max-tokens", 2)


@pytest.fixture
def broken(micro: Bench, tmp_path: Path) -> Path:
    save(edits.rewire(micro.plan, "decode", FAULT, "x", READS, planned_anew=True), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_capture_of_hashes(broken: Path, firstbad: Command, tmp_path: Path) -> None:
    whole, thin, bad = (tmp_path / f"{name}.h5" for name in ("whole", "thin", "bad"))
    assert firstbad("capture", *ASKED, "-o", whole).code == 0
    assert firstbad("capture", *ASKED, "--hash-only", "-o", thin).code == 0
    assert firstbad("capture", *ASKED, "--candidate", f"c:{broken}", "--hash-only", "-o", bad).code == 0
    validate(thin)
    with open_trace(whole) as full, open_trace(thin) as digest:
        assert not any(digest.stored(v) for v in digest.graph.values)
        kept = [v for v in full.graph.values if v.kind == "value" and full.stored(v)]
        for value in kept:
            other = digest.graph.by_key[value.step, value.name]
            assert (
                other.hash == hash_array(full.array(value)) and digest.sketches[other.id].size == full.array(value).size
            )
        assert digest.outputs["tokens"] == full.outputs["tokens"]
    # the micro model is small: names and ops take most of what is left
    assert thin.stat().st_size < 0.6 * whole.stat().st_size

    for other in (whole, thin):
        said = json.loads(firstbad("show", thin, "--with", other, "--json").out)["values"]
        assert all(v["largest"] == 0 for v in said if not v["why"])
        assert sum(not v["why"] for v in said) >= len(kept)
        said = json.loads(firstbad("show", bad, "--with", other, "--json").out)["values"]
        wrong = [v["name"] for v in said if v["largest"]]
        assert wrong[0] == FAULT
    text = firstbad("show", bad, "--with", thin).out
    assert "equal, by its hash" in text and "its quantiles differ by" in text

    said = firstbad("compare", whole, bad)
    assert said.code == 2


def test_a_reference_of_hashes_is_not_replayed(firstbad: Command, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "reference.h5", tmp_path / "candidate.h5"
    assert firstbad("capture", *ASKED, "--reference", "--hash-only", "-o", ours).code == 0
    assert firstbad("capture", *ASKED, "-o", theirs).code == 0
    said = firstbad("compare", ours, theirs)
    assert said.code == 2
    assert (
        f"holds hashes and sketches alone, nothing to replay: set it beside the other one with `firstbad show {ours}"
        in said.err
    )
    said = json.loads(firstbad("show", theirs, "--with", ours, "--json").out)["values"]
    near = [v["relative"] for v in said if not v["why"]]
    assert len(near) > 50 and max(near) < 1e-4, "a right engine's quantiles are the reference's to within rounding"


def test_bisect_leaves_hashes(broken: Path, firstbad: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = firstbad("bisect", *ASKED, "--candidate", f"c:{broken}", "--hash-only", "-o", out, "--json")
    assert said.code == 1
    assert [f["value"] for f in json.loads(said.out)["faults"]] == [FAULT]
    for side in ("reference", "candidate"):
        validate(out / f"{side}.h5")
        with open_trace(out / f"{side}.h5") as trace:
            assert trace.role == side and trace.complete
            assert not any(trace.stored(v) for v in trace.graph.values)
            assert len(trace.sketches) > 10
    assert (out / "report.html").is_file()
    assert not (out / "bisect.json").exists(), "a search whose arrays are gone is not taken up"
