"""How large the errors of tests were when they were accepted: one file a test module, one line a value of a test.

The lines are a baseline's, with the test's name in the place of the step; there is no digest, since tests are added one
by one. A line that is none is one clear error. Leaves out whole cases: baseline.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from firstbad.baseline import Baseline, row_from, row_line
from firstbad.errors import UsageError
from firstbad.measured import Row


def read(path: Path, test: str) -> Baseline | None:
    """The baseline of one test; None where it has none."""
    rows = tuple(replace(row, step="call") for row in _rows(path) if row.step == test)
    if not rows:
        return None
    highest = {row.key: row.error for row in rows}
    return Baseline(test, "", "", 0, False, 1, {}, (), rows, highest)


def write(path: Path, test: str, rows: Sequence[Row]) -> None:
    """Puts the rows of one test in the place of those it had; sorted by test."""
    kept = [row for row in _rows(path) if row.step != test]
    new = [replace(row, step=test) for row in rows]
    lines = [json.dumps(row_line(row, row.error), ensure_ascii=False) for row in (*kept, *new)]
    lines.sort(key=lambda line: str(json.loads(line)["step"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        try:
            rows.append(row_from(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"line {number} of `{path}` was edited or merged: make it again with `pytest --firstbad-accept`"
            ) from None
    return rows
