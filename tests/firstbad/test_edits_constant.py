"""Numbers that are solved for: a factor of the call, a gain in a part, a cap; and how a number is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.edits_constant import nice
from tests.firstbad.by_hand import MASKED, MIX, SOFTMAX, V_, Arrays, D, Q, heads, linear, q_proj


def part(a: np.ndarray, where: Any, factor: float) -> np.ndarray:
    made = np.array(a)
    made[where] = made[where] * np.float32(factor)
    return made


def test_a_factor_of_the_call(fault: Callable[..., Any]) -> None:
    cause = fault("layers.1.attn.mul", lambda v, _: v[Q] * np.float32(D**-0.5)).cause
    assert (cause.kind, cause.detail["what"]) == ("wrong_constant", "factor")
    assert cause.detail["number"] == pytest.approx(D**-0.5, rel=1e-12)
    assert "0.353553391" in cause.statement


def test_a_gain_in_one_head(fault: Callable[..., Any]) -> None:
    cause = fault(MIX, lambda v, _: part(v[SOFTMAX] @ heads(v[V_]), np.s_[:, 2], 1.001)).cause
    assert (cause.kind, cause.detail["what"], cause.detail["groups"]) == ("wrong_constant", "gain", "2")
    assert cause.detail["number"] == 1.001
    assert cause.statement.endswith("is multiplied by 1.001 in head 2")


def test_a_gain_in_some_columns(fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: part(q_proj(v, w), np.s_[..., 8:16], 1.01)).cause
    assert (cause.kind, cause.detail["columns"], cause.detail["number"]) == ("wrong_constant", "8 to 15", 1.01)


def test_a_small_gain_of_everything(fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: q_proj(v, w) * np.float32(1.0001)).cause
    assert (cause.kind, cause.detail["what"], cause.detail["number"]) == ("wrong_constant", "gain", 1.0001)


def test_a_factor_before_a_softmax(fault: Callable[..., Any]) -> None:
    def wrong(v: Arrays, _: Arrays) -> np.ndarray:
        e = np.exp(np.where(v[MASKED] < -1e9, -np.inf, v[MASKED].astype(np.float64) * 1.1))
        made: np.ndarray = e / e.sum(-1, keepdims=True)
        return made

    cause = fault(SOFTMAX, wrong).cause
    assert (cause.kind, cause.detail["input"], cause.detail["number"]) == ("wrong_constant", MASKED, 1.1)


def test_a_soft_cap(fault: Callable[..., Any]) -> None:
    cause = fault("head", lambda v, w: 3 * np.tanh(linear(v["norm"], w["head.weight"]) / 3)).cause
    assert (cause.kind, cause.detail["op"]) == ("extra_op", "soft cap")
    assert cause.detail["number"] == pytest.approx(3, rel=1e-6)


def test_one_element_is_no_gain(fault: Callable[..., Any]) -> None:
    """One number more would explain any one element: nothing is claimed."""
    assert fault(Q, lambda v, w: part(q_proj(v, w), np.s_[0, 3, 4], 1.5)).cause.kind == "unknown"


@pytest.mark.parametrize(
    ("number", "slack", "written"),
    [
        (1.0000003e-6, 1e-12, 1e-6),
        (1.00000004, 1e-9, 1.0),
        (0.125000001, 1e-8, 0.125),
        (0.1767766953, 1e-12, 32**-0.5),
        (1.7019999, 1e-6, 1.702),
        (3.3e-9, 1e-8, 0.0),
        (0.123456789012, 1e-10, 0.1234568),
    ],
)
def test_the_shortest_number_within_the_uncertainty(number: float, slack: float, written: float) -> None:
    assert nice(number, slack) == pytest.approx(written, rel=1e-15)
