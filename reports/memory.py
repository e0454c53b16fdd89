"""The candidate's buffers over a step: which value lies where, from the op that writes it to the last that reads it.

Two values in one place at one time are a clobber, and show as two boxes on top of each other. Addresses are drawn in
order but not to scale (each stretch by the square root of its bytes), since buffers differ by a factor of thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from firstbad.graph import READ_CHANGED, READ_UNWRITTEN, Graph, Op, Value
from firstbad.material import Material

from .rows import Row, Rows

WIDTH, HEIGHT = 1230, 300
LEFT, TOP = 86, 8
MOST = 700  # boxes of one step


@dataclass(frozen=True)
class Box:
    """One value in memory. `mark`: "" or "fault", "clobbered", "writer" (over it), "is" and "should" (be read)."""

    name: str
    step: str
    anchor: str  # "" where it was not compared
    x: float
    y: float
    width: float
    height: float
    mark: str
    colour: int  # step of colour of its cumulative error, -1: not compared
    text: str


@dataclass(frozen=True)
class Cross:
    """A read that found other bytes than had been written."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Link:
    """What the guilty op reads, or should: a line at that op from one box to the other."""

    kind: str
    x: float
    start: float
    end: float


@dataclass(frozen=True)
class Buffers:
    step: str
    ops: int
    boxes: tuple[Box, ...]
    crosses: tuple[Cross, ...]
    links: tuple[Link, ...]
    ticks: tuple[tuple[float, str], ...]
    peak: int  # bytes of all stretches used in the step
    left_out: int


def buffers_of(
    material: Material, rows: Rows, steps: Sequence[str], fault: Row | None, wires: Sequence[tuple[str, str]]
) -> tuple[Buffers, ...]:
    """One picture for each of `steps` in which the candidate's addresses are known; `wires`: (kind, name)."""
    if material.candidate is None:
        return ()
    graph = material.candidate.graph
    by_step: dict[str, list[Op]] = {}
    for op in graph.ops:
        by_step.setdefault(op.step, []).append(op)
    marks = _marks(graph, rows, fault, wires)
    drawn = (_step(graph, step, by_step.get(step, []), rows, marks, fault) for step in dict.fromkeys(steps))
    return tuple(one for one in drawn if one is not None)


def _marks(graph: Graph, rows: Rows, fault: Row | None, wires: Sequence[tuple[str, str]]) -> Mapping[int, str]:
    marks: dict[int, str] = {}
    for kind, name in wires:
        value = graph.by_key.get((fault.step, name)) if fault else None
        if value is not None:
            marks[value.id] = kind
    for value in graph.values:
        row = rows.by_key.get((value.step, value.name))
        if row is not None and row.fault:
            marks[value.id] = "fault"
    for op in graph.ops:
        for read in op.reads:
            if read.state == READ_CHANGED:
                marks[read.value] = "clobbered"
                marks.update((writer, "writer") for writer in read.overwritten_by[-1:])
    return marks


def _step(
    graph: Graph, step: str, ops: Sequence[Op], rows: Rows, marks: Mapping[int, str], fault: Row | None
) -> Buffers | None:
    lives = _lives(graph, step, ops)
    values = [graph.values[i] for i in lives if graph.values[i].address and graph.values[i].extent]
    if not values:
        return None
    important = sorted(values, key=lambda v: (v.id not in marks, v.step != step, -v.extent))[:MOST]
    place, peak = _places(important)
    width = (WIDTH - LEFT) / max(1, len(ops))
    boxes = []
    for value in sorted(important, key=lambda v: (marks.get(v.id, ""), v.id)):
        first, last = lives[value.id]
        top, bottom = place[value.address], place[value.address + value.extent]
        row = rows.by_key.get((value.step, value.name))
        boxes.append(
            Box(
                value.name,
                value.step,
                row.anchor if row else "",
                LEFT + first * width,
                top,
                max((last - first + 1) * width - 1, 1.5),
                max(bottom - top - 1, 1.0),
                marks.get(value.id, ""),
                row.colour if row else -1,
                f"{value.name} ({value.step}): {value.extent:,} bytes at {value.address:#x}, op {first + 1}–{last + 1}",
            )
        )
    crosses = tuple(_crosses(graph, ops, width, place))
    ticks = _ticks(important, place)
    links: tuple[Link, ...] = ()
    target = graph.by_key.get((fault.step, fault.name)) if fault and fault.step == step else None
    if target is not None and target.id in lives and target.address in place:
        links = tuple(_links(target, lives[target.id][0], width, [v for v in important if v.id in marks], marks, place))
    return Buffers(step, len(ops), tuple(boxes), crosses, links, ticks, peak, len(values) - len(important))


