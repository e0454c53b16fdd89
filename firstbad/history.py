"""The history of a gate: each value's error in noise floors over the runs, read from JSON Lines, shown and drawn.

Lines that no gate wrote are counted and left out: a file that is appended to in CI may end in half a line. Leaves out
the writing: reports/history.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from firstbad.errors import UsageError

_KEYS = ("time", "commit", "case", "verdict", "first_bad")
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Point:
    """One run of one case."""

    time: str
    commit: str
    case: str
    verdict: str
    first_bad: str
    errors: dict[str, float]


def read(path: Path) -> tuple[list[Point], int]:
    """(the points in the order of the file, lines that are none)."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        reason = (error.strerror or "no").lower()
        raise UsageError(
            f"cannot read `{path}`: {reason}; write it with `firstbad gate --report history:{path}`"
        ) from None
    points, bad = [], 0
    for line in lines:
        try:
            data = json.loads(line)
            errors = {str(name): float(x) for name, x in data["errors"].items()}
            time, commit, case, verdict, first = (str(data[key]) for key in _KEYS)
            points.append(Point(time, commit, case, verdict, first, errors))
        except (ValueError, KeyError, TypeError, AttributeError):
            bad += 1
    return points, bad


def series(points: Sequence[Point], pattern: str = "") -> dict[str, list[float]]:
    """Value → its error in each point, NaN where it has none; those that vary most first."""
    names = dict.fromkeys(name for point in points for name in point.errors if matches(name, pattern))
    found = {name: [point.errors.get(name, math.nan) for point in points] for name in names}
    return dict(sorted(found.items(), key=lambda item: -_range(item[1])))


def matches(name: str, pattern: str) -> bool:
    return not pattern or fnmatchcase(name, pattern) or pattern in name


def _range(numbers: Sequence[float]) -> float:
    known = [x for x in numbers if x > 0]
    return max(known) / min(known) if known else 0.0


def spark(numbers: Sequence[float]) -> str:
    """A line of blocks on a logarithmic scale; a gap where there is no number."""
    known = [math.log(x) for x in numbers if x > 0]
    if not known:
        return " " * len(numbers)
    low, width = min(known), max(max(known) - min(known), 1e-9)
    return "".join(_SPARKS[round((math.log(x) - low) / width * 7)] if x > 0 else " " for x in numbers)


def plot(points: Sequence[Point], path: Path, pattern: str = "", most: int = 12) -> None:
    """Draws the values that vary most over the runs, with the runs that failed marked."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise UsageError("a plot needs matplotlib: pip install 'firstbad[plot]', or leave -o out for text") from None
    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.subplots()
    runs = range(len(points))
    chosen = list(series(points, pattern).items())[:most]
    for name, numbers in chosen:
        axes.plot(runs, numbers, marker=".", linewidth=1, label=name)
    for n, point in enumerate(points):
        if point.verdict == "failed":
            axes.axvline(n, color="#d55e00", alpha=0.25, linewidth=4, zorder=0)
    axes.axhline(3, color="black", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylabel("error, in noise floors (dashed: 3, a fault)")
    axes.set_xticks(list(runs), [point.commit[:7] or point.time[:10] for point in points], rotation=60, fontsize=7)
    axes.set_title(f"{points[0].case}: runs that failed are shaded" if points else "no runs")
    if chosen:
        figure.legend(loc="outside lower center", fontsize=7, ncols=2)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write `{path}`: {str(error).splitlines()[0].lower()}") from None
