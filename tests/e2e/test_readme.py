"""README.md's commands are run here, and the lines that it shows of their output are looked for in it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstbad.cli import main, verbs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")

EXIT = {"out/healthy": 0, "out/broken": 1}


def blocks() -> Iterator[str]:
    """The fenced blocks without a language."""
    yield from re.findall(r"^```\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def shown_commands() -> list[tuple[list[str], list[str]]]:
    """Each `firstbad ...` block with the lines of the block after it: what the reader is told to expect."""
    found = []
    parts = list(blocks())
    for block, after in zip(parts, [*parts[1:], ""], strict=True):
        if block.startswith("firstbad "):
            words = shlex.split(block.replace("\\\n", " "))
            found.append((words[1:], [line for line in after.splitlines() if line.strip()]))
    return found


@pytest.mark.parametrize(("words", "expected"), shown_commands(), ids=lambda x: x[-1] if x else "")
def test_a_shown_command_gives_what_is_shown(
    words: list[str],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "case_studies").symlink_to(ROOT / "case_studies")
    monkeypatch.chdir(tmp_path)
    assert main(words) == EXIT[words[words.index("-o") + 1]]
    printed = [_measured_away(line) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in map(_measured_away, expected) if line not in printed] == []


def _measured_away(line: str) -> str:
    """Errors and ratios depend on the processor: only their place is compared."""
    return re.sub(r"\d[\d,]*\.?\d*(e-\d+)? ?(?=times|\(noise|\))|local error [\d.]+|\d\S*e-\d+", "#", line).rstrip()


def test_both_make_targets_are_there() -> None:
    for target in ("demo", "test"):
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_every_command_in_the_table_is_a_verb() -> None:
    named = set(re.findall(r"^\| `firstbad (\w+)", README, flags=re.MULTILINE))
    assert named <= set(verbs()), named - set(verbs())
    assert len(named) >= 6
