"""Drift: a run in which every op is a little too noisy, and none is wrong."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from firstbad.slow import block_of


def noisy(planted: ModuleType, recorded: Any, path: Path, size: float) -> Path:
    """Every value of the two layers makes `size` times the error of a clean engine."""
    names = [n for n in recorded.values() if n.startswith("layers.") and not n.endswith(("attn.add", "softmax"))]

    def fault(name: str) -> Any:
        precise, usual = (planted.rightly(recorded, name, dtype) for dtype in ("float64", "float32"))

        def wrong(v: Any, _w: Any) -> Any:
            return precise(v) + size * (usual(v) - precise(v))

        return wrong

    return planted.plant(recorded, {n: fault(n) for n in names}, path)


def test_noise_everywhere_is_drift_and_no_fault(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    result = planted.explained(recorded, noisy(planted, recorded, tmp_path / "noisy.h5", 2.2))
    assert result.faults == ()
    assert {b["name"] for b in result.extra["drift"]} >= {"layers.0", "layers.1"}
    assert any(note.startswith("drift: ") for note in result.notes)


def test_a_clean_run_does_not_drift(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    result = planted.explained(recorded, planted.plant(recorded, {}, tmp_path / "clean.h5"))
    assert "drift" not in result.extra


def test_a_layer_is_a_block() -> None:
    assert block_of("model.encoder.layers.1.self_attn.q_proj") == "model.encoder.layers.1"
    assert block_of("model.encoder.layer_norm") == "model.encoder"
    assert block_of("proj_out") == "proj_out"
