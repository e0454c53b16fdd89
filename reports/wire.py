"""The cause as a small picture: what the guilty op should have read, what it read, and what it gave.

Plain records from a fault of the result; the template draws them. Leaves out everything that is not about one op.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .rows import Row, Rows
from .scale import number


@dataclass(frozen=True)
class End:
    """One thing that the op reads ("is"), should read ("should") or both. `state`: right, wrong, off, "" (unknown)."""

    wire: str
    name: str
    step: str
    state: str
    note: str
    row: Row | None
    fault: str = ""  # what is wrong with a wire, in two words


@dataclass(frozen=True)
class Scene:
    """One fault drawn."""

    fault: Mapping[str, Any]
    row: Row | None
    ends: tuple[End, ...]
    proved: bool

    @property
    def wires(self) -> tuple[tuple[str, str], ...]:
        """(kind, name) of the wires to draw in the map."""
        return tuple((end.wire, end.name) for end in self.ends if end.wire in ("is", "should"))


def scene_of(fault: Mapping[str, Any], rows: Rows) -> Scene:
    """The picture of one fault."""
    row = rows.by_key.get((fault["step"], fault["value"]))
    return Scene(fault, row, tuple(_ends(fault, rows)), fault["cause"]["reproduces_to"] is not None)


def _ends(fault: Mapping[str, Any], rows: Rows) -> Iterator[End]:
    kind, detail = fault["cause"]["kind"], fault["cause"]["detail"]
    instead = _instead(kind, detail, fault["step"])
    for one in fault["inputs"]:
        name, step = one["name"], one["step"]
        wrong = instead.pop(name, None)
        note = f"cumulative error {number(one['cumulative_error'])}" + (
            " when written" if kind == "clobbered" and wrong else ""
        )
        yield End(
            "should" if wrong else "both", name, step, "right" if one["ok"] else "off", note, _row(rows, step, name)
        )
        if wrong:
            yield _wrong(*wrong, rows, kind)
    for name, wrong in instead.items():
        yield End("should", name, fault["step"], "", "what it should read", _row(rows, fault["step"], name))
        yield _wrong(*wrong, rows, kind)


def _instead(kind: str, detail: Mapping[str, Any], step: str) -> dict[str, tuple[str, str, str]]:
    """Input that it should have read → (name, step, note) of what it read."""
    given = str(detail.get("input", ""))
    over = str(detail.get("overwritten_by", ""))
    writer = detail.get("writer") or {}
    writer_step = str(writer.get("step", step))
    at = f" at {writer['file']}:{writer['line']}" if writer.get("file") else ""
    if kind == "wrong_input":
        found = {given: (str(detail.get("read", "")), str(detail.get("read_step", step)), "what it reads instead")}
        for other in detail.get("also", ()):
            found[str(other.get("input", ""))] = (str(other.get("read", "")), step, "what it reads instead")
        return found
    if kind == "clobbered":
        return {given: (over, writer_step, f"written over it{at} before the read")}
    if kind == "stale":
        wanted = str(detail.get("instead_of") or given)
        if not over:
            return {wanted: (given, step, "its buffer, where nothing had been written yet")}
        return {wanted: (over, writer_step, f"stands by then in the buffer of {given}")}
    return {}


def _wrong(name: str, step: str, note: str, rows: Rows, kind: str) -> End:
    word = {"clobbered": "overwritten", "stale": "dead buffer"}.get(kind, "wrong wire")
    return End("is", name, step, "wrong", note, _row(rows, step, name), word)


def _row(rows: Rows, step: str, name: str) -> Row | None:
    return rows.by_key.get((step, name))
