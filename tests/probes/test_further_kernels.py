"""Kernels of a further C file: compiled in beside the engine, asked for by `kind:variant`, recorded as the kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from firstbad.errors import UsageError
from firstbad.probes import edits
from firstbad.probes.kinds import KINDS, kind_of
from firstbad.probes.plan import Plan

from .conftest import OPTIONS, Capture

SOURCE = """
#include "kernels.h"
#include "runtime.h"
static void doubled(const Call *c) {
    float *y = (float *)(void *)c->out.at;
    const float *x = (const float *)(void *)c->in[0].at;
    gelu(y, x, c->out.count);
    for (int64_t i = 0; i < c->out.count; i++) y[i] *= (float)attr(c, "times", 2);
}
const KernelEntry extra_kernels[] = {{"gelu:doubled", doubled, __FILE__, __LINE__}, {0, 0, 0, 0}};
"""
OP = "model.encoder.layers.1.activation_fn.gelu"


@pytest.fixture
def kernels(tmp_path: Path) -> tuple[Path, ...]:
    path = tmp_path / "mine.c"
    path.write_text(SOURCE)
    return (path,)


def test_it_runs_in_the_place_of_the_engine_s_own(capture: Capture, plan: Plan, kernels: tuple[Path, ...]) -> None:
    odd = edits.set_attr(edits.set_kind(plan, "encode", OP, "gelu:doubled"), "encode", OP, "times", 3)
    trace, output = capture(odd, replace(OPTIONS, kernels=kernels))
    assert output.complete
    healthy, _ = capture(plan)
    got, right = (t.array(t.graph.by_key["encode", OP]) for t in (trace, healthy))
    np.testing.assert_array_equal(got, right * np.float32(3))
    (op,) = [o for o in trace.graph.ops if o.name == OP]
    assert op.kind == "gelu"  # a run does not tell on itself
    assert op.file.endswith("mine.c")


def test_a_plan_that_asks_for_one_needs_the_file(capture: Capture, plan: Plan, kernels: tuple[Path, ...]) -> None:
    odd = edits.set_kind(plan, "encode", OP, "gelu:doubled")
    with pytest.raises(UsageError, match="which the engine has no kernel of: give the C file"):
        capture(odd)
    other = edits.set_kind(plan, "encode", OP, "gelu:tripled")
    _, output = capture(other, replace(OPTIONS, kernels=kernels))
    assert "no kernel: gelu:tripled" in output.death


def test_ports_are_those_of_the_kind() -> None:
    assert kind_of("linear:anything") is KINDS["linear"]
    assert kind_of("naive_linear:anything") is KINDS["linear"]
    assert kind_of("gelus:anything") is None
