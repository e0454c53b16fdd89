"""The engine under sanitizers, and two live tensors on one buffer: memory faults of the engine and in its plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firstbad.probes import edits
from firstbad.probes.lifetimes import lifetimes
from firstbad.probes.plan import Plan, save
from firstbad.probes.planner import plan as planned
from firstbad.result import load
from firstbad.run import CaptureOptions, ModelSpec

from .conftest import CLIP, MICRO, THREADS, Bench, Command, bench_of

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


@pytest.mark.parametrize(
    ("size", "context", "tokens"),
    [
        ("micro", 150, 6),
        pytest.param("tiny.en", 150, 4, marks=pytest.mark.slow),
        pytest.param("tiny.en", None, None, marks=pytest.mark.slow),
    ],
)
def test_the_engine_is_clean_under_sanitizers(
    tmp_path: Path, size: str, context: int | None, tokens: int | None
) -> None:
    seed = 1 if size == "micro" else None
    spec = ModelSpec("whisper", CLIP, seed, context, size if seed is not None else "")
    options = CaptureOptions(max_tokens=tokens, threads=THREADS)
    bench = bench_of(spec, tmp_path, options)
    trace, output = bench.run(cflags=SANITIZED)
    assert output.death == ""
    _, answer = bench.run()
    assert output.tokens == answer.tokens
    result = bench.judge(trace, output)
    assert (result.verdict, result.faults) == ("match", ())


def clobbers(plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """(step, tensor, tensor that is put over it, first reader that finds it so), each pair the only one that meets."""
    for name in ("encode", "decode"):
        step = plan.steps[name]
        made = {op.name: i for i, op in enumerate(step.ops)}
        lives = lifetimes(step)
        sizes = {"t": 40, "n": 40} if name == "encode" else {"t": 1, "n": 3}
        for victim, (born, last) in lives.items():
            tensor = step.tensors[victim]
            if victim not in made or tensor.kept or last >= len(step.ops):
                continue
            for op in step.ops[born + 1 : last]:
                other = step.tensors[op.name]
                end = lives[op.name][1]
                if other.kept or other.bytes(sizes) != tensor.bytes(sizes) or end >= len(step.ops):
                    continue
                readers = [o.name for o in step.ops[made[op.name] + 1 :] if victim in o.inputs.values()]
                if victim not in op.inputs.values() and readers:
                    yield name, victim, op.name, readers[0]


def test_a_planted_clobber_is_told_with_both_ops(micro: Bench) -> None:
    # without reuse nothing else meets, so that what is planted is the only clobber
    spread = planned(micro.prepared.config, 40, reuse=False)
    found = list(clobbers(spread))
    assert len(found) >= 20
    for step, victim, writer, reader in [*found[:: len(found) // 6]]:
        trace, output = micro.run(edits.move(spread, step, writer, victim))
        assert output.complete
        result = micro.judge(trace, output)
        first = result.first_bad
        assert first is not None, (step, victim, writer)
        assert (first.value, first.step) == (reader, "encode" if step == "encode" else "decode.0")
        detail = first.cause.detail
        assert first.cause.kind == "clobbered", (victim, writer, first.cause)
        assert (detail["input"], detail["overwritten_by"]) == (victim, writer)
        assert detail["writer"]["op"] == writer
        assert {f.cause.kind for f in result.faults} == {"clobbered"}
        assert victim in first.cause.statement
        assert writer in first.cause.statement
        assert result.coverage.edges_changed >= 1


def test_an_op_that_writes_over_what_it_reads_is_told(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    """No edit of the values reproduces it, since what it read changed while it read; the plan alone says so."""
    op, dead = "model.encoder.layers.0.final_layer_norm", "model.encoder.conv2"
    broken = edits.rewire(micro.plan, "encode", op, "x", dead, planned_anew=False)
    places = [broken.steps["encode"].tensors[name] for name in (op, dead)]
    assert places[0].offset == places[1].offset
    save(broken, tmp_path / "plan.json")
    said = firstbad("diff", *MICRO, "--max-tokens", 2, "--candidate", f"c:{tmp_path}/plan.json", "-o", tmp_path / "out")
    assert said.code == 1
    result = load(tmp_path / "out" / "result.json")
    assert [f["value"] for f in result["faults"]] == [op]
    line = next(line for line in said.out.splitlines() if line.startswith("lint ") and "in_place" in line)
    assert f"{op} writes over {dead} while it reads it" in line
