"""Parts that were not written, and sums without some of their terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.firstbad.by_hand import MIX, SOFTMAX, V_, Q, X, heads, linear, q_proj


def filled(a: np.ndarray, where: Any, content: Any) -> np.ndarray:
    made = np.array(a)
    made[where] = content
    return made


def test_rows_that_hold_zero(fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: filled(q_proj(v, w), np.s_[:, 16:], 0)).cause
    assert (cause.kind, cause.detail["holds"], cause.detail["rows"]) == ("partial_write", "zero", "16 to 23")
    assert cause.statement.startswith("rows 16 to 23 of attn.q_proj of layer 1 are not written")


def test_one_dead_column(fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: filled(q_proj(v, w), np.s_[..., 5], 0)).cause
    assert (cause.kind, cause.detail["columns"]) == ("partial_write", "5")


def test_columns_of_one_head(fault: Callable[..., Any]) -> None:
    cause = fault(MIX, lambda v, _: filled(v[SOFTMAX] @ heads(v[V_]), np.s_[:, 3, :, 4:], 0)).cause
    assert (cause.kind, cause.detail["columns"], cause.detail["groups"]) == ("partial_write", "4 to 7", "3")
    assert "columns 4 to 7 of head 3" in cause.statement


def test_columns_that_hold_nan_and_nothing_else_is_blamed(fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: filled(q_proj(v, w), np.s_[..., 8:16], np.nan)).cause
    assert (cause.kind, cause.detail["holds"], cause.detail["columns"]) == ("partial_write", "NaN", "8 to 15")


def test_rows_that_hold_what_another_value_has_there(fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: filled(q_proj(v, w), np.s_[:, 20:], v[X][:, 20:])).cause
    assert (cause.kind, cause.detail["left_by"], cause.detail["rows"]) == ("partial_write", X, "20 to 23")


def test_one_nan_is_no_part(fault: Callable[..., Any]) -> None:
    assert fault(Q, lambda v, w: filled(q_proj(v, w), np.s_[0, 3, 4], np.nan)).cause.kind == "nonfinite"


@pytest.mark.parametrize(
    ("kept", "terms"), [(np.s_[:28], "28 to 31"), (np.s_[4:], "0 to 3"), ([*range(9), *range(10, 32)], "9")]
)
def test_a_sum_without_some_terms(kept: Any, terms: str, fault: Callable[..., Any]) -> None:
    cause = fault(Q, lambda v, w: linear(v[X][..., kept], w[f"{Q}.weight"][:, kept], w[f"{Q}.bias"])).cause
    assert (cause.kind, cause.detail["terms"]) == ("partial_write", terms)


def test_a_value_that_is_another_one(fault: Callable[..., Any]) -> None:
    """The op never ran: its value is what another op has left."""
    cause = fault(Q, lambda v, _: v["layers.0.attn.q_proj"]).cause
    assert (cause.kind, cause.detail["holds"]) == ("missing_op", "layers.0.attn.q_proj")


def scaled(w: np.ndarray, where: Any, factor: float) -> np.ndarray:
    made = np.array(w)
    made[where] *= np.float32(factor)
    return made


@pytest.mark.parametrize(
    ("where", "factor", "detail"),
    [
        (np.s_[:, 16:], 1.25, {"terms": "16 to 31", "number": 1.25}),
        (np.s_[:8, :16], 0, {"terms": "0 to 15", "columns": "0 to 7", "number": 0.0}),
        (np.s_[:, 8:12], -1, {"terms": "8 to 11", "number": -1.0}),
    ],
)
def test_a_block_of_a_weight_with_another_scale(
    where: Any, factor: float, detail: dict[str, Any], fault: Callable[..., Any]
) -> None:
    cause = fault(Q, lambda v, w: linear(v[X], scaled(w[f"{Q}.weight"], where, factor), w[f"{Q}.bias"])).cause
    assert (cause.kind, {k: cause.detail.get(k) for k in detail}) == ("wrong_weight", detail)
