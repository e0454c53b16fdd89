"""The gate's reports in files: `--report NAME[:FILE]`, and what a CI server is given without being asked.

A report is a module of reports/ with `FILE`, its name in the output folder, and `render(gate) -> str | bytes`; a report
that adds to its file rather than replacing it has `APPEND = True`. Leaves out the text for a terminal: reports/gate.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from firstbad.errors import UsageError
from firstbad.finding import GateResult
from firstbad.rooms import load, names


def write_reports(gate: GateResult, wanted: Sequence[str], folder: Path) -> list[Path]:
    """Writes each report that is wanted, then what GitHub reads where we run in it."""
    written = [_write(gate, *_split(word), folder) for word in wanted]
    if os.environ.get("GITHUB_ACTIONS") == "true":
        load("reports", "github").publish(gate)
    return written


def kinds() -> Iterator[str]:
    """The reports of a gate that are files."""
    return (name for name in names("reports") if hasattr(load("reports", name), "GATE"))


def _split(word: str) -> tuple[str, str]:
    """NAME:FILE; a user's own file may have a colon of its own only after .py."""
    name, _, path = word.partition(":")
    return name, path


def room_of(word: str) -> ModuleType:
    """The module of a report NAME[:FILE]; UsageError where there is none, said before anything is run."""
    name, _ = _split(word)
    room = load("reports", name)
    if not name.endswith(".py") and not hasattr(room, "GATE"):
        known = ", ".join(kinds())
        raise UsageError(f"`{name}` is no report of a gate: choose {known}, or a path to your own .py file")
    return room


def _write(gate: GateResult, name: str, file: str, folder: Path) -> Path:
    room = room_of(name)
    content = room.render(gate)
    data = content if isinstance(content, bytes) else str(content).encode("utf-8", "replace")
    path = Path(file) if file else folder / getattr(room, "FILE", f"{Path(name).stem}.txt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if getattr(room, "APPEND", False) else "wb") as out:
            out.write(data)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from error
    return path
