"""The blocks of ggml's quantised formats, field by field: where each number stands, which field of two blocks differs.

The numbers that blocks stand for are the `gguf` package's; what is here is their layout, as ggml's structures have it.
Leaves out encoding, and what a field means in arithmetic beyond one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


TOGETHER = 1 << 13
"""Blocks that are decoded at once."""


@dataclass(frozen=True)
class Field:
    name: str
    bytes: int
    meaning: str


def _fields(text: str) -> tuple[Field, ...]:
    """ "d 2 scale, float16; qs 16 ..." """
    rows = [row.strip().split(" ", 2) for row in text.split(";")]
    return tuple(Field(name, int(size), meaning) for name, size, meaning in rows)


_SCALE = "d 2 scale of the block, float16"
_BOTH = f"{_SCALE}; m 2 minimum of the block, float16"
_K_BOTH = "d 2 scale of the scales, float16; dmin 2 scale of the minima, float16"

FORMATS: dict[str, tuple[int, tuple[Field, ...]]] = {
    "Q4_0": (32, _fields(f"{_SCALE}; qs 16 4 bits each: byte i holds i (low) and i + 16 (high)")),
    "Q4_1": (32, _fields(f"{_BOTH}; qs 16 4 bits each: byte i holds i (low) and i + 16 (high)")),
    "Q5_0": (32, _fields(f"{_SCALE}; qh 4 fifth bit of each; qs 16 low 4 bits: byte i holds i and i + 16")),
    "Q5_1": (32, _fields(f"{_BOTH}; qh 4 fifth bit of each; qs 16 low 4 bits: byte i holds i and i + 16")),
    "Q8_0": (32, _fields(f"{_SCALE}; qs 32 8 bits each, signed")),
    "Q2_K": (256, _fields(f"scales 16 4-bit scale and minimum of each 16; qs 64 2 bits each; {_K_BOTH}")),
    "Q3_K": (
        256,
        _fields("hmask 32 third bit of each; qs 64 low 2 bits; scales 12 6-bit scale of each 16; d 2 scale, float16"),
    ),
    "Q4_K": (256, _fields(f"{_K_BOTH}; scales 12 6-bit scale and minimum of each 32; qs 128 4 bits each")),
    "Q5_K": (
        256,
        _fields(f"{_K_BOTH}; scales 12 6-bit scale and minimum of each 32; qh 32 fifth bit; qs 128 low 4 bits"),
    ),
    "Q6_K": (
        256,
        _fields("ql 128 low 4 bits; qh 64 upper 2 bits; scales 16 8-bit scale of each 16; d 2 scale, float16"),
    ),
    "TQ1_0": (256, _fields(f"qs 48 5 trits a byte; qh 4 4 trits a byte; {_SCALE}")),
    "TQ2_0": (256, _fields(f"qs 64 2 bits each: -1, 0, 1; {_SCALE}")),
    "IQ1_S": (256, _fields(f"{_SCALE}; qs 32 grid index, low 8 bits; qh 16 high 3 bits, scale and shift of each 32")),
    "IQ1_M": (
        256,
        _fields(
            "qs 32 grid index, low 8 bits; qh 16 high 3 bits and shift; scales 8 3-bit scales, the block's in 4 x 4"
        ),
    ),
    "IQ2_XXS": (256, _fields(f"{_SCALE}; qs 64 of each 32: 4 grid indices, then 4 x 7 signs and a 4-bit scale")),
    "IQ2_XS": (
        256,
        _fields(f"{_SCALE}; qs 64 9-bit grid index and 7 signs of each 8; scales 8 4-bit scale of each 16"),
    ),
    "IQ2_S": (
        256,
        _fields(
            f"{_SCALE}; qs 32 grid index, low 8 bits; signs 32 a sign each; qh 8 high 2 bits; "
            "scales 8 4-bit scale of each 16"
        ),
    ),
    "IQ3_XXS": (
        256,
        _fields(f"{_SCALE}; qs 64 grid index of each 4; signs 32 of each 32: 4 x 7 signs and a 4-bit scale"),
    ),
    "IQ3_S": (
        256,
        _fields(
            f"{_SCALE}; qs 64 grid index, low 8 bits; qh 8 ninth bit; signs 32 a sign each; "
            "scales 4 4-bit scale of each 32"
        ),
    ),
    "IQ4_NL": (32, _fields(f"{_SCALE}; qs 16 4 bits each, an index of 16 uneven steps")),
    "IQ4_XS": (
        256,
        _fields(f"{_SCALE}; scales_h 2 upper 2 bits; scales_l 4 low 4 bits of each 32's scale; qs 128 4 bits each"),
    ),
    "MXFP4": (
        32,
        _fields("e 1 scale, a power of two; qs 16 4 bits each, a float of 2 bits exponent and 1 bit mantissa"),
    ),
    "NVFP4": (64, _fields("d 4 scale of each 16, a float of 4 bits exponent and 3 bits mantissa; qs 32 4 bits each")),
}
"""Format → (elements of a block, its fields in order)."""


def fields_of(name: str) -> tuple[int, tuple[Field, ...]]:
    if name.upper() not in FORMATS:
        hint = did_you_mean(name.upper(), FORMATS) or f"known: {', '.join(FORMATS)}"
        raise UsageError(f"no quantised format `{name}`: {hint}")
    return FORMATS[name.upper()]


def block_bytes(name: str) -> int:
    return sum(field.bytes for field in fields_of(name)[1])


def field_at(name: str, byte: int) -> tuple[Field, int]:
    """The field that a byte of a block is of, and its number within it."""
    start = 0
    for field in fields_of(name)[1]:
        if byte < start + field.bytes:
            return field, byte - start
        start += field.bytes
    raise UsageError(f"a block of {name} has {start} bytes: there is no byte {byte}")


@dataclass(frozen=True)
class BlockDifference:
    """One block that differs between two tensors of one format: in which fields, and by how much its numbers do."""

    block: int
    fields: tuple[str, ...]
    largest: float


def differing_blocks(name: str, ours: NDArray[Any], theirs: NDArray[Any], most: int = 8) -> Iterator[BlockDifference]:
    """The first blocks that differ; the arrays are raw bytes."""
    size = block_bytes(name)
    a, b = (np.asarray(raw, np.uint8).reshape(-1, size) for raw in (ours, theirs))
    for block in np.flatnonzero((a != b).any(1))[:most]:
        wrong = np.flatnonzero(a[block] != b[block])
        fields = tuple(dict.fromkeys(field_at(name, int(byte))[0].name for byte in wrong))
        x, y = numbers(name, a[block]), numbers(name, b[block])
        yield BlockDifference(int(block), fields, float(np.nanmax(np.abs(x - y), initial=0.0)))


def numbers(name: str, raw: NDArray[Any]) -> NDArray[np.float32]:
    """The float32 numbers that blocks stand for, by the gguf package."""
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise UsageError("blocks need the package `gguf`: pip install 'firstbad[ggml]'") from None
    whole = np.asarray(raw, np.uint8).reshape(-1, block_bytes(name))
    kind, (size, _) = GGMLQuantizationType[name.upper()], fields_of(name)
    made = np.empty((len(whole), size), np.float32)
    with np.errstate(all="ignore"):  # a spoilt scale is an infinity or not a number, as in the engine
        for start in range(0, len(whole), TOGETHER):  # one row each time: the package takes 16 rows together
            some = whole[start : start + TOGETHER]
            made[start : start + TOGETHER] = quants.dequantize(some.reshape(1, -1), kind).reshape(len(some), size)
    return made


def smallest(name: str, raw: NDArray[Any]) -> NDArray[np.float32] | None:
    """The number that each block adds to all of its own, [blocks]; None: the format has none beside q8_1."""
    if name not in ("Q4_1", "Q5_1"):
        return None
    blocks = np.asarray(raw).reshape(-1).view(np.uint8).reshape(-1, block_bytes(name))
    return np.ascontiguousarray(blocks[:, 2:4]).view(np.float16).reshape(-1).astype(np.float32)


def draw(name: str, raw: NDArray[Any]) -> Iterator[str]:
    """One block, a line a field: its bytes as bits (the first eight), and the numbers at the end."""
    size, fields = fields_of(name)
    data = np.asarray(raw, np.uint8).reshape(-1)
    start = 0
    for field in fields:
        held = data[start : start + field.bytes]
        bits = " ".join(f"{byte:08b}" for byte in held[:8]) + (" ..." if field.bytes > 8 else "")
        told = f" = {held.view(np.float16)[0]:.6g}" if field.bytes == 2 and "float16" in field.meaning else ""
        end = start + field.bytes - 1
        yield f"bytes {start:3}-{end:<3}  {field.name:9} {bits}{told}   {field.meaning}"
        start += field.bytes
    values = numbers(name, data).reshape(-1)
    shown = " ".join(f"{x:.5g}" for x in values[:8])
    yield f"{size} numbers  {shown} ... from {values.min():.5g} to {values.max():.5g}"
