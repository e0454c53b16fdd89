"""Waivers: faults that are known and accepted, each with a reason and a day on which it runs out.

One file for all cases, `waivers.jsonl` in the folder of the baselines, one line a fault. A waiver that ran out is a
fault again, and says so. Leaves out baselines.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from firstbad.errors import UsageError

FILE = "waivers.jsonl"


@dataclass(frozen=True)
class Waiver:
    """One accepted fault."""

    case: str
    fault: str  # the value's name, or a pattern with *
    reason: str
    until: str  # 2026-12-31: the last day on which it holds

    def covers(self, case: str, value: str) -> bool:
        return fnmatchcase(case, self.case) and fnmatchcase(value, self.fault)

    def expired(self, today: datetime.date) -> bool:
        return today > datetime.date.fromisoformat(self.until)


def read(folder: Path) -> tuple[Waiver, ...]:
    """All waivers; UsageError with the line that is not one."""
    path = folder / FILE
    if not path.is_file():
        return ()
    found = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            waiver = Waiver(**{key: _text(text) for key, text in json.loads(line).items()})
            day(waiver.until)
        except (ValueError, TypeError, AttributeError, UsageError):
            raise UsageError(
                f"line {number} of `{path}` is no waiver: write it with `firstbad accept --fault NAME --reason TEXT "
                "--until DATE`"
            ) from None
        found.append(waiver)
    return tuple(found)


def _text(data: object) -> str:
    if not isinstance(data, str):
        raise TypeError("no text")
    return data


def write(folder: Path, waivers: tuple[Waiver, ...]) -> Path:
    """The file, sorted, so that a diff shows what was added."""
    path = folder / FILE
    lines = sorted(json.dumps(asdict(waiver), ensure_ascii=False) for waiver in waivers)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def day(text: str) -> datetime.date:
    """A date as people write it for a computer."""
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"`{text}` is no date: write it as 2026-12-31") from None


def today() -> datetime.date:
    """The day by this machine's clock."""
    return datetime.date.today()
