"""The baseline of a case: what a clean run of it looked like, as small text that is committed and read in a diff.

JSON Lines: a head, the environment, one line an input with the tokens it gave, one line a value in the order of
execution, and a foot with the digest of all above, so that a file that no run made (edited by hand, merged, cut) is
not believed. Numbers have three digits. Leaves out the comparison with a run: drift.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstbad.errors import UsageError
from firstbad.measured import TESTS, Row

SCHEMA = 1
_AGAIN = "make it again with `firstbad accept`"
_CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")


@dataclass(frozen=True)
class InputRecord:
    """One input of a case and what the candidate gave for it."""

    name: str  # "clip.wav", "made:3"
    hash: str  # of the recording; "" of one that is made
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Baseline:
    """A clean run of a case."""

    case: str
    model: str
    weights: str  # digest of all of them
    weights_compared: int
    reads_checked: bool
    repeats: int  # clean runs that it rests on
    environment: Mapping[str, str]
    inputs: tuple[InputRecord, ...]
    rows: tuple[Row, ...]
    highest: Mapping[tuple[str, str], tuple[float, ...]]  # (step, name) → the largest error of each test in those runs

    def input(self, name: str) -> InputRecord | None:
        return next((one for one in self.inputs if one.name == name), None)


def to_text(baseline: Baseline) -> str:
    """The file's content."""
    lines = [json.dumps(line, ensure_ascii=False) for line in _lines(baseline)]
    body = "".join(f"{line}\n" for line in lines)
    return f"{body}{json.dumps({'foot': hashlib.sha256(body.encode()).hexdigest()[:32]})}\n"


def _lines(b: Baseline) -> Iterator[dict[str, Any]]:
    yield {
        "baseline": SCHEMA,
        "case": b.case,
        "model": b.model,
        "weights": b.weights,
        "weights_compared": b.weights_compared,
        "reads_checked": b.reads_checked,
        "repeats": b.repeats,
    }
    yield {"environment": dict(sorted(b.environment.items()))}
    for one in b.inputs:
        yield {"input": one.name, "hash": one.hash, "tokens": list(one.tokens)}
    yield from (row_line(row, b.highest.get(row.key, row.error)) for row in b.rows)


def row_line(row: Row, highest: Sequence[float]) -> dict[str, Any]:
    """A value's line."""
    line: dict[str, Any] = {"value": row.name, "step": row.step, "op": row.op, "shape": list(row.shape)}
    line["dtype"] = row.dtype
    if row.axes:
        line["axes"] = list(row.axes)
    if not row.exact:
        line["rows"] = row.samples
        line["error"] = [_short(x) for x in row.error]
        line["highest"] = [_short(x) for x in highest]
        line["noise"] = [_short(x) for x in row.noise]
    return line


def _short(x: float) -> float:
    return float(f"{x:.3g}")


def rounded(baseline: Baseline) -> Baseline:
    """As it will be read back."""
    return from_text(to_text(baseline), "")


def read(path: Path) -> Baseline | None:
    """The baseline in a file, None where there is none; UsageError with one line for one that is not to be trusted."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read the baseline `{path}`: {(error.strerror or 'no').lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the baseline `{path}` is not text: {_AGAIN}") from None
    return from_text(text, str(path))


def from_text(text: str, path: str) -> Baseline:
    """The baseline in a text; `path` is for the error."""
    text = text.replace("\r\n", "\n")  # git on Windows
    lines = text.splitlines()
    if any(line.startswith(_CONFLICT) for line in lines):
        number = next(n for n, line in enumerate(lines, 1) if line.startswith(_CONFLICT))
        raise UsageError(f"the baseline `{path}` has a merge conflict at line {number}: take one side, then {_AGAIN}")
    head = _json(lines[0] if lines else "", path, 1)
    schema = head.get("baseline")
    if not isinstance(schema, int):
        raise UsageError(f"`{path}` is no baseline of firstbad: {_AGAIN}")
    if schema != SCHEMA:
        todo = "update firstbad" if schema > SCHEMA else _AGAIN
        raise UsageError(f"the baseline `{path}` has schema {schema}, this firstbad reads {SCHEMA}: {todo}")
    foot = _json(lines[-1], path, len(lines)).get("foot")
    if foot is None:
        raise UsageError(f"the baseline `{path}` is cut: its last line is no foot: {_AGAIN}")
    body = text[: text.rstrip("\n").rfind("\n") + 1]
    if hashlib.sha256(body.encode()).hexdigest()[:32] != foot:
        raise UsageError(f"the baseline `{path}` was edited or merged, no run made it: {_AGAIN}")
    try:
        return _baseline(head, [_json(line, path, n) for n, line in enumerate(lines[1:-1], 2)])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the baseline `{path}` lacks something ({error}): {_AGAIN}") from None


def _json(line: str, path: str, number: int) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        what = "is empty" if not line else f"is cut or edited at line {number}"
        raise UsageError(f"the baseline `{path}` {what}: {_AGAIN}")
    return data


def _baseline(head: Mapping[str, Any], lines: list[dict[str, Any]]) -> Baseline:
    environment: Mapping[str, str] = {}
    inputs, rows = [], []
    highest: dict[tuple[str, str], tuple[float, ...]] = {}
    for line in lines:
        if "environment" in line:
            environment = dict(line["environment"])
        elif "input" in line:
            inputs.append(InputRecord(line["input"], line["hash"], tuple(line["tokens"])))
        else:
            row = row_from(line)
            rows.append(row)
            highest[row.key] = tuple(line.get("highest", ()))
            if len(highest[row.key]) not in (0, len(TESTS)):
                raise ValueError(f"{row.name} has {len(highest[row.key])} errors")
    return Baseline(
        case=head["case"],
        model=head["model"],
        weights=head["weights"],
        weights_compared=head["weights_compared"],
        reads_checked=head["reads_checked"],
        repeats=head["repeats"],
        environment=environment,
        inputs=tuple(inputs),
        rows=tuple(rows),
        highest=highest,
    )


def row_from(line: Mapping[str, Any]) -> Row:
    """The value of a line."""
    return Row(
        line["step"],
        line["value"],
        line["op"],
        tuple(line["shape"]),
        line["dtype"],
        tuple(line.get("axes", ())),
        "error" not in line,
        tuple(line.get("error", ())),
        tuple(line.get("noise", ())),
        line.get("rows", 1),
    )


def merged(old: Baseline | None, new: Baseline, *, partial: bool) -> Baseline:
    """The new baseline; of a partial run, with all that it did not see kept from the old one."""
    if old is None or not partial:
        return new
    seen = {one.name for one in new.inputs}
    inputs = (*new.inputs, *(one for one in old.inputs if one.name not in seen))
    steps = {row.step for row in new.rows}
    kept = tuple(row for row in old.rows if row.step not in steps)
    order = {step: n for n, step in enumerate(dict.fromkeys(row.step for row in (*old.rows, *new.rows)))}
    rows = tuple(sorted((*kept, *new.rows), key=lambda row: order[row.step]))
    highest = {**{row.key: old.highest[row.key] for row in kept}, **new.highest}
    places = {one.name: n for n, one in enumerate(old.inputs)}
    inputs = tuple(sorted(inputs, key=lambda one: places.get(one.name, len(places))))
    return replace(new, inputs=inputs, rows=rows, highest=highest)
