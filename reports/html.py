"""The divergence report: one page that needs nothing else, neither a server nor a network nor a script.

Verdict, cause, map, chart, first inspector and table are in the page itself; its script sorts, filters, follows clicks
and keys. A content-security policy in the page lets only that script run, whatever stands in names and transcripts.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from firstbad.material import Material

from . import evidence, page, words
from .depth import depth_of
from .gallery import gallery
from .map import maps_of
from .memory import buffers_of
from .ran import alone_of, lines_of
from .rows import Row, Rows, rows_of
from .timing import timing_of
from .wire import Scene, scene_of

FILE = "report.html"

DRAWN_FAULTS = 4  # further ones are listed
TABLE_ROWS = 50  # in the page itself; the script shows the rest
MAPS = 12


def render(material: Material) -> str:
    """The page as text."""
    rows = rows_of(material)
    result = material.result
    scenes = [scene_of(fault, rows) for fault in result["faults"]]
    faults = [scene.row for scene in scenes if scene.row is not None]
    all_maps = maps_of(rows, faults, scenes[0].wires if scenes else ())
    shown = all_maps[:MAPS]
    pictures = gallery(material, rows, faults, _named(scenes, rows))
    candidate = str(result["files"].get("candidate", "candidate.h5"))
    depth = depth_of(rows, faults)
    script, style = page.asset("report.js"), page.asset("report.css")
    context: dict[str, Any] = {
        "result": result,
        "rows": rows,
        "scenes": scenes[:DRAWN_FAULTS],
        "more_faults": scenes[DRAWN_FAULTS:],
        "maps": shown,
        "map_index": _opened(shown, faults),
        "maps_left_out": len(all_maps) - len(shown),
        "depth": depth,
        "gallery": pictures,
        "panels": list(pictures.looks.values()),
        "table": _table(rows),
        "timing": timing_of(material, rows),
        "buffers": buffers_of(
            material,
            rows,
            [one.step for one in shown[:3]],
            faults[0] if faults else None,
            scenes[0].wires if scenes else (),
        ),
        "ran": lines_of(material),
        "alone": alone_of(result["coverage"]),
        "missing": material.missing,
        "data": page.data(rows, pictures, shown, faults, depth, candidate),
        "candidate_file": candidate,
        "symbol": words.SYMBOLS[result["verdict"]],
        "verdict_name": words.NAMES[result["verdict"]],
        "sentence": words.sentence(result),
        "answers": words.answers(result),
        "evidence": list(evidence.lines(result["extra"])),
        "words": words,
        "style": style,
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return page.template("report.html").render(context)


def _named(scenes: list[Scene], rows: Rows) -> list[Row]:
    """The values that the causes speak of."""
    return [end.row for scene in scenes[:DRAWN_FAULTS] for end in scene.ends if end.row is not None and rows.all]


def _opened(maps: tuple[Any, ...], faults: list[Row]) -> int:
    """The map to open on: that of the first fault."""
    return next((i for i, one in enumerate(maps) if faults and faults[0].step in one.steps), 0)


def _table(rows: Rows) -> list[Row]:
    """What does not agree; of a run where everything does, the weakest values."""
    off = [row for row in rows.all if not row.agrees]
    return off[:TABLE_ROWS] if off else list(rows.weakest[:40])
