"""Decoder-only models on the C engine: each family's own facts, against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstbad.comparison import Comparison
from firstbad.probes import c
from firstbad.run import CaptureOptions, ModelSpec
from firstbad.session import diff, prepare

PROMPT = (5, 9, 11, 40, 7, 3, 8, 2, 30)


def spec(family: str) -> ModelSpec:
    return ModelSpec(f"causal:{family}", random_weights=1, tokens=(PROMPT,))


def compared(family: str, folder: Path, candidate: str = "c") -> Comparison:
    return diff(spec(family), candidate, folder, CaptureOptions(max_tokens=3, threads=1), budget=0)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_prefill_and_decode_match(family: str, tmp_path: Path) -> None:
    result = compared(family, tmp_path).result
    assert result.verdict == "match"
    assert result.coverage.compared["prefill"] > 30
    assert result.coverage.compared["decode"] > 60
    assert not result.coverage.only_candidate


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_lint_is_silent_on_the_planners_own(family: str) -> None:
    _, prepared = prepare(spec(family))
    assert c.lint("", prepared) == ()
