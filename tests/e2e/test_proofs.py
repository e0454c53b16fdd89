"""Proofs beside a comparison, on engines broken by hand: heal and break, substitution, repro folders, allocations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firstbad.cli import main
from firstbad.comparison import Comparison, compare
from firstbad.evidence import Evidence, Wanted, gather
from firstbad.probes import edits
from firstbad.probes.lifetimes import assign
from firstbad.probes.plan import Plan
from firstbad.probes.program import lower
from firstbad.trace import open_trace

from .conftest import CLIP, ROOT, Bench

ENC, DEC = "model.encoder.layers", "model.decoder.layers"
V_PROJ = f"{ENC}.1.self_attn.v_proj"


def wired(plan: Plan) -> Plan:
    """The founding bug's kind."""
    return edits.rewire(plan, "encode", V_PROJ, "x", f"{ENC}.0.add_1")


def scaled(plan: Plan) -> Plan:
    """Attention of decoder layer 1 without its scale, in prefill and in every decode step."""
    for step in ("prefill", "decode"):
        plan = edits.set_attr(plan, step, f"{DEC}.1.self_attn.mul", "factor", 1)
    return plan


def clobbered(plan: Plan) -> Plan:
    return edits.move(assign(plan, reuse=False), "encode", f"{ENC}.1.self_attn.v_proj", f"{ENC}.1.self_attn.mul")


def evidence(
    micro: Bench, plan: Plan, wanted: Wanted, folder: Path, **options: Any
) -> tuple[Comparison, dict[str, Any]]:
    path, output = micro.run(plan, **options)
    with open_trace(micro.reference(output.tokens)) as ours, open_trace(path) as theirs:
        comparison = compare(ours, theirs, micro.room.executor(micro.prepared))
        session = Evidence(
            micro.room,
            micro.prepared,
            f"c:{path.with_suffix('.json')}",
            folder,
            replace(micro.options, **options),
            ours,
            theirs,
            wanted=wanted,
        )
        comparison = gather(comparison, session)
    return comparison, dict(comparison.result.extra)


@pytest.mark.parametrize("broken", [wired, scaled], ids=["encoder wire", "decoder scale"])
def test_the_reference_s_value_heals_and_the_cause_breaks_alike(micro: Bench, broken: Any, tmp_path: Path) -> None:
    comparison, extra = evidence(micro, broken(micro.plan), Wanted(confirm=()), tmp_path)
    heal, alike = extra["confirm"]["heal"], extra["confirm"]["break"]
    assert heal["injected"] == [comparison.localised.faults[0].name]
    assert heal["off_before"] > 0
    assert (heal["off_after"], heal["transcript_equal"], heal["heals"]) == (0, True, True)
    _, free = micro.run()
    assert heal["tokens"] == list(free.tokens)
    assert (alike["edited"], alike["left_out"], alike["until"]) == (heal["injected"], [], "")
    assert alike["alike"] == alike["compared"] >= heal["off_before"]
    assert alike["worst"] < 1e-4


def test_what_is_put_in_place_can_be_chosen(micro: Bench, tmp_path: Path) -> None:
    """A value downstream of the fault heals what comes after it only."""
    later = f"encode/{ENC}.1.add"
    _, extra = evidence(micro, wired(micro.plan), Wanted(confirm=(later,)), tmp_path)
    heal = extra["confirm"]["heal"]
    assert heal["injected"] == [later]
    assert heal["transcript_equal"]
    assert heal["first_off"] == ["encode", V_PROJ]
    assert 0 < heal["off_after"] <= 4  # v_proj, matmul_1, out_proj


def test_two_faults_break_alike_together(micro: Bench, tmp_path: Path) -> None:
    comparison, extra = evidence(micro, scaled(wired(micro.plan)), Wanted(confirm=()), tmp_path)
    assert len(comparison.result.faults) == 2
    assert extra["confirm"]["heal"]["heals"]
    assert extra["confirm"]["break"]["breaks_alike"]


def test_a_clean_run_has_nothing_to_confirm(micro: Bench, tmp_path: Path) -> None:
    _, extra = evidence(micro, micro.plan, Wanted((), substitute=True, allocations=True), tmp_path)
    assert extra["confirm"] == {"faults": []}
    assert extra["substitute"]["off"] == []
    assert extra["substitute"]["compared"] > 150
    assert extra["allocations"]["differs"] is False
    assert "repro" not in extra


