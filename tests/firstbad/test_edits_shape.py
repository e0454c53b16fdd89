"""Values that the candidate has in another shape, or not at all where it has their siblings."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

FC1, GELU, FC2 = "layers.1.fc1", "layers.1.gelu", "layers.1.fc2"


def test_a_value_that_was_never_made(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    def without(v: Any, w: Any) -> np.ndarray:
        made: np.ndarray = v[FC1].astype(np.float64) @ w[f"{FC2}.weight"].T + w[f"{FC2}.bias"]
        return made

    path = planted.plant(recorded, {FC2: without}, tmp_path / "c.h5", {GELU: None})
    (fault,) = planted.explained(recorded, path).faults
    assert (fault.value, fault.cause.kind, fault.cause.detail["values"]) == (FC2, "missing_value", [GELU])
    assert "is never made" in fault.cause.statement
    assert fault.cause.reproduces_to < 1e-6


def test_a_value_of_another_length(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    """One row too many at the front, and the first rows are used."""
    values = recorded.values()
    longer = np.concatenate([values[GELU][..., :1, :] * 0.5, values[GELU]], -2)

    def first(v: Any, w: Any) -> np.ndarray:
        made: np.ndarray = longer[..., :-1, :].astype(np.float64) @ w[f"{FC2}.weight"].T + w[f"{FC2}.bias"]
        return made

    path = planted.plant(recorded, {FC2: first}, tmp_path / "c.h5", {GELU: longer})
    (fault,) = planted.explained(recorded, path).faults
    T = values[GELU].shape[-2]
    assert (fault.value, fault.cause.kind) == (FC2, "shape")
    assert fault.cause.detail["how"] == f"its first {T} of {T + 1}"
    assert fault.cause.statement.endswith(f"its first {T} of {T + 1}")
    assert fault.cause.reproduces_to < 1e-6
