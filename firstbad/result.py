"""The result of a comparison: plain data, versioned, the one source of every report.

`Result` is what `compare` returns and what result.json holds (schema: result.schema.json in this package). Numbers
are relative L2 errors unless said otherwise; an infinite number is written as null in JSON, with the reason beside it.
Leaves out colours and layout: that is reports/.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from firstbad.errors import EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_MATCH, UsageError

SCHEMA_VERSION = 1
SCHEMA = Path(__file__).with_name("result.schema.json")

Outcome = Literal["match", "diverged", "incomplete"]


@dataclass(frozen=True)
class Source:
    """Where the kernel stands."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Input:
    """One input of the guilty op: its error against the reference's own run, and whether that is fine."""

    name: str
    step: str
    cumulative_error: float
    ok: bool


@dataclass(frozen=True)
class Worst:
    """The element with the largest error, against what it should have been given the op's own inputs."""

    index: tuple[int, ...]
    expected: float
    candidate: float
    reference: float
    ulp: float


@dataclass(frozen=True)
class CauseResult:
    """Why: the kind of edit of the reference that reproduces the candidate's values, and the sentence that says it."""

    kind: str
    statement: str
    detail: Mapping[str, Any]
    reproduces_to: float | None
    alternatives: tuple[Mapping[str, Any], ...] = ()
    tried: int = 0


@dataclass(frozen=True)
class SiteResult:
    """One step at which a fault shows."""

    step: str
    local_error: float
    noise_floor: float
    times_noise: float
    cumulative_error: float


@dataclass(frozen=True)
class FaultResult:
    """One fault: where it first shows, how large it is, why, and what is off only because of it."""

    value: str
    step: str
    op: str
    source: Source
    inputs: tuple[Input, ...]
    local_error: float
    kernel_error: float | None
    noise_floor: float
    times_noise: float
    cumulative_error: float
    test: str  # the test that failed worst: "whole", "rows", "element", "gain", "nonfinite", ...
    where: str  # the slice it failed in, in words; "" for the whole value
    worst: Worst | None
    cause: CauseResult
    verdict: str
    sites: tuple[SiteResult, ...]
    damage: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """What was compared, by group of steps, and what was not, with the reason."""

    compared: Mapping[str, int]  # "encode", "prefill", "decode" → values
    candidate_values: int
    reference_values: int
    only_reference: tuple[tuple[str, str, str], ...]  # (step, name, reason)
    only_candidate: tuple[tuple[str, str, str], ...]
    inputs_equal: int
    inputs_differ: tuple[tuple[str, str], ...]
    weights_compared: int
    weights_differ: tuple[str, ...]
    edges_checked: int
    edges_changed: int


@dataclass(frozen=True)
class Result:
    """What a comparison found; result.json holds the same."""

    verdict: Outcome
    first_bad: FaultResult | None
    faults: tuple[FaultResult, ...]
    damage: tuple[str, ...]
    values: Mapping[str, list[Any]]  # columns
    outputs: Mapping[str, Any]
    coverage: Coverage
    stage: str
    notes: tuple[str, ...]
    environment: Mapping[str, Any]
    timings: Mapping[str, float]
    files: Mapping[str, str]
    command: str
    death: str = ""
    schema_version: int = SCHEMA_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """A fault found before a crash is still a fault; a crash without one could not be compared."""
        return {"match": EXIT_MATCH, "diverged": EXIT_DIVERGED, "incomplete": EXIT_INCOMPLETE}[self.verdict]

    def to_json(self) -> str:
        return json.dumps(plain(asdict(self)), indent=1, allow_nan=False, ensure_ascii=False)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from firstbad.notebook import of_result

        return of_result(self)


def plain(data: Any) -> Any:
    """JSON knows no infinity: null stands for it."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(k): plain(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [plain(v) for v in data]
    if hasattr(data, "item"):
        return plain(data.item())
    return data


def save(result: Result, path: Path) -> None:
    path.write_text(result.to_json() + "\n", encoding="utf-8")


def load(path: Path) -> Mapping[str, Any]:
    """result.json as plain data, checked for its version.

    Raises UsageError for a file that is missing, broken, or of a newer version.
    """
    try:
        data: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read `{path}`: {e.strerror}; run `firstbad diff` first") from e
    except ValueError as e:
        raise UsageError(f"`{path}` is not JSON ({e}): run `firstbad diff` again") from e
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(f"`{path}` has result schema {version}, this firstbad reads {SCHEMA_VERSION}: run diff again")
    return data
