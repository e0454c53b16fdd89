"""The worksheet of an investigation: one printed page, A4 or Letter, with what the run knows and room to write.

Leaves out all that does not fit one page; the report has it.
"""

from __future__ import annotations

from firstbad.material import Material

from . import page, words
from .map import maps_of
from .ran import lines_of
from .rows import rows_of
from .timing import timing_of
from .wire import scene_of

FILE = "worksheet.html"


def render(material: Material) -> str:
    """The page as text."""
    rows = rows_of(material)
    result = material.result
    scenes = [scene_of(fault, rows) for fault in result["faults"]]
    faults = [scene.row for scene in scenes if scene.row is not None]
    maps = maps_of(rows, faults, scenes[0].wires if scenes else ())
    shown = next((one for one in maps if not one.field and (not faults or faults[0].step in one.steps)), None)
    first = result["first_bad"]
    return page.template("worksheet.html").render(
        result=result,
        rows=rows,
        fault=first,
        more=len(result["faults"]) - 1,
        map=shown,
        timing=timing_of(material, rows),
        ran=dict(lines_of(material)),
        sentence=words.sentence(result),
        verdict_name=words.NAMES[result["verdict"]],
        symbol=words.SYMBOLS[result["verdict"]],
        answers=words.answers(result),
        words=words,
        margin=words.margin(rows),
        candidate_file=result["files"].get("candidate", "candidate.h5"),
    )
