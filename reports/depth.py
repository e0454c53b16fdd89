"""Error along depth: cumulative and local error of every value in noise floors, on a log scale, as SVG shapes.

The step of the first fault gets a good part of the width, since a run has few encoders and many decoded tokens. Where
many values share a column of points it shows the largest. Leaves out colours and hovering.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .rows import Row, Rows

WIDTH, HEIGHT = 1230, 310
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 40, 40
COLUMNS = 620  # of points, at most
LOWEST = 1e-2  # noise floors: what is smaller stands on the axis
FOCUS = 0.42  # of the width, for the step of the first fault


@dataclass(frozen=True)
class Span:
    """One step: its rows from `first` to before `end`, between `left` and `right`."""

    step: str
    first: int
    end: int
    left: float
    right: float
    text: str  # "" where there is no room


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Flag:
    """A fault: where it stands and what to call it."""

    x: float
    y: float
    text: str
    text_y: float
    end: bool  # the text ends at x, since there is no room to the right


@dataclass(frozen=True)
class Depth:
    spans: tuple[Span, ...]
    cumulative: str  # outline of an area
    local: str  # dots
    limit: float  # y of what is allowed
    decades: tuple[Tick, ...]
    flags: tuple[Flag, ...]
    pooled: int  # values in one column of points, at most


class _Scale:
    """Noise floors → y."""

    def __init__(self, highest: float) -> None:
        self.lowest = math.log10(LOWEST)
        self.decades = math.ceil(math.log10(max(10.0, highest)) + 0.15)

    def y(self, x: float) -> float:
        if not math.isfinite(x):
            return TOP
        part = (math.log10(max(x, LOWEST)) - self.lowest) / (self.decades - self.lowest)
        return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)


def depth_of(rows: Rows, faults: Sequence[Row]) -> Depth | None:
    """The chart of a run; None where nothing was compared."""
    if not rows.all:
        return None
    local = [row.times for row in rows.all]
    cumulative = [row.cumulative_times for row in rows.all]
    scale = _Scale(max((x for x in (*local, *cumulative) if math.isfinite(x)), default=1.0))
    spans = tuple(_spans(rows, faults[0].step if faults else rows.all[0].step))
    bottom = HEIGHT - BOTTOM
    area, dots, pooled = [f"M{LEFT} {bottom}"], [], 1
    for span in spans:
        count = span.end - span.first
        points = max(1, min(count, round(COLUMNS * (span.right - span.left) / (WIDTH - LEFT - RIGHT))))
        pooled = max(pooled, -(-count // points))
        for i in range(points):
            part = slice(span.first + i * count // points, span.first + (i + 1) * count // points)
            left, right = (span.left + (span.right - span.left) * k / points for k in (i, i + 1))
            area.append(f"V{scale.y(max(cumulative[part])):.1f}H{right:.1f}")
            dots.append(f"M{(left + right) / 2:.1f} {scale.y(max(local[part])):.1f}h0")
    area.append(f"V{bottom}z")
    powers = range(int(scale.lowest), scale.decades + 1, 2 if scale.decades > 6 else 1)
    return Depth(
        spans,
        "".join(area),
        "".join(dots),
        scale.y(3.0),
        tuple(Tick(scale.y(10.0**n), power(10.0**n)) for n in powers),
        tuple(_flags(faults, spans, scale)),
        pooled,
    )


def _spans(rows: Rows, focus: str) -> Iterator[Span]:
    """The steps by their number of values; that of the first fault no narrower than FOCUS."""
    starts = [row.index for row in rows.all if row.index == 0 or rows.all[row.index - 1].step != row.step]
    ends = [*starts[1:], len(rows.all)]
    steps = [rows.all[start].step for start in starts]
    room = WIDTH - LEFT - RIGHT
    counts = {i: end - start for i, (start, end) in enumerate(zip(starts, ends, strict=True))}
    focused = steps.index(focus)
    total = len(rows.all)
    share = max(FOCUS, counts[focused] / total) if len(steps) > 1 else 1.0
    rest = total - counts[focused]
    x, last_text = float(LEFT), -math.inf
    for i, (first, end) in enumerate(zip(starts, ends, strict=True)):
        width = room * (share if i == focused else (1 - share) * counts[i] / rest)
        text = steps[i] if x - last_text > 8 * len(steps[i]) + 10 and (x < WIDTH - 8 * len(steps[i])) else ""
        last_text = x if text else last_text
        yield Span(steps[i], first, end, x, x + width, text)
        x += width


def _flags(faults: Sequence[Row], spans: Sequence[Span], scale: _Scale) -> Iterator[Flag]:
    for n, fault in enumerate(faults[:4]):
        span = next(s for s in spans if fault.index < s.end)
        x = span.left + (fault.index - span.first + 0.5) * (span.right - span.left) / (span.end - span.first)
        y = scale.y(max(fault.times, fault.cumulative_times))
        yield Flag(x, y, fault.name, 14.0 + 15 * (n % 2), x > WIDTH * 0.6)


def power(x: float) -> str:
    """A power of ten as text, without a font's or TeX's help."""
    n = round(math.log10(x))
    return {0: "1", 1: "10"}.get(n, "10" + str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")))
