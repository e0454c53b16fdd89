"""The built-in engine against transformers on the same weights, and everything that may befall it on the way."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firstbad.errors import UsageError
from firstbad.graph import Op
from firstbad.hashing import hash_array
from firstbad.probes import c, edits
from firstbad.probes.plan import Plan, save
from firstbad.probes.planner import plan as planned
from firstbad.probes.program import lower, write_weights
from firstbad.reference import whisper
from firstbad.run import CaptureOptions, Prepared
from firstbad.trace import Trace, TraceWriter, open_trace

from .conftest import OPTIONS, POSITIONS, Capture

SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
WARN = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes")


def greedy(prepared: Prepared, tokens: int) -> tuple[list[int], dict[tuple[str, str], np.ndarray]]:
    """transformers' own model and hooks on its modules, without firstbad's recorder: tokens, and module outputs."""
    model = prepared.model_object
    seen: dict[tuple[str, str], np.ndarray] = {}
    step = "encode"

    def hook(name: str) -> Any:
        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                seen[step, name] = output.detach().numpy().copy()

        return keep

    handles = [m.register_forward_hook(hook(name)) for name, m in model.named_modules() if not list(m.children())]
    chosen: list[int] = []
    with torch.inference_mode():
        encoded = model.model.encoder(torch.from_numpy(prepared.inputs["input_features"]))[0]
        fed = torch.tensor([prepared.prompt])
        history = fed
        while len(chosen) < tokens and prepared.eos not in chosen:
            step = f"decode.{len(chosen) - 1}" if chosen else "prefill"
            logits = model(encoder_outputs=(encoded,), decoder_input_ids=history, use_cache=False).logits[0, -1]
            banned = [*prepared.suppress, *(() if chosen else prepared.begin_suppress)]
            logits[banned] = -torch.inf
            chosen.append(int(logits.argmax()))
            history = torch.cat([history, torch.tensor([[chosen[-1]]])], 1)
    for handle in handles:
        handle.remove()
    return chosen, seen


def rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))


def test_it_chooses_what_transformers_chooses_and_every_module_agrees(capture: Capture, prepared: Prepared) -> None:
    trace, output = capture(options=replace(OPTIONS, max_tokens=12))
    tokens, modules = greedy(prepared, 12)
    assert list(output.tokens) == tokens
    assert len(set(tokens)) > 1
    compared = 0
    for (step, name), expected in modules.items():
        value = trace.graph.by_key.get((step, name))
        if value is None:
            continue
        got = trace.array(value).astype(np.float64).reshape(1, -1, trace.array(value).shape[-1])
        want = expected.reshape(1, -1, expected.shape[-1])
        # without a cache transformers computes all positions again: ours are the last ones
        want = want[:, -got.shape[1] :] if step != "encode" else want
        assert rms(got - want) <= 1e-5 * rms(want), (step, name)
        compared += 1
    assert compared >= 10 * len(tokens)


def test_every_value_has_the_reference_s_name_shape_and_content(
    capture: Capture, prepared: Prepared, tmp_path: Path
) -> None:
    trace, output = capture()
    path = tmp_path / "reference.h5"
    with TraceWriter(path, role="reference", engine="torch") as writer:
        whisper.capture(prepared, writer, tokens=output.tokens, options=OPTIONS)
    with open_trace(path) as reference:
        named = reference.graph.by_key
        for key, value in trace.graph.by_key.items():
            assert key in named, key
            assert value.shape == named[key].shape, key
            if value.kind == "weight":
                assert value.hash == named[key].hash, key
                continue
            got, want = trace.array(value), reference.array(named[key])
            assert hash_array(got) == value.hash, key
            real = np.isfinite(want) & (np.abs(want) < 1e38)
            np.testing.assert_array_equal(np.isfinite(got) & (np.abs(got) < 1e38), real)
            got, want = np.where(real, got, 0), np.where(real, want, 0)
            assert rms(got.astype(np.float64) - want) <= 1e-5 * rms(want), key


def test_the_trace_says_who_read_what_from_where(capture: Capture, plan: Plan) -> None:
    trace, output = capture()
    assert trace.complete
    assert output.complete
    assert output.death == ""
    assert trace.outputs["tokens"] == list(output.tokens)
    ops = trace.graph.ops
    decodes = len(output.tokens) - 1
    assert len(ops) == sum(len(plan.steps[s].ops) for s in ("encode", "prefill")) + decodes * len(
        plan.steps["decode"].ops
    )
    values = trace.graph.values
    states = {r.state for op in ops for r in op.reads}
    assert states == {"ok"}
    for op in ops:
        assert op.line > 0
        assert op.file in {"probes/engine/matmul.c", "probes/engine/pointwise.c"}
        assert f"KERNEL({op.kind}," in (Path(c.__file__).parents[1] / op.file).read_text().splitlines()[op.line - 1]
        assert op.end_ns >= op.start_ns > 0
        wired = plan.steps[op.step.split(".")[0]].ops
        inputs = next(o for o in wired if o.name == op.name).inputs
        read = {r.slot: values[r.value].name for r in op.reads if values[r.value].kind != "weight"}
        assert read == inputs
    scores = next(op for op in ops if op.step == "decode.2" and op.name.endswith("self_attn.matmul"))
    rows = {values[r.value].step for r in scores.reads if r.slot == "k"}
    assert rows == {"prefill", "decode.0", "decode.1", "decode.2"}


def test_buffers_are_really_reused(capture: Capture) -> None:
    trace, _ = capture()
    encode = [v for v in trace.graph.values if v.step == "encode" and v.kind == "value"]
    spans = {(v.address, v.extent) for v in encode}
    assert len(spans) < len(encode) / 2


def test_the_probe_changes_nothing(prepared: Prepared, plan: Plan, capture: Capture, tmp_path: Path) -> None:
    """Tokens without a sink, and the last values with poisoned and with never-reused buffers."""
    trace, output = capture()
    files = [tmp_path / name for name in ("program", "weights", "features")]
    files[0].write_text(lower(plan, prepared, max_tokens=6))
    write_weights(plan, prepared.weights, files[1])
    prepared.inputs["input_features"].tofile(files[2])
    bare = subprocess.run([c.engine(), *files, "2"], capture_output=True, text=True, check=True, env={})
    assert [int(word) for word in bare.stdout.split()] == list(output.tokens)
    others = (
        capture(poison=True),
        capture(planned(prepared.config, POSITIONS, reuse=False)),
        capture(options=replace(OPTIONS, threads=1)),
    )
    for other, answer in others:
        assert answer.tokens == output.tokens
        hashes = {(v.step, v.name): v.hash for v in other.graph.values}
        assert hashes == {(v.step, v.name): v.hash for v in trace.graph.values}


@pytest.mark.parametrize("flags", [("-O0",), ("-O2", "-march=x86-64"), ("-ffast-math",)], ids=" ".join)
def test_other_builds_agree(capture: Capture, flags: tuple[str, ...]) -> None:
    trace, output = capture()
    other, answer = capture(options=replace(OPTIONS, cflags=flags))
    assert answer.tokens == output.tokens
    _assert_close(trace, other)


def test_naive_kernels_agree(capture: Capture, plan: Plan) -> None:
    for step in plan.steps.values():
        for op in step.ops:
            if op.kind in {"linear", "conv1d", "attention_scores", "attention_mix"}:
                plan = edits.set_kind(plan, step.name, op.name, f"naive_{op.kind}")
    naive, answer = capture(plan)
    trace, output = capture()
    assert answer.tokens == output.tokens
    assert any(op.kind == "naive_linear" for op in naive.graph.ops)
    _assert_close(trace, naive)


def _assert_close(a: Trace, b: Trace) -> None:
    for key, value in a.graph.by_key.items():
        if value.kind != "weight":
            x, y = a.array(value), b.array(b.graph.by_key[key])
            real = np.isfinite(x)
            np.testing.assert_array_equal(real, np.isfinite(y))
            x, y = np.where(real, x, 0).clip(-1e6, 1e6), np.where(real, y, 0).clip(-1e6, 1e6)
            assert rms(x.astype(np.float64) - y) <= 2e-5 * rms(x), key


def test_it_is_clean_under_sanitizers_and_warnings(capture: Capture, prepared: Prepared) -> None:
    _, output = capture()
    _, checked = capture(options=replace(OPTIONS, cflags=(*SANITIZE, *WARN)))
    assert checked.death == ""
    assert checked.tokens == output.tokens


@pytest.mark.parametrize("point", range(5))
@pytest.mark.parametrize("end", ["SIGSEGV", "SIGKILL", "hang", "exit"])
def test_what_came_before_a_death_is_kept(capture: Capture, plan: Plan, end: str, point: int) -> None:
    step = ("encode", "encode", "encode", "prefill", "decode")[point]
    index = (0, 11, 28, 17, 40)[point]
    op = plan.steps[step].ops[index]
    trap = {"SIGSEGV": signal.SIGSEGV, "SIGKILL": signal.SIGKILL, "hang": 0, "exit": -3}[end]
    broken = edits.set_attr(plan, step, op.name, "trap", int(trap))
    trace, output = capture(broken, replace(OPTIONS, timeout=1.0))
    before = {
        "encode": 0,
        "prefill": len(plan.steps["encode"].ops),
        "decode": len(plan.steps["encode"].ops) + len(plan.steps["prefill"].ops),
    }
    number = before[step] + index + 1
    assert not output.complete
    assert not trace.complete
    assert output.death == trace.death
    assert len(trace.graph.ops) == number - 1
    where = f"in op {number} `{op.name}` of {'decode.0' if step == 'decode' else step} (probes/engine/"
    said = {"hang": "silent for 1 s ", "exit": "exit status 3 "}.get(end, f"killed by {end} ")
    assert output.death.startswith(said + where)
    for value in trace.graph.values:
        if value.dataset:
            assert trace.array(value).shape == value.shape
    assert len(output.tokens) == (1 if step == "decode" else 0)


def test_a_wrong_wire_runs_as_it_is_written(capture: Capture, plan: Plan) -> None:
    """By hand in the file: one name, nothing planned anew; and its kin with lifetimes planned anew."""
    op, stream = "model.encoder.layers.1.self_attn.v_proj", "model.encoder.layers.0.add_1"
    as_it_is = edits.rewire(plan, "encode", op, "x", stream, planned_anew=False)
    for broken in (as_it_is, edits.rewire(plan, "encode", op, "x", stream)):
        trace, output = capture(broken)
        assert output.complete
        reads = _op(trace, op).reads
        assert [(trace.graph.values[r.value].name, r.state) for r in reads if r.slot == "x"] == [(stream, "ok")]


def test_a_dead_buffer_is_told(capture: Capture, plan: Plan) -> None:
    """Wired to a value whose place something else has taken by then."""
    op, dead = "model.encoder.layers.1.fc1", "model.encoder.layers.0.self_attn.q_proj"
    trace, output = capture(edits.rewire(plan, "encode", op, "x", dead, planned_anew=False))
    assert output.complete
    read = next(r for r in _op(trace, op).reads if r.slot == "x")
    assert (trace.graph.values[read.value].name, read.state) == (dead, "changed")
    assert read.overwritten_by
    assert trace.as_read(read).shape == (1, POSITIONS, 64)
    alive, _ = capture(edits.rewire(plan, "encode", op, "x", dead))
    assert {r.state for o in alive.graph.ops for r in o.reads} == {"ok"}


def test_two_live_tensors_in_one_place_are_a_clobber(capture: Capture, prepared: Prepared) -> None:
    layer = "model.encoder.layers.1.self_attn"
    spread = planned(prepared.config, POSITIONS, reuse=False)  # so that these two are the only ones that meet
    trace, output = capture(edits.move(spread, "encode", f"{layer}.v_proj", f"{layer}.mul"))
    assert output.complete
    scores = _op(trace, f"{layer}.matmul")
    read = next(r for r in scores.reads if r.slot == "q")
    values = trace.graph.values
    assert (values[read.value].name, read.state) == (f"{layer}.mul", "changed")
    assert [values[v].name for v in read.overwritten_by] == [f"{layer}.v_proj"]
    bad = {op.name for op in trace.graph.ops for r in op.reads if r.state != "ok"}
    assert bad == {f"{layer}.matmul"}


def test_a_value_read_before_it_is_made_is_unwritten_or_of_an_earlier_step(capture: Capture, plan: Plan) -> None:
    op, later = "model.decoder.layers.0.fc1", "model.decoder.layers.1.final_layer_norm"
    trace, output = capture(edits.rewire(plan, "decode", op, "x", later))
    assert output.complete
    second = next(o for o in trace.graph.ops if o.name == op and o.step == "decode.1")
    (read,) = [r for r in second.reads if r.slot == "x"]
    assert (trace.graph.values[read.value].name, trace.graph.values[read.value].step) == (later, "decode.0")


def test_a_reference_value_can_be_put_into_a_live_run(capture: Capture, plan: Plan) -> None:
    """With a wrong wire, and the right value put in place behind it, everything after is right again."""
    healthy, output = capture()
    op = "model.encoder.layers.0.self_attn.v_proj"
    broken = edits.rewire(plan, "encode", op, "x", "model.encoder.add")

    def cure(step: str, name: str, array: np.ndarray) -> np.ndarray | None:
        assert (step, name) == ("encode", op)
        right = healthy.array(healthy.graph.by_key[step, name])
        assert not np.array_equal(array, right)
        return right

    trace, cured = capture(broken, replace=cure, replaced=[f"encode/{op}"])
    assert cured.tokens == output.tokens
    differing = [k for k, v in trace.graph.by_key.items() if v.hash != healthy.graph.by_key[k].hash]
    assert differing == [("encode", op)]


def test_steps_and_stops(capture: Capture) -> None:
    trace, output = capture(options=replace(OPTIONS, steps=("prefill", "decode.2")))
    assert output.complete
    assert {v.step for v in trace.graph.values if v.dataset} == {"prefill", "decode.2"}
    assert {v.step for v in trace.graph.values} >= {"encode", "decode.0"}
    trace, output = capture(stop=["encode/*self_attn.softmax"])
    assert output.complete
    assert trace.graph.ops[-1].name == "model.encoder.layers.0.self_attn.softmax"


def test_a_plan_for_another_input_or_model_is_refused(prepared: Prepared, plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(planned(prepared.config, POSITIONS - 1), path)
    with pytest.raises(UsageError, match=r"is for features \[1, 80, 98\], this input has \[1, 80, 100\]"):
        c.capture(str(path), prepared, tmp_path / "x.h5", OPTIONS)
    save(plan, path)
    thin = replace(prepared, weights={k: v for k, v in prepared.weights.items() if "fc1" not in k})
    with pytest.raises(UsageError, match=r"no weight `model.encoder.layers.0.fc1.weight`, which the plan uses"):
        c.capture(str(path), thin, tmp_path / "x.h5", OPTIONS)
    with pytest.raises(UsageError, match=r"cannot read the plan `.*nowhere.json`"):
        c.capture(str(tmp_path / "nowhere.json"), prepared, tmp_path / "x.h5", OPTIONS)
    with pytest.raises(UsageError, match="no recording to run on"):
        c.capture("", replace(prepared, inputs={}), tmp_path / "x.h5", OPTIONS)
    with pytest.raises(UsageError, match="runs Whisper and language models, not gpt2"):
        c.capture("", replace(prepared, inputs={}, family="gpt2"), tmp_path / "x.h5", OPTIONS)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_nothing_is_left_behind(capture: Capture, tmp_path: Path) -> None:
    capture()
    assert [p.name for p in tmp_path.iterdir()] == ["0.h5"]


def _op(trace: Trace, name: str) -> Op:
    return next(op for op in trace.graph.ops if op.name == name)


def test_max_tokens_and_the_end_token(capture: Capture, prepared: Prepared, tmp_path: Path) -> None:
    _, output = capture(options=replace(OPTIONS, max_tokens=3))
    assert len(output.tokens) == 3
    ended = replace(prepared, eos=output.tokens[1])
    short = c.capture("", ended, tmp_path / "short.h5", CaptureOptions(threads=2))
    first = output.tokens.index(output.tokens[1])
    assert short.tokens == output.tokens[: first + 1]
    assert short.text == prepared.text(short.tokens)
