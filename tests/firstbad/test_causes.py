"""Causes of many faults: one mistake in many layers is searched for once, and what was not searched for is said."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from firstbad import causes
from firstbad.edit import Edit, alike
from firstbad.reports import terminal
from firstbad.result import Result


def relu(layer: int) -> dict[str, Any]:
    return {f"layers.{layer}.gelu": lambda v, _: np.maximum(v[f"layers.{layer}.fc1"], 0)}


def without_bias(layer: int) -> dict[str, Any]:
    def made(v: Any, w: Any) -> np.ndarray:
        x, weight = v[f"layers.{layer}.attn_norm"], w[f"layers.{layer}.attn.q_proj.weight"]
        return np.asarray(x.astype(np.float64) @ weight.T.astype(np.float64), np.float32)

    return {f"layers.{layer}.attn.q_proj": made}


@pytest.fixture
def run(planted: ModuleType, recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A result with that many searches at most."""

    def made(faults: dict[str, Any], searches: int = 1) -> Result:
        monkeypatch.setattr(causes, "SEARCHES", searches)
        result: Result = planted.explained(recorded, planted.plant(recorded, faults, tmp_path / "many.h5"))
        return result

    return made


@pytest.mark.parametrize("mistake", [relu, without_bias])
def test_one_mistake_in_two_layers_is_searched_for_once(run: Any, mistake: Any) -> None:
    result = run(mistake(0) | mistake(1))
    first, other = result.faults
    assert first.cause.kind == other.cause.kind != "unknown"
    assert first.value.replace("layers.0", "layers.1") == other.value
    assert other.cause.reproduces_to < 3 * other.noise_floor
    assert other.cause.tried < first.cause.tried
    assert not any("were searched for" in note for note in result.notes)


def test_what_was_not_searched_for_is_said(run: Any) -> None:
    result = run(without_bias(0) | relu(0) | without_bias(1) | relu(1))
    assert [f.cause.kind for f in result.faults] == ["missing_bias", "unknown", "missing_bias", "unknown"]
    said = [note for note in result.notes if "searched for 1 times" in note]
    assert len(said) == 1
    assert "2 faults have none, first layers.0.gelu" in said[0]


def test_another_mistake_of_the_same_kind_of_op_has_a_search_of_its_own(run: Any) -> None:
    def tanh(v: Any, _: Any) -> np.ndarray:
        x = v["layers.1.fc1"].astype(np.float64)
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), np.float32)

    found = [f.cause.detail["variant"] for f in run(relu(0) | {"layers.1.gelu": tanh}, searches=2).faults]
    assert found == ["relu", "gelu (tanh)"]


def test_one_cause_is_one_line(run: Any) -> None:
    lines = terminal.render(run(relu(0) | relu(1))).splitlines()
    also = [line for line in lines if line.startswith("also")]
    assert len(also) == 1
    assert "the same cause in 1 further value: layers.1.gelu (local error at most " in also[0]


def test_edits_are_the_same_but_for_their_layer() -> None:
    def edit(weight: str, number: float) -> Edit:
        return Edit("wrong_constant", {"weight": weight, "number": number})

    one = edit("model.layers.0.fc1.weight", 2.0)
    assert one.same(edit("model.layers.11.fc1.weight", 2.001))
    assert not one.same(edit("model.layers.1.fc1.weight", 2.1))
    assert not one.same(edit("model.layers.1.fc2.weight", 2.0))
    assert not alike({"rows": [1, 2]}, {"rows": [1, 3]})
    assert not alike({"rows": [1, 2]}, {"rows": [1, 2, 3]})
    assert not alike({"number": 1.0}, {"number": "1"})
