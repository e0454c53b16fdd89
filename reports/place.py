"""Where a finding stands in the repository that CI has checked out, and a name for it that stays from run to run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from firstbad.finding import CaseResult, Finding, GateResult


class Place(NamedTuple):
    """A line of a file, by its path from the top of the repository."""

    file: str
    line: int


def place_of(gate: GateResult, finding: Finding) -> Place | None:
    """The kernel's line, where its file is part of the repository (an engine that was installed is not)."""
    if not finding.file:
        return None
    path = Path(gate.root, finding.file)
    top = _top(Path(gate.root))
    if not path.is_file() or not path.resolve().is_relative_to(top):
        return None
    return Place(path.resolve().relative_to(top).as_posix(), max(1, finding.line))


def config_of(gate: GateResult) -> Place:
    """The case's own file: where a finding without a line belongs."""
    root = Path(gate.root)
    name = gate.extra.get("config", "firstbad.toml")
    return Place(os.path.relpath(root.resolve() / name, _top(root)).replace(os.sep, "/"), 1)


def _top(root: Path) -> Path:
    """GITHUB_WORKSPACE, else the repository's top folder, else the folder itself."""
    root = root.resolve()
    workspace = os.environ.get("GITHUB_WORKSPACE", "")
    if workspace and root.is_relative_to(Path(workspace).resolve()):
        return Path(workspace).resolve()
    return next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)


def fingerprint(case: CaseResult, finding: Finding) -> str:
    """The same for the same trouble in every run; numbers do not enter."""
    words = "\0".join([case.name, finding.kind, finding.step, finding.value])
    return hashlib.sha256(words.encode()).hexdigest()[:40]


def sentence(finding: Finding) -> str:
    """The finding with its cause, one line."""
    return writable(f"{finding.message}; {finding.cause}" if finding.cause else finding.message)


def writable(text: str) -> str:
    """What UTF-8 can hold: a file's name may have bytes that are no text."""
    return text.encode("utf-8", "replace").decode()