def _links(
    target: Value,
    op: int,
    width: float,
    values: Iterable[Value],
    marks: Mapping[int, str],
    place: Mapping[int, float],
) -> Iterable[Link]:
    for value in values:
        if (kind := marks[value.id]) in ("is", "should"):
            x = LEFT + (op + (0.65 if kind == "is" else 0.35)) * width
            ends = [(place[v.address] + place[v.address + v.extent]) / 2 for v in (value, target)]
            yield Link(kind, x, ends[0], ends[1])


def _lives(graph: Graph, step: str, ops: Sequence[Op]) -> dict[int, tuple[int, int]]:
    """Value → (op that writes it, last op that reads it), counted within the step; 0 for what was there before."""
    lives: dict[int, tuple[int, int]] = {}
    for at, op in enumerate(ops):
        for written in op.writes:
            lives[written] = (at, at)
        for read in op.reads:
            value = graph.values[read.value] if read.value >= 0 else None
            if value is not None and value.kind in ("value", "input"):
                first = lives.get(value.id, (0, 0))[0]
                lives[value.id] = (first, at)
    for value_id, (first, _) in list(lives.items()):
        value = graph.values[value_id]
        kept = value.step == step and any(graph.ops[o].step != step for o in graph.readers.get(value_id, ()))
        if kept:
            lives[value_id] = (first, len(ops) - 1)
    return lives


def _places(values: Iterable[Value]) -> tuple[Mapping[int, float], int]:
    """Every address where a value begins or ends → its place in the picture; and the bytes in use."""
    spans = sorted((v.address, v.address + v.extent) for v in values)
    edges = sorted({edge for span in spans for edge in span})
    used: list[tuple[int, int]] = []
    for low, high in spans:
        if used and low <= used[-1][1]:
            used[-1] = (used[-1][0], max(used[-1][1], high))
        else:
            used.append((low, high))
    starts = {low for low, _ in used}
    heights = [0.0 if high in starts else math.sqrt(high - low) for low, high in pairwise(edges)]
    gap, gaps = 6.0, len(used) - 1
    room = max(40.0, HEIGHT - TOP - gap * gaps)
    unit = room / (sum(heights) or 1)
    place, y = {edges[0]: float(TOP)}, float(TOP)
    for height, edge in zip(heights, edges[1:], strict=True):
        y += gap if height == 0.0 and edge in starts else height * unit
        place[edge] = y
    return place, sum(high - low for low, high in used)


def _crosses(graph: Graph, ops: Sequence[Op], width: float, place: Mapping[int, float]) -> Iterable[Cross]:
    for at, op in enumerate(ops):
        for read in op.reads:
            if read.state not in (READ_CHANGED, READ_UNWRITTEN) or read.value < 0:
                continue
            value = graph.values[read.value]
            if value.address not in place:
                continue
            y = (place[value.address] + place[value.address + value.extent]) / 2
            by = f", overwritten by {graph.values[read.overwritten_by[-1]].name}" if read.overwritten_by else ""
            yield Cross(LEFT + (at + 0.5) * width, y, f"{op.name} reads {value.name} and finds other bytes{by}")


def _ticks(values: Sequence[Value], place: Mapping[int, float]) -> tuple[tuple[float, str], ...]:
    """The start of each buffer, where there is room for its text."""
    ticks: list[tuple[float, str]] = []
    ends = 0
    for low, high in sorted((v.address, v.address + v.extent) for v in values):
        if low >= ends and (not ticks or place[low] - ticks[-1][0] >= 13):
            ticks.append((place[low], f"…{low & 0xFFFFFFF:07x}"))
        ends = max(ends, high)
    return tuple(ticks)
