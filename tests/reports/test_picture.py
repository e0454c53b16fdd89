"""Pictures: steps of colour on one scale, PNG that decodes to them, SVG paths that cover them."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import numpy as np

from firstbad.reports.picture import ERRORS, INFINITE, LEVELS, NAN, NOTHING, VALUES, atlas, png, svg_paths, triptych
from firstbad.reports.pool import pool

A = np.array([[0, 1, -2], [np.nan, np.inf, 0.5]], np.float32)
B = np.array([[0, 1, -2], [0, np.inf, 1.5]], np.float32)


def decoded(uri: str) -> np.ndarray:
    """The palette numbers of a PNG, read with nothing but zlib."""
    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        chunks[kind] = body
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:]


def test_steps_of_colour() -> None:
    picture = triptych(pool(A, B, 8))
    middle = (LEVELS - 1) // 2
    assert picture.reference[0, 0] == middle
    assert picture.reference[0, 2] < middle < picture.reference[0, 1]
    assert picture.reference[1, 0] == NAN
    assert picture.reference[1, 1] == INFINITE
    assert picture.difference[0, 0] == 0
    assert picture.difference[1, 1] == 0  # both infinite
    assert picture.difference[1, 2] > 0
    assert picture.difference[1, 0] == NAN


def test_png_holds_the_steps() -> None:
    steps = triptych(pool(A, B, 8)).reference
    assert (decoded(png(steps, VALUES)) == steps).all()


def test_svg_paths_cover_every_point_once() -> None:
    steps = np.array([[1, 1, 2], [NOTHING, 2, 2]], np.uint8)
    area = 0
    for colour, path in svg_paths(steps, VALUES):
        assert re.fullmatch(r"#[0-9a-f]{6}", colour)
        area += sum(int(width) for width in re.findall(r"h(\d+)v", path))
    assert area == 5


def test_an_atlas_of_thumbnails() -> None:
    many = [triptych(pool(np.full((n, n), n, np.float32), np.zeros((n, n), np.float32), 16)) for n in range(1, 30)]
    sheet, width, height = atlas(many, 10)
    assert (width, height) == (3 * 16 + 2, 16)
    assert sheet.shape == (3 * 16, 10 * width)
    assert sheet.max() < len((*VALUES, *ERRORS))
    assert (sheet[:, -width:][32:] == NOTHING).all()  # there are 29 of 30


def test_where_all_is_wrong_the_scale_of_the_difference_is_short() -> None:
    random = np.random.default_rng(1)
    a = random.standard_normal((50, 50)).astype(np.float32)
    wrong = random.standard_normal((50, 50)).astype(np.float32)
    assert triptych(pool(a, wrong, 50)).scale.decades == 2
    assert triptych(pool(a, a + np.float32(1e-6) * wrong, 50)).scale.decades == 8
    assert triptych(pool(a, a, 50)).scale.decades == 8
