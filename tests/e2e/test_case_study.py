"""The founding bug: what its page says is what the command gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstbad.cli import main

CASE = Path(__file__).parents[2] / "case_studies" / "whisper_buffer_wiring"
GUILTY = "model.encoder.layers.3.self_attn.v_proj"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, object]]:
    folder = tmp_path_factory.mktemp("broken")
    command = ["diff", "--model", "whisper", "--audio", str(CASE / "clip.wav"), "-o", str(folder)]
    code = main([*command, "--candidate", f"c:{CASE / 'plan.broken.json'}"])
    return code, json.loads((folder / "result.json").read_text("utf-8"))


def test_one_fault_with_its_cause(broken: tuple[int, dict]) -> None:  # type: ignore[type-arg]
    code, result = broken
    assert code == 1
    assert [f["value"] for f in result["faults"]] == [GUILTY]
    fault = result["faults"][0]
    assert (fault["step"], fault["op"], len(fault["sites"])) == ("encode", "linear", 1)
    assert fault["cause"]["kind"] == "wrong_input"
    assert fault["cause"]["detail"]["input"] == "model.encoder.layers.3.self_attn_layer_norm"
    assert fault["cause"]["detail"]["read"] == "model.encoder.layers.2.add_1"
    assert fault["cause"]["reproduces_to"] < 1e-6
    assert fault["source"]["file"].endswith("matmul.c")
    assert all(i["ok"] for i in fault["inputs"])
    verdicts = result["values"]["verdict"]
    assert verdicts.count("culprit") == 1
    assert set(verdicts) == {"culprit", "victim", "clean"}


def test_the_page(broken: tuple[int, dict]) -> None:  # type: ignore[type-arg]
    page = Path(broken[1]["files"]["report"])
    assert page.name == "report.html"
    assert page.stat().st_size < 5_000_000
    text = page.read_text("utf-8")
    assert f'id="value-{GUILTY}@encode"' in text
    assert text.count('class="wire-is"') >= 1  # the wrong wire is drawn


def test_the_transcripts(broken: tuple[int, dict]) -> None:  # type: ignore[type-arg]
    outputs = broken[1]["outputs"]
    assert outputs["candidate"]["text"].strip() == "Okay."
    assert outputs["reference"]["text"].strip() == "I wanted a transcript of this recording, and I got only one word."


def test_the_plan_is_one_wire_away_from_the_healthy_one() -> None:
    from firstbad import session
    from firstbad.probes import plan_check, planner
    from firstbad.run import ModelSpec

    _, prepared = session.prepare(ModelSpec("whisper"))
    healthy, edited = planner.plan(prepared.config), plan_check.load(CASE / "plan.broken.json")
    wires = [
        (op.name, port, name, other.inputs[port])
        for step in healthy.steps
        for op, other in zip(healthy.steps[step].ops, edited.steps[step].ops, strict=True)
        for port, name in op.inputs.items()
        if other.inputs[port] != name
    ]
    assert wires == [(GUILTY, "x", "model.encoder.layers.3.self_attn_layer_norm", "model.encoder.layers.2.add_1")]
    assert healthy.weights == edited.weights
