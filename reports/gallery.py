"""Which values a page shows in pictures: the faults and their neighbours in full, the rest small while there is room.

The limits are of bytes and of elements read, so that a page of any trace is made in about a second. Leaves out how a
picture is made (inspector.py, picture.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firstbad.material import Material

from .inspector import FULL, Look, look
from .picture import ERRORS, VALUES, Triptych, atlas, png, triptych
from .pool import pool
from .rows import Row, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


FULL_VALUES = 24
FULL_ELEMENTS = 45_000_000  # of each side
SMALL_VALUES = 480
SMALL_ELEMENTS = 30_000_000
SMALL_LARGEST = 1_000_000  # elements of one value
SMALL_FREE = 20_000  # so small that it does not count
SMALL_SIZE = 16


@dataclass(frozen=True)
class Thumbnails:
    """One picture that holds all of them; `places`: row → its number in it, line by line."""

    uri: str
    width: int
    height: int
    across: int
    rows: int
    places: Mapping[int, int]


@dataclass(frozen=True)
class Gallery:
    looks: Mapping[int, Look]  # row → its inspector
    thumbnails: Thumbnails | None
    left_out: int  # values without any picture


def gallery(material: Material, rows: Rows, faults: Sequence[Row], named: Iterable[Row]) -> Gallery:
    """`named`: values that a cause speaks of, shown in full right after the faults."""
    if material.reference is None or material.candidate is None:
        return Gallery({}, None, len(rows.all))
    heads = _heads(material)
    looks: dict[int, Look] = {}
    budget = FULL_ELEMENTS
    for row in _first(rows, faults, named):
        size = _size(row)
        if size == 0 or size > budget or len(looks) >= FULL_VALUES:
            continue
        both = _arrays(material, row)
        if both is not None:
            budget -= size
            looks[row.index] = look(row, *both, heads, as_svg=not looks)
    thumbnails = _thumbnails(material, rows, faults)
    shown = set(looks) | set(thumbnails.places if thumbnails else ())
    return Gallery(looks, thumbnails, len(rows.all) - len(shown))


def gallery_of_one(material: Material, row: Row) -> Triptych | None:
    """The three pictures of one value, None where it cannot be drawn."""
    both = _arrays(material, row) if _size(row) else None
    return triptych(pool(*both, FULL)) if both else None


def _first(rows: Rows, faults: Sequence[Row], named: Iterable[Row]) -> Iterator[Row]:
    """Rows in the order of their claim to a full picture, each once."""
    seen: set[int] = set()

    def claims() -> Iterator[Row]:
        yield from faults[:6]
        yield from named
        for fault in faults[:6]:
            yield from (rows.all[i] for i in rows.sources.get(fault.index, ()))
            yield from (rows.all[i] for i in rows.readers.get(fault.index, ())[:3])
        if not faults:
            yield from rows.weakest[:6]
        step = faults[0].step if faults else rows.steps[0] if rows.steps else ""
        yield from (row for row in rows.all if row.step == step and _ends_layer(row, rows))
        yield from rows.weakest[:6]

    for row in claims():
        if row.index not in seen:
            seen.add(row.index)
            yield row


def _ends_layer(row: Row, rows: Rows) -> bool:
    """Whether the next value is of another layer: one picture a layer."""
    following = rows.all[row.index + 1] if row.index + 1 < len(rows.all) else None
    return following is None or following.step != row.step or _layer(following.name) != _layer(row.name)


def _layer(name: str) -> str:
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[: number + 1])


def _thumbnails(material: Material, rows: Rows, faults: Sequence[Row]) -> Thumbnails | None:
    """The steps of the faults first, then the rest in execution order; at most SMALL_VALUES."""
    first = {fault.step for fault in faults}
    order = [*faults, *(r for r in rows.all if r.step in first), *(r for r in rows.all if r.step not in first)]
    pictures: list[Triptych] = []
    places: dict[int, int] = {}
    budget = SMALL_ELEMENTS
    for row in order:
        if len(pictures) >= SMALL_VALUES:
            break
        size = _size(row)
        if row.index in places or size < 2 or (size > SMALL_FREE and size > min(budget, SMALL_LARGEST)):
            continue
        both = _arrays(material, row)
        if both is not None:
            budget -= size if size > SMALL_FREE else 0
            places[row.index] = len(pictures)
            pictures.append(triptych(pool(*both, SMALL_SIZE)))
    if not pictures:
        return None
    sheet, width, height = atlas(pictures)
    across = sheet.shape[1] // width
    return Thumbnails(png(sheet, (*VALUES, *ERRORS)), width, height, across, sheet.shape[0] // height, places)


def _arrays(material: Material, row: Row) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Both arrays, where they are of numbers that can be drawn."""
    both = material.arrays(row.index)
    return both if both is not None and all(array.dtype.kind in "fiub" for array in both) else None


def _heads(material: Material) -> int:
    """Attention heads of the model, where its config says so."""
    config = material.result["environment"].get("reference", {}).get("config", {})
    names = ("encoder_attention_heads", "num_attention_heads", "decoder_attention_heads", "n_head")
    return next((config[name] for name in names if isinstance(config.get(name), int)), 0)


def _size(row: Row) -> int:
    count = 1
    for n in row.shape:
        count *= n
    return count
