"""The pictures for slides and issues, by matplotlib: headline, map, error along depth, the triptych of the first value.

One figure, as bytes of any format. matplotlib is an extra (`pip install 'firstbad[plot]'`). Leaves out what is
interactive: that is the page's.
"""

from __future__ import annotations

import io
import math
import textwrap
from typing import Any

import numpy as np

from firstbad.errors import UsageError
from firstbad.material import Material

from . import words
from .depth import power
from .gallery import gallery_of_one
from .map import CELL_H, Map, maps_of
from .page import COLOURS
from .picture import ERRORS, VALUES
from .rows import Row, Rows, rows_of
from .scale import LIMIT_STEP
from .wire import Scene, scene_of

INK, SOFT, LOUD, BLUE = "#16202b", "#596775", "#c2500a", "#1b4f8a"


def figure(material: Material, kind: str) -> bytes:
    """The figure as a file of `kind` ("png", "svg", "pdf")."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install 'firstbad[plot]'") from None
    rows = rows_of(material)
    scenes = [scene_of(fault, rows) for fault in material.result["faults"]]
    faults = [scene.row for scene in scenes if scene.row is not None]
    maps = [m for m in maps_of(rows, faults, scenes[0].wires if scenes else ()) if not m.field]
    shown = next((m for m in maps if not faults or faults[0].step in m.steps), None)
    # a fixed salt and no date: the same result gives the same bytes; text stays text and is never taken for TeX
    settings: Any = {"svg.hashsalt": "firstbad", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9}
    with mpl.rc_context(settings):
        made = Figure(figsize=(12, 10.4), dpi=150, facecolor="white")
        _head(made, material)
        if shown is not None:
            _map(made.add_axes((0.02, 0.555, 0.96, 0.335)), shown, scenes)
        if rows.all:
            _depth(made.add_axes((0.06, 0.315, 0.92, 0.2)), rows, faults)
            _triptych(made, material, faults[0] if faults else rows.weakest[0])
        out = io.BytesIO()
        made.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _head(figure: Any, material: Material) -> None:
    result = material.result
    good = result["verdict"] == "match"
    word = f"{words.SYMBOLS[result['verdict']]} {words.NAMES[result['verdict']]}"
    figure.text(0.03, 0.965, word, color=BLUE if good else LOUD, size=13, weight="bold")
    lines = textwrap.wrap(words.sentence(result), 118)[:2]
    figure.text(0.03, 0.955, "\n".join(lines), color=INK, size=12, va="top", weight="bold")
    if result["first_bad"]:
        figure.text(0.03, 0.905, words.headline(result["first_bad"])[:170], color=SOFT, size=9, va="top")


def _map(axes: Any, shown: Map, scenes: list[Scene]) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.set_xlim(0, max(shown.width, 1230))
    axes.set_ylim(shown.height, -6)
    axes.axis("off")
    for label in shown.columns:
        axes.text(label.x - 3, label.y, label.text, rotation=38, size=7, color=SOFT, va="bottom", ha="left")
    for label in shown.labels:
        axes.text(label.x, label.y, label.text, size=8, color=INK, weight="bold", ha="right", va="center")
    for cell in shown.cells:
        box = FancyBboxPatch(
            (cell.x + 3, cell.y + 3),
            cell.width - 6,
            CELL_H - 6,
            boxstyle="round,pad=3",
            facecolor=COLOURS[cell.row.colour],
            edgecolor=INK if cell.row.fault else "none",
            linewidth=2.2 if cell.row.fault else 0,
        )
        axes.add_patch(box)
        middle = (cell.x + cell.width / 2, cell.y + CELL_H / 2)
        ink = INK if 2 <= cell.row.colour <= 6 else "white"
        if cell.row.fault:
            axes.text(*middle, "✗", size=12, color="white", weight="bold", ha="center", va="center")
        elif cell.text:
            axes.text(*middle, cell.text, size=6.5, color=ink, ha="center", va="center")
        elif cell.row.colour > LIMIT_STEP:
            axes.text(cell.x + 7, cell.y + 9, "•", size=6, color=ink, ha="center", va="center")
    at = {cell.row.name: cell for cell in shown.cells}
    target = at.get(scenes[0].fault["value"]) if scenes else None
    for kind, name in scenes[0].wires if scenes and target else ():
        source = at.get(name)
        if source is None or target is None or source is target or not shown.wires:
            continue
        axes.annotate(
            "",
            (target.x + target.width / 2, target.y - 2),
            (source.x + source.width / 2, source.y + (0 if source.y == target.y else CELL_H)),
            arrowprops={
                "arrowstyle": "-|>",
                "color": LOUD if kind == "is" else BLUE,
                "linestyle": "-" if kind == "is" else (0, (4, 3)),
                "linewidth": 1.8,
                "connectionstyle": f"arc3,rad={-0.25 if source.x < target.x else 0.12}",
            },
        )


def _depth(axes: Any, rows: Rows, faults: list[Row]) -> None:
    def shown(x: float) -> float:
        return max(x, 1e-2) if math.isfinite(x) else math.nan

    at = np.arange(len(rows.all))
    axes.fill_between(at, 1e-2, [shown(r.cumulative_times) for r in rows.all], step="mid", color="#f5a45a", alpha=0.5)
    axes.plot(at, [shown(r.times) for r in rows.all], ".", color=BLUE, markersize=2.5)
    axes.axhline(3, color=INK, linewidth=1, linestyle="--")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda x, _: power(x))
    axes.set_ylim(1e-2, None)
    axes.set_xlim(-0.5, len(rows.all) - 0.5)
    axes.set_ylabel("noise floors")
    axes.set_title(
        "cumulative (area) and local error (dots) along depth; above 3 is too much", size=9, color=SOFT, loc="left"
    )
    for fault in faults[:4]:
        axes.axvline(fault.index, color=LOUD, linewidth=1.4)
        axes.plot([fault.index], [shown(fault.times)], "o", color=LOUD, markeredgecolor=INK, markersize=6)
    starts = [r for r in rows.all if r.index == 0 or rows.all[r.index - 1].step != r.step]
    every = max(1, len(starts) // 10)
    axes.set_xticks([r.index for r in starts[::every]], [r.step for r in starts[::every]], size=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _triptych(figure: Any, material: Material, row: Row) -> None:
    from matplotlib.colors import ListedColormap

    drawn = gallery_of_one(material, row)
    if drawn is None:
        return
    parts = (("reference", drawn.reference, VALUES), ("candidate", drawn.candidate, VALUES))
    for i, (title, steps, palette) in enumerate((*parts, ("difference (log)", drawn.difference, ERRORS))):
        axes = figure.add_axes((0.03 + i * 0.325, 0.02, 0.3, 0.215))
        colours = ListedColormap([tuple(c / 255 for c in colour) for colour in palette])
        axes.imshow(steps, cmap=colours, vmin=0, vmax=63, aspect="auto", interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(title, size=9, color=INK, loc="left")
    figure.text(0.03, 0.258, f"{row.name} ({row.step})", size=9, color=INK, weight="bold")
