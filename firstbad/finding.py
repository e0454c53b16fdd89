"""What a gate has to say of one case: findings, and the records of its run, as plain data for every report.

Leaves out how they are found (drift.py, gate.py) and how they look (reports/).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from firstbad.errors import EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_MATCH, EXIT_REFERENCE, EXIT_USAGE, UsageError
from firstbad.measured import Row
from firstbad.result import plain

SCHEMA = 1
FILE = "gate.json"

Kind = Literal[
    "fault",  # a value that its own inputs do not explain
    "creep",  # an error that grew beyond what clean runs vary
    "vanished",
    "shape",
    "dtype",
    "layout",
    "order",
    "coverage",
    "tokens",  # another answer than the baseline's, or than the reference's
    "probe",  # another answer when probed
    "weights",
    "input",
    "incomplete",  # could not be compared
    "reference",  # the reference does not reproduce itself
    "usage",  # there is no baseline, or the case cannot be run as it is written
    "waived",
    "near-tie",
    "improved",
    "new",
    "environment",
    "note",
]

TOLD: frozenset[str] = frozenset({"waived", "near-tie", "improved", "new", "environment", "note"})
"""What is said and fails nothing."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or that should be known; `message` is one line."""

    kind: Kind
    message: str
    value: str = ""
    step: str = ""
    file: str = ""  # of the kernel
    line: int = 0
    cause: str = ""  # what was proved, one sentence
    worst: str = ""  # the worst element, in words
    times_noise: float | None = None
    inputs: tuple[str, ...] = ()  # in which it shows

    @property
    def red(self) -> bool:
        return self.kind not in TOLD


@dataclass(frozen=True)
class InputRun:
    """What one input gave."""

    name: str
    verdict: str  # "match", "diverged", "incomplete"
    tokens: tuple[int, ...]
    text: str
    seconds: Mapping[str, float]
    folder: str  # of its traces, where they were kept; "": not


@dataclass(frozen=True)
class CaseResult:
    """One case of the gate."""

    name: str
    model: str
    candidate: str
    findings: tuple[Finding, ...]  # the red ones first, in the order of execution
    inputs: tuple[InputRun, ...]
    rows: tuple[Row, ...]
    environment: Mapping[str, str]
    repeats: int  # clean runs that its baseline rests on; 0: there is no baseline
    command: str  # runs this case alone again
    seconds: float = 0.0
    references_cached: int = 0  # inputs whose reference trace was there already

    @property
    def red(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.red)

    @property
    def verdict(self) -> Literal["passed", "failed", "incomplete", "not run"]:
        kinds = {f.kind for f in self.red}
        if kinds - {"incomplete", "usage", "reference"}:
            return "failed"
        return "not run" if "usage" in kinds else "incomplete" if kinds else "passed"

    @property
    def exit_code(self) -> int:
        if self.verdict == "incomplete" and all(f.kind == "reference" for f in self.red):
            return EXIT_REFERENCE
        codes = {"passed": EXIT_MATCH, "failed": EXIT_DIVERGED, "incomplete": EXIT_INCOMPLETE, "not run": EXIT_USAGE}
        return codes[self.verdict]


@dataclass(frozen=True)
class GateResult:
    """All cases of one run of the gate."""

    cases: tuple[CaseResult, ...]
    root: str  # the folder that source files are relative to
    command: str
    started: str  # ISO time, UTC
    commit: str = ""
    unused: tuple[str, ...] = ()  # baselines that no case uses
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """A fault anywhere counts most, then what cannot be run as it is written, then what could not be compared."""
        codes = {case.exit_code for case in self.cases}
        order = (EXIT_DIVERGED, EXIT_USAGE, EXIT_INCOMPLETE, EXIT_REFERENCE)
        return next((code for code in order if code in codes), EXIT_MATCH)

    @property
    def first(self) -> tuple[CaseResult, Finding] | None:
        """The first red finding of all."""
        return next(((case, case.red[0]) for case in self.cases if case.red), None)

    def to_json(self) -> str:
        data = {"gate": SCHEMA, "exit_code": self.exit_code, **asdict(self)}
        for case, record in zip(self.cases, data["cases"], strict=True):
            record["verdict"] = case.verdict
        return json.dumps(plain(data), indent=1, ensure_ascii=False, allow_nan=False)


def read(folder: Path) -> GateResult:
    """The result of an earlier run from its folder."""
    path = folder / FILE if folder.is_dir() else folder
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["gate"] != SCHEMA:
            raise UsageError(f"`{path}` has schema {data['gate']}, this firstbad reads {SCHEMA}: run the gate again")
        return _result(data)
    except OSError as error:
        reason = (error.strerror or "no").lower()
        raise UsageError(f"cannot read `{path}`: {reason}; run `firstbad gate` first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"`{path}` is no result of a gate ({error}): run `firstbad gate` again") from None


def _result(data: Mapping[str, Any]) -> GateResult:
    cases = []
    for record in data["cases"]:
        own = {k: v for k, v in record.items() if k != "verdict"}
        own["findings"] = tuple(Finding(**{**f, "inputs": tuple(f["inputs"])}) for f in record["findings"])
        own["inputs"] = tuple(InputRun(**{**one, "tokens": tuple(one["tokens"])}) for one in record["inputs"])
        own["rows"] = tuple(
            Row(**{**row, **{key: tuple(row[key]) for key in ("shape", "axes", "error", "noise")}})
            for row in record["rows"]
        )
        cases.append(CaseResult(**own))
    keys = ("root", "command", "started", "commit", "extra")
    return GateResult(tuple(cases), unused=tuple(data["unused"]), **{key: data[key] for key in keys})
