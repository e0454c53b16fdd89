"""The map: layers down, ops across, a cell a value, one map for each set of names that steps share.

Plain geometry and text; colours are steps of scale.py and become real in the template. A run whose names have no
layers, or too many of them, is drawn as one field of small cells in execution order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .rows import Row, Rows

CELL_H, GAP_X, GAP_Y = 32, 6, 16  # wires run in the gaps
WIDTH = 1230
WIDEST = 62  # of a cell
GUTTER = 96  # for the names of layers
HEADER = 92  # for the names of ops
FIELD_HEIGHT = 640
MOST_RINGS = 200
MOST_CELLS = 700  # of one map with links; more are a field
MOST_COLUMNS = 44


@dataclass(frozen=True)
class Cell:
    row: Row
    x: float
    y: float
    width: float
    text: str = ""  # inside of it, where no column names it


@dataclass(frozen=True)
class Label:
    text: str
    x: float
    y: float
    title: str = ""


@dataclass(frozen=True)
class Bracket:
    """A group of neighbouring ops: self_attn, encoder_attn."""

    text: str
    x: float
    y: float
    width: float


@dataclass(frozen=True)
class Wire:
    """From a cell to the guilty one: how it is ("is") or how it should be ("should")."""

    kind: str
    path: str


@dataclass(frozen=True)
class Map:
    """One map. `steps` share it; the cells shown are those of `step`. `field`: step of colour → one path."""

    step: str
    steps: tuple[str, ...]
    title: str
    width: int
    height: int
    cells: tuple[Cell, ...] = ()
    labels: tuple[Label, ...] = ()
    columns: tuple[Label, ...] = ()
    brackets: tuple[Bracket, ...] = ()
    wires: tuple[Wire, ...] = ()
    field: tuple[tuple[int, str], ...] = ()
    rings: tuple[tuple[int, int], ...] = ()  # of a field: where its faults are
    pitch: int = 0  # of a field: pixels from cell to cell
    size: int = 0
    across: int = 0
    first: int = 0  # of a field: index of its first row


@dataclass(frozen=True)
class _Place:
    """Where a name stands: which block of rows, which row of it, which op."""

    block: str  # a stack of layers, or what lies before or after one
    row: str
    column: str


def maps_of(rows: Rows, faults: Sequence[Row], wires: Sequence[tuple[str, str]] = ()) -> tuple[Map, ...]:
    """One map for each set of names; `wires`: (kind, name) of cells to join with the first fault."""
    by_step: dict[str, list[Row]] = {}
    for row in rows.all:
        by_step.setdefault(row.step, []).append(row)
    layouts: dict[tuple[str, ...], list[str]] = {}
    for step, many in by_step.items():
        layouts.setdefault(tuple(row.name for row in many), []).append(step)
    maps = []
    for steps in layouts.values():
        shown = _shown(steps, by_step, faults)
        here = faults[0] if faults and faults[0].step == shown else None
        maps.append(_map(by_step[shown], shown, tuple(steps), here, wires if here else ()))
    return tuple(maps)


def _shown(steps: Sequence[str], by_step: dict[str, list[Row]], faults: Sequence[Row]) -> str:
    """The step to show first: that of the earliest fault, else the one with the largest error."""
    for fault in faults:
        if fault.step in steps:
            return fault.step
    return max(steps, key=lambda step: max(row.colour for row in by_step[step]))


def title_of(steps: Sequence[str]) -> str:
    """What to call the steps of one map: "encode", "decode.0 to decode.14"."""
    return steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def _map(
    rows: Sequence[Row], step: str, steps: tuple[str, ...], fault: Row | None, wires: Iterable[tuple[str, str]]
) -> Map:
    blocks: dict[str, dict[str, dict[str, Row]]] = {}
    for row, place in zip(rows, _places([row.name for row in rows]), strict=True):
        blocks.setdefault(place.block, {}).setdefault(place.row, {})[place.column] = row
    widest = max(len(_columns(block.values())) for block in blocks.values())
    if len(rows) > MOST_CELLS or widest > MOST_COLUMNS:
        return _field(rows, step, steps)
    width = min(WIDEST, (WIDTH - GUTTER) / widest - GAP_X)
    cells: list[Cell] = []
    labels: list[Label] = []
    columns: list[Label] = []
    brackets: list[Bracket] = []
    y = 4.0
    for block in blocks.values():
        if len(block) == 1 and (pills := _pills(next(iter(block.values())), y)):
            labels.append(Label(_row_text(next(iter(block))), GUTTER - 12, y + CELL_H / 2))
            cells += pills
            y += CELL_H + GAP_Y
            continue
        names = _columns(block.values())
        groups = list(_groups(names))
        y += HEADER + (16 if groups else 0)
        at = {name: GUTTER + i * (width + GAP_X) for i, name in enumerate(names)}
        columns += [Label(_op_text(name), at[name] + width / 2, y - 12, name) for name in names]
        for text, first, count in groups:
            span = count * (width + GAP_X) - GAP_X
            brackets.append(Bracket(text, GUTTER + first * (width + GAP_X), y - HEADER - 4, span))
        for row_name, ops in block.items():
            labels.append(Label(_row_text(row_name), GUTTER - 12, y + CELL_H / 2, row_name))
            cells += [Cell(row, at[name], y, width) for name, row in ops.items()]
            y += CELL_H + GAP_Y
        y += 6
    drawn = tuple(_wires(cells, fault, wires))
    right = int(max(cell.x + cell.width for cell in cells)) + 44  # the last column's name leans out
    return Map(
        step, steps, title_of(steps), right, int(y), tuple(cells), tuple(labels), tuple(columns), tuple(brackets), drawn
    )


def _pills(ops: dict[str, Row], y: float) -> list[Cell]:
    """A row of its own with the names inside of its cells; [] where they do not fit."""
    cells, x = [], float(GUTTER)
    for name, row in ops.items():
        text = _op_text(name)
        width = max(WIDEST, 7.0 * len(text) + 16)
        cells.append(Cell(row, x, y, width, text))
        x += width + GAP_X
    return cells if x <= WIDTH else []


def _places(names: Sequence[str]) -> list[_Place]:
    """A name with a number is of a layer; one without lies before the first layers, or after those that it follows."""
    places = []
    stack = ""
    for name in names:
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit() and i > 0), -1)
        if number > 0:
            stack = ".".join(parts[:number])
            column = ".".join(parts[number + 1 :]) or parts[number - 1]
            places.append(_Place(stack, ".".join(parts[: number + 1]), column))
        else:
            where = "after" if stack else "before"
            places.append(_Place(f"{where} {stack}", where, name))
    return places if stack else [_Place("", "", name) for name in names]


def _columns(rows: Iterable[dict[str, Row]]) -> list[str]:
    """The ops of all rows of a block in execution order; what only some rows have is put where it first came."""
    order: list[str] = []
    for ops in rows:
        at = 0
        for name in ops:
            if name in order:
                at = order.index(name) + 1
            else:
                order.insert(at, name)
                at += 1
    return order


def _groups(names: Sequence[str]) -> Iterable[tuple[str, int, int]]:
    """Neighbours with the same module before their last dot: (module, first, count), two or more."""
    heads = [name.rpartition(".")[0].rpartition(".")[2] for name in names]
    first = 0
    for i in range(1, len(heads) + 1):
        if i == len(heads) or heads[i] != heads[first]:
            if heads[first] and i - first > 1 and not heads[first].startswith("model"):
                yield heads[first], first, i - first
            first = i


def _op_text(name: str) -> str:
    text = name.rpartition(".")[2].removesuffix(":int64")
    return text if len(text) <= 16 else f"{text[:7]}…{text[-8:]}"


def _row_text(name: str) -> str:
    parts = [part for part in name.split(".") if part not in ("model", "layers")]
    text = f"layer {parts[0]}" if len(parts) == 1 and parts[0].isdigit() else " ".join(parts)
    return text if len(text) <= 18 else f"…{text[-17:]}"


def _wires(cells: Sequence[Cell], fault: Row | None, wires: Iterable[tuple[str, str]]) -> Iterable[Wire]:
    """Wires run in the gaps between rows and columns, as on a board; the wrong one enters beside the right one."""
    at = {cell.row.name: cell for cell in cells}
    target = at.get(fault.name) if fault else None
    if target is None:
        return
    for kind, name in wires:
        source = at.get(name)
        if source is None or source is target:
            continue
        aside = target.width / 5 * (1 if kind == "is" else -1)
        lane = target.y - GAP_Y / 2 + (2 if kind == "is" else -2)  # the gap above the guilty cell
        start, end = source.x + source.width / 2, target.x + target.width / 2 + aside
        tip = target.y - 5
        if abs(source.y - target.y) < 1:
            points = [(start, source.y), (start, lane), (end, lane), (end, tip)]
        elif 0 < target.y - source.y < 1.5 * (CELL_H + GAP_Y):
            points = [(start, source.y + CELL_H), (start, lane), (end, lane), (end, tip)]
        else:
            above = source.y < target.y
            leave = source.y + CELL_H + GAP_Y / 2 if above else source.y - GAP_Y / 2
            column = target.x - GAP_X / 2 + (1 if kind == "is" else -1)
            first = (start, source.y + CELL_H if above else source.y)
            points = [first, (start, leave), (column, leave), (column, lane), (end, lane), (end, tip)]
        yield Wire(kind, _rounded(points))


def _rounded(points: Sequence[tuple[float, float]], radius: float = 5) -> str:
    """A path along right angles with round corners."""
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        enter, leave = _toward(here, before, radius), _toward(here, after, radius)
        path += f"L{enter[0]:.1f} {enter[1]:.1f}Q{here[0]:.1f} {here[1]:.1f} {leave[0]:.1f} {leave[1]:.1f}"
    return path + f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"


def _toward(here: tuple[float, float], other: tuple[float, float], radius: float) -> tuple[float, float]:
    dx, dy = other[0] - here[0], other[1] - here[1]
    length = abs(dx) + abs(dy)
    part = min(radius, length / 2) / length if length else 0.0
    return here[0] + dx * part, here[1] + dy * part


def _field(rows: Sequence[Row], step: str, steps: tuple[str, ...]) -> Map:
    """Small cells in execution order, row by row; one path a colour, so that 20,000 of them open at once."""
    pitch = max(4, min(14, math.isqrt(WIDTH * FIELD_HEIGHT // max(1, len(rows)))))
    size = pitch - (2 if pitch > 7 else 1)
    across = WIDTH // pitch
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(rows):
        x, y = i % across * pitch, i // across * pitch
        paths.setdefault(row.colour, []).append(f"M{x} {y}h{size}v{size}h-{size}z")
    height = (len(rows) + across - 1) // across * pitch
    rings = tuple((i % across * pitch, i // across * pitch) for i, row in enumerate(rows) if row.fault)
    field = tuple((colour, "".join(path)) for colour, path in sorted(paths.items()))
    return Map(
        step,
        steps,
        title_of(steps),
        across * pitch,
        height,
        field=field,
        rings=rings[:MOST_RINGS],
        pitch=pitch,
        size=size,
        across=across,
        first=rows[0].index if rows else 0,
    )