@pytest.mark.parametrize("broken", [wired, scaled, clobbered])
def test_substitution_names_the_same(micro: Bench, broken: Any, tmp_path: Path) -> None:
    comparison, extra = evidence(micro, broken(micro.plan), Wanted(substitute=True), tmp_path)
    assert [row["value"] for row in extra["substitute"]["off"]] == [f.value for f in comparison.result.faults]
    assert extra["substitute"]["agrees"]


def test_an_aliasing_names_both_ops(micro: Bench, tmp_path: Path) -> None:
    _, extra = evidence(micro, clobbered(micro.plan), Wanted(allocations=True), tmp_path)
    spread = extra["allocations"]["runs"]["never reused"]
    assert spread["value"] == f"{ENC}.1.self_attn.matmul"
    assert spread["ops"] == [f"{ENC}.1.self_attn.matmul", f"{ENC}.1.self_attn.v_proj"]
    assert extra["allocations"]["differs"]


def test_a_write_past_the_end_names_the_neighbour(micro: Bench, tmp_path: Path) -> None:
    """No op declares it: the one whose output ends there is named."""
    kernels = tuple(sorted((ROOT / "case_studies" / "fault_zoo" / "kernels").glob("*.c")))
    op, victim = f"{ENC}.1.self_attn.k_proj", f"{ENC}.1.self_attn.mul"
    plan = micro.plan
    step = plan.steps["encode"]
    own, other = step.tensors[op], step.tensors[victim]
    end, size = plan.buffers[own.buffer], own.bytes(step.limits)
    tensors = {**step.tensors, op: replace(own, offset=end), victim: replace(other, offset=end + size)}
    plan = replace(plan, buffers={**plan.buffers, own.buffer: end + 3 * size}).with_step(replace(step, tensors=tensors))
    plan = edits.set_kind(plan, "encode", op, "linear:spill")
    comparison, extra = evidence(micro, plan, Wanted(allocations=True), tmp_path, kernels=kernels)
    assert [f.value for f in comparison.result.faults] == [f"{ENC}.1.self_attn.matmul"]
    assert extra["allocations"]["runs"]["never reused"]["ops"] == [f"{ENC}.1.self_attn.matmul", op]


# ---- repro folders ----


