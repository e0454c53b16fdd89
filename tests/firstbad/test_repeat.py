"""Runs of one candidate against each other."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from firstbad.repeat import compared, with_repeats
from firstbad.trace import open_trace


def runs(planted: ModuleType, recorded: Any, folder: Path, offsets: list[float]) -> list[Path]:
    """One run for each offset of the first element of the first layer's fc1."""

    def fault(offset: float) -> Any:
        def wrong(v: Any, w: Any) -> np.ndarray:
            y = v["layers.0.norm"].astype(np.float64) @ w["layers.0.fc1.weight"].T + w["layers.0.fc1.bias"]
            y[0, 3, 5] += offset
            return y

        return wrong

    return [
        planted.plant(recorded, {"layers.0.fc1": fault(offset)}, folder / f"{n}.h5") for n, offset in enumerate(offsets)
    ]


def test_equal_runs_are_equal(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    first, second = runs(planted, recorded, tmp_path, [0.0, 0.0])
    with open_trace(first) as a, open_trace(second) as b:
        found = compared(a, [b])
    assert (found.runs, found.first, found.differ) == (2, {}, 0)


def test_the_first_value_that_differs_is_named(planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    first, second, third = runs(planted, recorded, tmp_path, [0.0, 0.0, 1e-3])
    with open_trace(first) as a, open_trace(second) as b, open_trace(third) as c:
        found = compared(a, [b, c])
    assert (found.first["value"], found.first["where"]) == ("layers.0.fc1", "rows 3, columns 5")
    assert found.differ > 5
    result = planted.explained(recorded, first)
    assert result.verdict == "match"
    told = with_repeats(result, found)
    assert (told.verdict, told.exit_code) == ("diverged", 1)
    assert (told.first_bad.value, told.first_bad.cause.kind) == ("layers.0.fc1", "nondeterministic")
    assert "differs between runs" in told.first_bad.cause.statement
