"""What the HTML pages share: the templates, their filters, and the data that the script of a page reads.

Everything that is text is escaped by the templates; names get break points after their dots. Leaves out the content.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from . import scale, words
from .depth import Depth
from .gallery import Gallery
from .map import Map
from .picture import ERRORS, VALUES, gradient
from .rows import Row, Rows

TEMPLATES = Path(__file__).with_name("templates")

COLOURS = ("#1b4f8a", "#3179bd", "#79b1e0", "#c3def3", "#ffdcae", "#ffb866", "#f58a2f", "#d75f0b", "#9c3d06", "#000000")
"""The steps of colour of scale.py in the light theme, for where the style sheet is not let in."""

MEANINGS = (
    *("exactly", "to 1/100", "to 1/10", "to all of what is allowed"),
    *("up to 10 times that", "100", "1,000", "10,000", "more"),
    "NaN",
)

_BREAK = Markup("<wbr>")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": scale.number,
        "times": scale.times,
        "element": scale.element,
        "seconds": scale.seconds,
        "bytes": scale.size,
        "name": broken,
        "marked": marked,
        "href": href,
        "shape": shape,
    }
    environment.globals |= {
        "COLOURS": COLOURS,
        "MEANINGS": MEANINGS,
        "VALUE_GRADIENT": gradient(VALUES),
        "ERROR_GRADIENT": gradient(ERRORS),
    }
    return environment


def template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


def asset(name: str) -> str:
    """A style sheet or script, to stand in the page as it is."""
    return (TEMPLATES / name).read_text("utf-8")


def broken(name: str) -> Markup:
    """A name that may break after its dots, set apart from the text around in either direction."""
    parts = re.split(r"(?<=[./])(?=.)", name)
    return Markup("<bdi>") + _BREAK.join(escape(part) for part in parts) + Markup("</bdi>")


def marked(text: str) -> Markup:
    """A sentence with its names as code."""
    parts = words.parts(text)
    return Markup().join(Markup("<code>") + broken(p) + Markup("</code>") if name else escape(p) for name, p in parts)


def href(row: Row) -> str:
    """The link to a value's place in the page."""
    return "#" + quote(row.anchor, safe="@.:/-_")


def shape(n: Sequence[int]) -> str:
    return "×".join(map(str, n)) or "scalar"


def data(
    rows: Rows, pictures: Gallery, maps: Sequence[Map], faults: Sequence[Row], depth: Depth | None, candidate: str
) -> Markup:
    """What the script reads, as JSON that cannot end its element: columns, in which a text is a number into `texts`."""
    texts: dict[str, int] = {}

    def numbers(words: Sequence[str]) -> list[int]:
        return [texts.setdefault(word, len(texts)) for word in words]

    places = pictures.thumbnails.places if pictures.thumbnails else {}
    columns = {
        "step": numbers([row.step for row in rows.all]),
        "name": numbers([row.name for row in rows.all]),
        "op": numbers([row.op for row in rows.all]),
        "shape": numbers([shape(row.shape) for row in rows.all]),
        "verdict": numbers([row.verdict for row in rows.all]),
        "test": numbers([row.test for row in rows.all]),
        "local": [_short(row.local) for row in rows.all],
        "floor": [_short(row.floor) for row in rows.all],
        "times": [_short(row.times, 7) for row in rows.all],
        "cumulative": [_short(row.cumulative) for row in rows.all],
        "allowed": [_short(row.allowed) for row in rows.all],
        "colour": "".join(str(row.colour) for row in rows.all),
        "sources": [list(rows.sources.get(row.index, ())) for row in rows.all],
        "thumb": [places.get(row.index, -1) for row in rows.all],
        "texts": list(texts),
        "looks": sorted(pictures.looks),
        "faults": [row.index for row in faults],
        "candidate": candidate,
        "spans": [[s.first, s.end, round(s.left, 1), round(s.right, 1)] for s in depth.spans] if depth else [],
        "maps": [
            {"steps": one.steps, "step": one.step, "across": one.across, "pitch": one.pitch, "size": one.size}
            for one in maps
        ],
    }
    text = json.dumps(columns, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e"))


def _short(x: float, digits: int = 5) -> float | int | None:
    """Enough digits to sort by and to round as the page itself does; null for infinite."""
    if not math.isfinite(x):
        return None
    return float(f"{x:.{digits}g}") if x else 0
