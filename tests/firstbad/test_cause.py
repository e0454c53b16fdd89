"""The search: two edits at once, what stays unknown, what is clean, the other site, the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Arrays = Mapping[str, np.ndarray]
T, D, H, K = 24, 32, 4, 8  # of the model in planted.py
X, Q, V_ = "layers.1.attn_norm", "layers.1.attn.q_proj", "layers.1.attn.v_proj"
SCORES, MASKED, SOFTMAX, MIX = (f"layers.1.attn.{n}" for n in ("matmul", "add", "softmax", "matmul_1"))


def linear(x: np.ndarray, weight: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    made: np.ndarray = (x.astype(np.float64) @ weight.T.astype(np.float64) + bias).astype(np.float32)
    return made


def filled(a: np.ndarray, where: Any, content: Any) -> np.ndarray:
    made = np.array(a)
    made[where] = content
    return made


def test_a_clean_copy_has_no_fault(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    result = planted.explained(recorded, planted.plant(recorded, {}, tmp_path / "clean.h5"))
    assert (result.verdict, result.faults) == ("match", ())


TWO: dict[str, tuple[Callable[[Arrays, Arrays], np.ndarray], set[str]]] = {
    "no bias, and a gain": (
        lambda v, w: linear(v[X], w[f"{Q}.weight"]) * np.float32(1.01),
        {"missing_bias", "wrong_constant"},
    ),
    "another weight, and a head not written": (
        lambda v, w: filled(linear(v[X], w["layers.0.attn.q_proj.weight"], w[f"{Q}.bias"]), np.s_[..., 8:16], 0),
        {"wrong_weight", "partial_write"},
    ),
}


@pytest.mark.parametrize("case", TWO)
def test_two_causes_in_one_region(case: str, fault: Callable[..., Any]) -> None:
    wrong, kinds = TWO[case]
    cause = fault(Q, wrong).cause
    assert {cause.kind, *(other["kind"] for other in cause.detail["and"])} == kinds
    assert ", and " in cause.statement


def test_two_faults_in_two_layers_are_told_apart(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    faults = {
        "layers.0.attn.v_proj": lambda v, w: linear(v["layers.0.attn_norm"], w["layers.0.attn.v_proj.weight"]),
        "layers.1.gelu": lambda v, _: np.maximum(v["layers.1.fc1"], 0),
    }
    result = planted.explained(recorded, planted.plant(recorded, faults, tmp_path / "two.h5"))
    found = [(f.value, f.cause.kind) for f in result.faults]
    assert found == [("layers.0.attn.v_proj", "missing_bias"), ("layers.1.gelu", "wrong_variant")]


def test_without_a_budget_nothing_is_searched(fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: linear(v[X], w[f"{Q}.weight"]), budget=0.0).cause
    assert (cause.kind, cause.detail["why"], cause.tried) == ("unknown", "not searched", 0)


def test_a_cause_reproduces_to_the_noise_of_the_op(fault: Callable[..., Any]) -> None:
    found = fault(Q, lambda v, w: linear(v[X], w[f"{Q}.weight"]))
    assert found.cause.reproduces_to < 3 * found.noise_floor < found.local_error


def test_equals_are_alternatives(fault: Callable[..., Any]) -> None:
    """A factor left out is also a factor of 1: every way that reproduces is listed."""
    cause = fault("layers.1.attn.mul", lambda v, _: v[Q]).cause
    assert cause.kind == "missing_op"
    assert "wrong_constant" in {a["kind"] for a in cause.alternatives}
    assert all(a["reproduces_to"] < 1e-6 for a in cause.alternatives)
