"""Masks that are missing, strict, loose, inverted, of a window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firstbad.edits_mask import named
from tests.firstbad import shown
from tests.firstbad.by_hand import MASKED, SCORES, SOFTMAX, Arrays, T

LOWEST = np.finfo(np.float32).min
ROW, COLUMN = np.indices((T, T))


def masked(v: Arrays, where: np.ndarray) -> np.ndarray:
    return np.where(where, LOWEST, v[SCORES])


MASKS: dict[str, tuple[np.ndarray, str]] = {
    "missing": (np.zeros((T, T), bool), "missing"),
    "strict": (COLUMN > ROW - 1, "causal, more by 1"),
    "loose": (COLUMN > ROW + 1, "shifted by 1 (less is masked)"),
    "inverted": (COLUMN <= ROW, "inverted"),
    "window": ((COLUMN > ROW) | (COLUMN <= ROW - 5), "window of 5"),
}


@pytest.mark.parametrize("case", MASKS)
def test_the_mask_is_named_at_the_scores(case: str, fault: Callable[..., Any]) -> None:
    where, how = MASKS[case]
    cause = fault(MASKED, lambda v, _: masked(v, where)).cause
    assert (cause.kind, cause.detail["how"], cause.detail["model"]) == ("mask", how, "causal")


def test_a_mask_seen_only_in_the_softmax(fault: Callable[..., Any]) -> None:
    """The scores are right, the softmax leaves out the last keys."""

    def wrong(v: Arrays, _: Arrays) -> np.ndarray:
        e = np.exp(np.where((v[MASKED] < -1e9) | (COLUMN >= T - 3), -np.inf, v[MASKED].astype(np.float64)))
        made: np.ndarray = e / e.sum(-1, keepdims=True)
        return made

    assert fault(SOFTMAX, wrong).cause.kind == "mask"


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (COLUMN > ROW, "causal"),
        (COLUMN > ROW + 1, "causal, less by 1"),
        ((COLUMN > ROW) | (COLUMN <= ROW - 7), "window of 7"),
        (COLUMN >= T - 2, "the last 2 columns"),
        (np.zeros((T, T), bool), "none"),
        (COLUMN == 3, "columns 3"),
        ((ROW + COLUMN) % 7 == 0, "82 elements"),
    ],
)
def test_a_masked_set_by_its_pattern(where: np.ndarray, name: str) -> None:
    assert named(where) == name


class Triangle(nn.Module):
    """As a model makes its own mask: of truth values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(x, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    ("diagonal", "how"), [(2, "shifted by 1 (less is masked)"), (0, "shifted by 1 (more is masked)")]
)
def test_a_triangle_of_truth_values_that_is_off_by_one(diagonal: int, how: str, tmp_path: Path) -> None:
    x = torch.randn(6, 6)
    cause = shown.fault(Triangle(), torch.ones(6, 6).triu(diagonal).bool(), x, tmp_path).cause
    assert (cause.kind, cause.detail["how"]) == ("mask", how)
