"""The page of alignments: what it says is good enough, and a row of it is what its script finds."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "case_studies/alignment"
PAGE = (FOLDER / "README.md").read_text("utf-8")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("run")  # type: ignore[misc]
    for name in ("run", "truth"):
        sys.modules.pop(name, None)


def test_every_cell_of_the_page_is_good() -> None:
    cells = re.findall(r"(\d+) of (\d+) \(\d+%\), ([^,|]+), (\w+)", PAGE)
    assert len(cells) >= 50
    for aligned, bearing, right, verdict in cells:
        assert int(aligned) >= 0.95 * int(bearing)
        assert (right, verdict) == ("all right", "match")


def test_a_row_is_what_the_script_finds(run: ModuleType, tmp_path: Path) -> None:
    engine = next(e for e in run.engines(tmp_path) if e.model == "Llama")
    made = run.cells(engine, tmp_path)
    assert f"| {engine.name} | {engine.model} | {' | '.join(str(made[way]) for way in run.WAYS)} |" in PAGE


def test_a_value_that_the_table_forgets_is_an_error(run: ModuleType, tmp_path: Path) -> None:
    truth = importlib.import_module("truth")
    engine = next(iter(run.engines(tmp_path)))
    run.cells(engine, tmp_path)
    with run.open_trace(tmp_path / "c.h5") as trace, pytest.raises(KeyError, match=r"model\.encoder\.conv1"):
        truth.truth(trace.graph, {})
