"""Causes that need what the probe saw (addresses, reads, hashes): planted in the built-in C engine's plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from firstbad.probes import edits
from firstbad.probes.lifetimes import assign
from firstbad.probes.plan import Plan, PlanOp

from .conftest import Bench

ENC, DEC = "model.encoder.layers", "model.decoder.layers"


def in_place(plan: Plan) -> Plan:
    return edits.move(assign(plan, reuse=False), "encode", f"{ENC}.1.fc2", f"{ENC}.1.activation_fn.gelu")


def eps(plan: Plan) -> Plan:
    for step in ("prefill", "decode"):
        plan = edits.set_attr(plan, step, f"{DEC}.1.final_layer_norm", "eps", 1e-3)
    return plan


def no_bias(plan: Plan) -> Plan:
    def without(op: PlanOp) -> PlanOp:
        return replace(op, weights={"weight": op.weights["weight"]})

    return edits.edit_op(plan, "decode", f"{DEC}.1.fc1", without)


def not_placed(plan: Plan) -> Plan:
    """Decode steps take the first rows of the table, whatever their position."""

    def first(op: PlanOp) -> PlanOp:
        return replace(op, attrs={**op.attrs, "decoder": 0})

    return edits.edit_op(plan, "decode", "model.decoder.embed_positions.index", first)


PLANS: dict[str, tuple[Callable[[Plan], Plan], str, str, dict[str, Any]]] = {
    "over its own input": (
        in_place,
        f"{ENC}.1.fc2",
        "clobbered",
        {"input": f"{ENC}.1.activation_fn.gelu", "overwritten_by": f"{ENC}.1.fc2"},
    ),
    "what comes later": (
        lambda plan: edits.rewire(plan, "decode", f"{DEC}.0.fc1", "x", f"{DEC}.1.final_layer_norm"),
        f"{DEC}.0.fc1",
        "stale",
        {"input": f"{DEC}.1.final_layer_norm", "instead_of": f"{DEC}.0.final_layer_norm"},
    ),
    "weight of the other layer": (
        lambda plan: edits.set_weight(plan, "encode", f"{ENC}.1.fc1", "weight", f"{ENC}.0.fc1.weight"),
        f"{ENC}.1.fc1",
        "wrong_weight",
        {"weight": f"{ENC}.1.fc1.weight", "read": f"{ENC}.0.fc1.weight"},
    ),
    "eps": (eps, f"{DEC}.1.final_layer_norm", "wrong_constant", {"what": "eps", "number": 1e-3, "holds_there": True}),
    "no bias": (no_bias, f"{DEC}.1.fc1", "missing_bias", {"weight": f"{DEC}.1.fc1.bias", "holds_there": True}),
    "positions restarted": (
        not_placed,
        "model.decoder.embed_positions.index",
        "position",
        {"how": "restarted at 0"},
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_cause_is_named(name: str, micro: Bench) -> None:
    plan, value, kind, detail = PLANS[name]
    result = micro.judge(*micro.run(plan(micro.plan)))
    assert [f.value for f in result.faults] == [value]
    cause = result.faults[0].cause
    assert (cause.kind, {k: cause.detail.get(k) for k in detail}) == (kind, detail)
    assert cause.reproduces_to is not None
    assert cause.reproduces_to < 1e-6