def repro(folder: Path, environment: Mapping[str, str] = {}) -> tuple[int, int]:
    """Exit codes of the Python test and of the C one."""
    variables = {**os.environ, **environment}
    python = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_repro.py")],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    built = subprocess.run(
        ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "repro.c", "-o", "repro", "-lm"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    c = subprocess.run(["./repro"], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    return python.returncode, c.returncode


def gained(plan: Plan) -> Plan:
    """A gain of 1.0001: seen as a gain, not in any element."""
    return edits.set_attr(plan, "encode", f"{ENC}.0.self_attn.mul", "factor", 0.25 * 1.00001)


def late(plan: Plan) -> Plan:
    """A wire of decode steps only."""
    return edits.rewire(plan, "decode", f"{DEC}.1.self_attn.q_proj", "x", f"{DEC}.0.add_2")


@pytest.mark.parametrize("broken", [wired, scaled, clobbered, gained, late])
def test_the_test_fails_on_the_broken_engine_and_passes_on_the_healthy(
    micro: Bench, broken: Any, tmp_path: Path
) -> None:
    _, extra = evidence(micro, broken(micro.plan), Wanted(), tmp_path)
    (row,) = extra["repro"]
    folder = Path(row["folder"])
    assert repro(folder) == (1, 1)
    healthy = tmp_path / "healthy"
    healthy.write_text(lower(micro.plan, micro.prepared, max_tokens=micro.options.max_tokens))
    assert repro(folder, {"PROGRAM": str(healthy)}) == (0, 0)


def test_every_fault_of_two_has_its_own(micro: Bench, tmp_path: Path) -> None:
    """The second one stands whatever becomes of the first: its inputs are put in place as they were read."""
    _, extra = evidence(micro, scaled(wired(micro.plan)), Wanted(), tmp_path)
    folders = [Path(row["folder"]) for row in extra["repro"]]
    assert len(folders) == 2
    one = tmp_path / "one-mended"
    one.write_text(lower(scaled(micro.plan), micro.prepared, max_tokens=micro.options.max_tokens))
    assert repro(folders[0], {"PROGRAM": str(one)}) == (0, 0)
    assert repro(folders[1], {"PROGRAM": str(one)}) == (1, 1)


def test_the_test_is_ten_lines_and_stands_alone(micro: Bench, tmp_path: Path) -> None:
    _, extra = evidence(micro, wired(micro.plan), Wanted(), tmp_path)
    text = Path(extra["repro"][0]["test"]).read_text("utf-8")
    body = text[text.index("def test_") :].strip().splitlines()
    assert len(body) <= 10
    assert "firstbad" not in body
    assert "import firstbad" not in text


# ---- by command ----


def test_by_command(micro: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from firstbad.probes.plan import save

    save(wired(micro.plan), tmp_path / "broken.json")
    model = [
        "--random-weights",
        "1",
        "--size",
        "micro",
        "--audio",
        str(CLIP),
        "--audio-context",
        "40",
        "--max-tokens",
        "3",
    ]
    proofs = ["--confirm", "--substitute", "--allocations"]
    command = ["diff", *model, "--candidate", f"c:{tmp_path / 'broken.json'}", *proofs, "-o", str(tmp_path / "out")]
    assert main(command) == 1
    said = capsys.readouterr().out
    for words in (
        "lint       siblings: ",
        f"with the reference's {V_PROJ} put in its place the candidate heals: 0 values off",
        "with the edit in its place the reference breaks alike: ",
        "on the reference's own values 1 ops are off",
        "every value is the same, bit for bit",
        "repro      pytest ",
    ):
        assert words in said
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    assert set(result["extra"]) >= {"lint", "confirm", "substitute", "allocations", "repro"}
    assert not list((tmp_path / "out").glob(".*"))
    assert main(["diff", *model, "--candidate", "torch", "--allocations", "-o", str(tmp_path / "no")]) == 2
    assert main(["diff", *model, "--candidate", "torch", "--substitute", "-o", str(tmp_path / "no")]) == 2


@pytest.mark.slow
def test_the_founding_case_heals(tmp_path: Path) -> None:
    case = ROOT / "case_studies" / "whisper_buffer_wiring"
    command = ["diff", "--model", "whisper", "--audio", str(CLIP), "--candidate", f"c:{case / 'plan.broken.json'}"]
    assert main([*command, "--confirm", "-o", str(tmp_path)]) == 1
    result = json.loads((tmp_path / "result.json").read_text("utf-8"))
    heal = result["extra"]["confirm"]["heal"]
    assert heal["text"] == result["outputs"]["reference"]["text"]
    assert heal["text"].strip() == "I wanted a transcript of this recording, and I got only one word."
    assert heal["heals"]
    assert result["extra"]["confirm"]["break"]["breaks_alike"]
    assert [f["op"] for f in result["extra"]["lint"]] == ["model.encoder.layers.3.self_attn.v_proj"]


def test_any_engine_under_the_header_is_proved_alike(micro: Bench, tmp_path: Path) -> None:
    """The same binary as somebody else's program, by its command."""
    from importlib import import_module

    from firstbad.probes import c
    from firstbad.probes.program import write_weights

    adapter = import_module("firstbad.probes.exec")
    plan = wired(micro.plan)
    for name, chosen in (("broken", plan), ("healthy", micro.plan)):
        (tmp_path / name).write_text(lower(chosen, micro.prepared, max_tokens=micro.options.max_tokens))
    write_weights(plan, micro.prepared.weights, tmp_path / "weights")
    micro.prepared.inputs["input_features"].tofile(tmp_path / "features")
    program = tmp_path / "program"
    program.write_text((tmp_path / "broken").read_text())
    command = f"{c.engine()} {program} {tmp_path / 'weights'} {tmp_path / 'features'} 1"
    path = tmp_path / "candidate.h5"
    output = adapter.capture(command, micro.prepared, path, micro.options)
    with open_trace(micro.reference(output.tokens)) as ours, open_trace(path) as theirs:
        comparison = compare(ours, theirs, micro.room.executor(micro.prepared))
        session = Evidence(
            micro.room,
            micro.prepared,
            f"exec:{command}",
            tmp_path,
            micro.options,
            ours,
            theirs,
            wanted=Wanted((), substitute=True),
        )
        extra = gather(comparison, session).result.extra
    assert extra["confirm"]["heal"]["heals"]
    assert extra["confirm"]["break"]["breaks_alike"]
    assert extra["substitute"]["agrees"]
    folder = Path(extra["repro"][0]["folder"])
    assert repro(folder) == (1, 1)
    program.write_text((tmp_path / "healthy").read_text())  # the engine is mended in its place
    assert repro(folder) == (0, 0)
