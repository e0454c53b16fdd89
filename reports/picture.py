"""Pictures of pooled arrays in 64 colours: reference, candidate and difference on one scale, as PNG or as SVG paths.

Values go from blue (negative) over white to orange; a difference is shown on a log scale that ends at the scale of
the values. PNG is small; SVG also shows where a server forbids pictures in data. Leaves out what is shown.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .pool import Pooled

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVELS = 61  # steps of a scale, an odd number so that 0 has its own
NOTHING, INFINITE, NAN = 61, 62, 63  # further entries of each palette
DECADES = 8  # of the scale of a difference, at most; fewer where all of it is large
CLIPPED = 99.5  # percentile of the blocks at which the scale ends: a few large channels must not hide the rest

ATLAS_ACROSS = 24

_BLUES = ((8, 48, 107), (33, 102, 172), (103, 169, 207), (209, 229, 240))
_VALUES = (*_BLUES, (247, 247, 245), (253, 224, 189), (244, 165, 96), (217, 95, 14), (127, 39, 4))
_ERRORS = ((249, 248, 245), (254, 232, 203), (253, 198, 133), (249, 152, 64), (225, 94, 13), (150, 48, 4))
_SPECIAL = ((255, 255, 255), (122, 130, 142), (0, 0, 0))


def _palette(stops: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    at = np.linspace(0, len(stops) - 1, LEVELS)
    mixed = np.stack([np.interp(at, range(len(stops)), [stop[i] for stop in stops]) for i in range(3)], 1)
    return (*((int(r), int(g), int(b)) for r, g, b in np.round(mixed)), *_SPECIAL)


VALUES, ERRORS = _palette(_VALUES), _palette(_ERRORS)


@dataclass(frozen=True)
class Scale:
    """`top`: the magnitude at which both values and the difference reach the end of their colours."""

    top: float
    clipped: bool
    decades: int  # of the scale of the difference below its end


@dataclass(frozen=True)
class Triptych:
    """Steps of colour of the three pictures; all have one size."""

    reference: NDArray[np.uint8]
    candidate: NDArray[np.uint8]
    difference: NDArray[np.uint8]
    scale: Scale


def triptych(pooled: Pooled) -> Triptych:
    """Both values on one scale, and their difference on a log scale that ends where that one ends."""
    there = ~pooled.nothing
    sizes = np.abs(np.concatenate([pooled.reference[there], pooled.candidate[there]]))
    sizes = sizes[np.isfinite(sizes)]
    largest = float(sizes.max()) if sizes.size else 0.0
    top = float(np.percentile(sizes, CLIPPED)) if sizes.size else 0.0
    top = top if top > 0 else largest or 1.0
    with np.errstate(all="ignore"):  # what is not finite gets a colour of its own
        parts = [0.5 + side / (2 * top) for side in (pooled.reference, pooled.candidate)]
        decades = _decades(pooled.difference[there] / top)
        parts.append(1 + np.log10(pooled.difference / top) / decades)
    values = (pooled.reference, pooled.candidate, pooled.difference)
    steps = [_stepped(part, value, pooled.nothing) for part, value in zip(parts, values, strict=True)]
    return Triptych(steps[0], steps[1], steps[2], Scale(top, top < largest, decades))


def _decades(part: NDArray[Any]) -> int:
    """As many as hold nearly all differences, so that a wrong value shows where it is more wrong."""
    part = part[(part > 0) & np.isfinite(part)]
    if not part.size:
        return DECADES
    return int(np.clip(np.ceil(-np.log10(np.percentile(part, 2))), 2, DECADES))


def _stepped(part: NDArray[Any], values: NDArray[Any], nothing: NDArray[Any]) -> NDArray[np.uint8]:
    """Fractions of a scale as steps of colour."""
    steps: NDArray[np.uint8]
    with np.errstate(invalid="ignore"):
        steps = np.rint(np.clip(np.nan_to_num(part), 0, 1) * (LEVELS - 1)).astype(np.uint8)
    steps[np.isinf(values)] = INFINITE
    steps[np.isnan(values)] = NAN
    steps[nothing] = NOTHING
    return steps


def atlas(pictures: Sequence[Triptych], across: int = ATLAS_ACROSS) -> tuple[NDArray[np.uint8], int, int]:
    """Thumbnails in one picture, the three of a value beside each other, and the width and height of one.

    In one palette: steps from 64 up are the difference's.
    """
    tall = max(p.reference.shape[0] for p in pictures)
    wide = max(p.reference.shape[1] for p in pictures)
    width, height = 3 * wide + 2, tall
    sheet = np.full((-(-len(pictures) // across) * height, across * width), NOTHING, np.uint8)
    for i, picture in enumerate(pictures):
        y, x = i // across * height, i % across * width
        for part in (_fit(picture.reference, tall, wide), _fit(picture.candidate, tall, wide)):
            sheet[y : y + tall, x : x + wide] = part
            x += wide + 1
        sheet[y : y + tall, x : x + wide] = _fit(picture.difference, tall, wide) + np.uint8(64)
    return sheet, width, height


def _fit(steps: NDArray[np.uint8], tall: int, wide: int) -> NDArray[np.uint8]:
    """Stretched to the size of the others, each element a rectangle."""
    rows = np.arange(tall) * steps.shape[0] // tall
    columns = np.arange(wide) * steps.shape[1] // wide
    return np.asarray(steps[np.ix_(rows, columns)])


def png(steps: NDArray[np.uint8], palette: tuple[tuple[int, int, int], ...]) -> str:
    """A palette picture as a data URI; NOTHING is transparent."""
    height, width = steps.shape
    lines = np.zeros((height, width + 1), np.uint8)  # the first byte of a line says that it is not filtered
    lines[:, 1:] = steps
    opaque = bytes(0 if i % 64 == NOTHING else 255 for i in range(len(palette)))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes(part for colour in palette for part in colour)),
            (b"tRNS", opaque),
            (b"IDAT", zlib.compress(lines.tobytes(), 6)),
            (b"IEND", b""),
        )
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


def svg_paths(steps: NDArray[np.uint8], palette: tuple[tuple[int, int, int], ...]) -> list[tuple[str, str]]:
    """(colour, path) of a picture, one path a colour; neighbours in a row are one stroke of the path."""
    paths: dict[int, list[str]] = {}
    for y, line in enumerate(steps.tolist()):
        x = 0
        while x < len(line):
            end = x + 1
            while end < len(line) and line[end] == line[x]:
                end += 1
            if line[x] != NOTHING:
                paths.setdefault(line[x], []).append(f"M{x} {y}h{end - x}v1h-{end - x}z")
            x = end
    return [("#{:02x}{:02x}{:02x}".format(*palette[step]), "".join(path)) for step, path in sorted(paths.items())]


def gradient(palette: tuple[tuple[int, int, int], ...], stops: int = 13) -> list[tuple[str, str]]:
    """(offset, colour) of the bar beside a picture."""
    at = [round(i * (LEVELS - 1) / (stops - 1)) for i in range(stops)]
    return [(f"{100 * i / (LEVELS - 1):.0f}%", "#{:02x}{:02x}{:02x}".format(*palette[i])) for i in at]
