"""The gated delta rule on the C engine: in chunks and step by step against float64, and its faults by name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firstbad.probes import c, edits
from firstbad.probes.plan import Plan, save
from firstbad.run import CaptureOptions
from firstbad.session import diff, prepare
from firstbad.toolchain import build

from .test_language import spec

ENGINE = Path(c.__file__).parent / "engine"
LAYER = "model.layers.0.linear_attn"
RULE = {"prefill": "to", "decode": "as_strided_scatter"}


class Delta(ctypes.Structure):
    """As in engine/kernels.h."""

    _fields_ = [(name, ctypes.c_int64) for name in "T G H K V C chunk".split()] + [
        ("decayed", ctypes.c_int),
        ("gated", ctypes.c_int),
    ]


def by_hand(x: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray, G: int) -> tuple[np.ndarray, np.ndarray]:
    """One token after the other in float64, as the paper has it."""
    H, K, V = state.shape
    S = state.astype(np.float64)
    out = np.zeros((len(x), H, V))
    for t, row in enumerate(x.astype(np.float64)):
        q, k = (row[n * G * K : (n + 1) * G * K].reshape(G, K) for n in (0, 1))
        v = row[2 * G * K :].reshape(H, V)
        for h in range(H):
            kh = k[h * G // H] / np.sqrt((k[h * G // H] ** 2).sum() + 1e-6)
            qh = q[h * G // H] / np.sqrt((q[h * G // H] ** 2).sum() + 1e-6) / np.sqrt(K)
            S[h] = np.exp(g[t, h]) * S[h]
            S[h] += np.outer(kh, beta[t, h] * (v[h] - S[h].T @ kh))
            out[t, h] = S[h].T @ qh
    return out, S


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_chunks_and_steps_give_what_the_recurrence_gives(chunk: int) -> None:
    sources = [path for path in sorted(ENGINE.glob("*.c")) if path.name != "main.c"]
    library = ctypes.CDLL(str(build(sources, flags=[*c.FLAGS, "-DCOPY=98"], include=(ENGINE.parent / "include",))))
    T, G, H, K, V = 11, 2, 4, 8, 6
    random = np.random.default_rng(3)
    x = random.standard_normal((T, 2 * G * K + H * V)).astype(np.float32)
    g = -random.random((T, H)).astype(np.float32)
    beta = random.random((T, H)).astype(np.float32)
    state = random.standard_normal((H, K, V)).astype(np.float32)
    y, after = np.zeros((T, H, V), np.float32), np.zeros_like(state)
    at = [a.ctypes.data_as(ctypes.c_void_p) for a in (y, after, x, g, beta, state)]
    library.delta_rule(*at, ctypes.byref(Delta(T, G, H, K, V, x.shape[1], chunk, 1, 1)))
    expected, left = by_hand(x, g, beta, state, G)
    np.testing.assert_allclose(y, expected, atol=2e-6)
    np.testing.assert_allclose(after, left, atol=2e-6)


def everywhere(key: str, number: float) -> Callable[[Plan], Plan]:
    def edit(plan: Plan) -> Plan:
        for step, rule in RULE.items():
            for op in (rule, "copy_2"):
                plan = edits.set_attr(plan, step, f"{LAYER}.{op}", key, number)
        return plan

    return edit


def state_left(plan: Plan) -> Plan:
    """What an earlier request would have left behind: prefill does not start with zeros."""
    return edits.set_attr(plan, "prefill", f"{LAYER}.zeros_1", "number", 0.3)


def conv_state_late(plan: Plan) -> Plan:
    for step in RULE:
        plan = edits.set_attr(plan, step, f"{LAYER}.copy", "shift", 1)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "value", "kind", "said"),
    [
        (state_left, "zeros_1", "partial_write", "holds 0.3"),
        (conv_state_late, "copy", "position", f"{LAYER}.cat moved by 1"),
        # without decay the state goes into the sum as it is; without beta the difference does
        (everywhere("decayed", 0), "copy_2", "missing_op", f"leaves out mul: it gives {LAYER}.copy_2 as it is"),
        (everywhere("gated", 0), "copy_2", "missing_op", f"leaves out mul: it gives {LAYER}.sub as it is"),
    ],
)
def test_a_planted_fault_is_named(
    edit: Callable[[Plan], Plan], value: str, kind: str, said: str, tmp_path: Path
) -> None:
    model = spec("qwen3_next", tmp_path)
    _, prepared = prepare(model)
    save(edit(c.plan_for("", prepared)), tmp_path / "plan.json")
    options = CaptureOptions(max_tokens=3, threads=1)
    first, *others = diff(model, f"c:{tmp_path / 'plan.json'}", tmp_path / "out", options, budget=20).result.faults
    assert (first.value, first.cause.kind) == (f"{LAYER}.{value}", kind)
    assert said in first.cause.statement
    assert {fault.value for fault in others} <= {f"{LAYER}.norm.mul_1", f"{LAYER}.as_strided_scatter"}


@pytest.mark.slow
def test_chunks_that_begin_with_a_state_match(tmp_path: Path) -> None:
    model = spec("qwen3_next", tmp_path)
    _, prepared = prepare(model)
    plan = c.plan_for("", prepared)
    for op in ("to", "copy_2"):
        plan = edits.set_attr(plan, "prefill", f"{LAYER}.{op}", "chunk", 4)
    save(plan, tmp_path / "plan.json")
    options = CaptureOptions(max_tokens=2, threads=1)
    assert diff(model, f"c:{tmp_path / 'plan.json'}", tmp_path / "out", options, budget=0).result.verdict == "match"
