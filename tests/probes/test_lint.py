"""Lint of plans: silent on every healthy one; each rule on the edit that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firstbad.lint import Finding
from firstbad.probes import edits
from firstbad.probes.lint import lint
from firstbad.probes.plan import Plan
from firstbad.probes.planner import plan as planned
from firstbad.reference.random_whisper import CONFIGS

LAYER = "model.encoder.layers.1"


def of(size: str, context: int | None = 40, *, reuse: bool = True) -> Plan:
    return planned(dict(CONFIGS[size].config), context, reuse=reuse)


def found(plan: Plan, rule: str) -> list[Finding]:
    return [f for f in lint(plan) if f.rule == rule]


@pytest.mark.parametrize("size", ["micro", "tiny"])
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("context", [None, 1, 7, 40])
def test_a_healthy_plan_is_silent(size: str, context: int | None, reuse: bool) -> None:
    assert lint(of(size, context, reuse=reuse)) == ()


@pytest.mark.parametrize("size", ["micro", "tiny"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(("op", "port"), [("self_attn.v_proj", "x"), ("self_attn.q_proj", "x"), ("fc1", "x")])
def test_a_layer_wired_unlike_the_others(size: str, layer: int, op: str, port: str) -> None:
    stream = "model.encoder.add" if layer == 0 else f"model.encoder.layers.{layer - 1}.add_1"
    name = f"model.encoder.layers.{layer}.{op}"
    findings = found(edits.rewire(of(size), "encode", name, port, stream), "siblings")
    assert [(f.step, f.op) for f in findings] == [("encode", name)]


def test_of_two_layers_that_differ_with_no_other_stack_both_are_named() -> None:
    plan = of("micro")
    for step in ("prefill", "decode"):
        plan = edits.rewire(plan, step, "model.decoder.layers.1.encoder_attn.q_proj", "x", "model.decoder.layers.1.add")
    findings = found(plan, "siblings")
    assert [(f.step, f.op, f.other) for f in findings] == [
        (step, "model.decoder.layers.1.encoder_attn.q_proj", "model.decoder.layers.0.encoder_attn.q_proj")
        for step in ("prefill", "decode")
    ]
    assert "one of them is wrong" in findings[0].text


def test_another_s_weight_and_a_weight_that_nobody_uses() -> None:
    op = "model.encoder.conv2"
    plan = edits.set_weight(of("micro"), "encode", op, "bias", "model.encoder.conv1.bias")
    named, unread = lint(plan)
    assert (named.rule, named.op, named.other) == ("weight_name", op, "model.encoder.conv1.bias")
    assert (unread.rule, unread.op, unread.value) == ("never_read", op, f"{op}.bias")
    # a head tied to the embedding has no weight of its own name
    assert lint(of("tiny")) == ()


def test_the_same_wire_in_every_layer_cannot_be_told_by_siblings() -> None:
    plan = of("micro")
    for layer in range(2):
        stream = "model.encoder.add" if layer == 0 else "model.encoder.layers.0.add_1"
        plan = edits.rewire(plan, "encode", f"model.encoder.layers.{layer}.self_attn.v_proj", "x", stream)
    assert lint(plan) == ()


def test_a_dead_value_in_its_place() -> None:
    plan = edits.rewire(
        of("tiny"), "encode", f"{LAYER}.fc1", "x", "model.encoder.layers.0.self_attn.q_proj", planned_anew=False
    )
    (reused,) = found(plan, "reused")
    assert (reused.op, reused.value) == (f"{LAYER}.fc1", "model.encoder.layers.0.self_attn.q_proj")
    assert reused.other == "model.encoder.layers.0.add_1"
    assert [f.value for f in found(plan, "never_read")] == [f"{LAYER}.final_layer_norm"]


def test_two_live_values_in_one_place() -> None:
    plan = edits.move(of("tiny", reuse=False), "encode", f"{LAYER}.self_attn.v_proj", f"{LAYER}.self_attn.mul")
    (reused,) = lint(plan)
    assert (reused.rule, reused.op, reused.other) == (
        "reused",
        f"{LAYER}.self_attn.matmul",
        f"{LAYER}.self_attn.v_proj",
    )


def shifted(plan: Plan, step: str, tensor: str, by: int) -> Plan:
    tensors = plan.steps[step].tensors
    moved = replace(tensors[tensor], offset=tensors[tensor].offset + by)
    return plan.with_step(replace(plan.steps[step], tensors={**tensors, tensor: moved}))


def test_extents_that_overlap_in_part() -> None:
    plan = of("micro", reuse=False)
    norm = plan.steps["encode"].tensors[f"{LAYER}.self_attn_layer_norm"]
    span = norm.bytes({"t": 40, "n": 40})
    moved = replace(plan.steps["encode"].tensors[f"{LAYER}.self_attn.q_proj"], offset=norm.offset + span // 2)
    step = plan.steps["encode"]
    plan = plan.with_step(replace(step, tensors={**step.tensors, moved.name: moved}))
    rules = {(f.rule, f.op, f.other) for f in lint(plan)}
    # q_proj reads the norm and lands on half of it: told at once, and for k_proj, which needs the norm afterwards
    assert ("in_place", f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn_layer_norm") in rules
    assert ("in_place", f"{LAYER}.self_attn.k_proj", f"{LAYER}.self_attn.q_proj") in rules


def test_read_before_written() -> None:
    later = "model.decoder.layers.1.final_layer_norm"
    plan = edits.rewire(of("tiny"), "decode", "model.decoder.layers.0.fc1", "x", later)
    assert [(f.op, f.value) for f in found(plan, "read_before_written")] == [("model.decoder.layers.0.fc1", later)]


def test_a_cache_row_late() -> None:
    name = "model.decoder.layers.0.self_attn.k_proj"
    plan = replace(of("micro"), buffers={**of("micro").buffers, name: 450 * 256})
    findings = found(shifted(plan, "decode", name, 256), "extent")
    assert [(f.step, f.op) for f in findings] == [("decode", "model.decoder.layers.0.self_attn.matmul")]


def in_place(plan: Plan, op: str, onto: str) -> Plan:
    return edits.move(plan, "encode", op, onto)


def test_in_place_is_fine_where_the_kernel_can_and_nobody_needs_the_input() -> None:
    plan = in_place(of("micro", reuse=False), f"{LAYER}.activation_fn.gelu", f"{LAYER}.fc1")
    plan = in_place(plan, f"{LAYER}.self_attn.softmax", f"{LAYER}.self_attn.matmul")
    plan = in_place(plan, f"{LAYER}.add", "model.encoder.layers.0.add_1")
    assert lint(plan) == ()


@pytest.mark.parametrize(
    ("op", "onto", "at"),
    [
        # a norm on the stream that the residual still needs
        ("self_attn_layer_norm", "model.encoder.layers.0.add_1", f"{LAYER}.add"),
        # a matrix product on its own input
        ("fc2", f"{LAYER}.activation_fn.gelu", f"{LAYER}.fc2"),
    ],
)
def test_in_place_on_what_is_still_needed(op: str, onto: str, at: str) -> None:
    findings = found(in_place(of("micro", reuse=False), f"{LAYER}.{op}", onto), "in_place")
    assert at in [f.op for f in findings]


def test_alignment() -> None:
    (finding,) = lint(shifted(of("micro", reuse=False), "decode", "proj_out", 4))
    assert (finding.rule, finding.op) == ("alignment", "proj_out")


def view(plan: Plan, name: str, source: str, *, offset: int = 0, cut: int = 1) -> Plan:
    """A tensor that no op makes, on the bytes of `source`, of which it shows the first part."""
    step = plan.steps["encode"]
    tensor = step.tensors[source]
    shape = (1, int(tensor.shape[1]) // cut, *tensor.shape[2:])
    shown = replace(tensor, name=name, offset=tensor.offset + offset, shape=shape)
    return plan.with_step(replace(step, tensors={**step.tensors, name: shown}))


def test_views_have_a_rule() -> None:
    plan = of("micro", reuse=False)
    whole = view(plan, "a_view", f"{LAYER}.fc1")
    whole = edits.rewire(whole, "encode", f"{LAYER}.activation_fn.gelu", "x", "a_view", planned_anew=False)
    assert [f.rule for f in lint(whole)] == ["siblings"]  # and nothing else: all of fc1's bytes are read
    late = view(plan, "late", f"{LAYER}.fc1", offset=64)
    late = edits.rewire(late, "encode", f"{LAYER}.activation_fn.gelu", "x", "late", planned_anew=False)
    assert "extent" in [f.rule for f in lint(late)]
