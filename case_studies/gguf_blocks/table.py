"""The table of README.md: every quantised format against ggml's own decoder, and every field spoilt once and named.

    python case_studies/gguf_blocks/table.py          prints it
    python case_studies/gguf_blocks/table.py --write  puts it into README.md

Needs `pip install 'firstbad[ggml]'`: the decoders are those of the wheel pywhispercpp, the checked numbers the package
gguf's.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from firstbad.gguf_blocks import FORMATS, block_bytes, differing_blocks, numbers

PAGE = Path(__file__).with_name("README.md")
MARK = "<!-- made by table.py -->\n"
BLOCKS = 1000


def decoder(name: str) -> ctypes._NamedFuncPointer:
    spec = importlib.util.find_spec("pywhispercpp")
    if spec is None or spec.origin is None:
        raise SystemExit("needs ggml's own decoder: pip install 'firstbad[ggml]'")
    library = next((Path(spec.origin).parents[1] / "pywhispercpp.libs").glob("libggml-base*"))
    function = getattr(ctypes.CDLL(str(library)), f"dequantize_row_{name.lower().replace('_k', '_K')}")
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return function


def equal(name: str) -> int:
    """Of random and edge blocks, how many stand for the very numbers that ggml decodes."""
    raw = np.random.default_rng(1).integers(0, 256, (BLOCKS, block_bytes(name)), dtype=np.uint8)
    raw[0], raw[1] = 0, 255  # nothing, and scales that are no numbers
    theirs = np.zeros((BLOCKS, FORMATS[name][0]), np.float32)
    decoder(name)(raw.ctypes.data, theirs.ctypes.data, theirs.size)
    ours = numbers(name, raw).reshape(theirs.shape)
    return int(((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).all(1).sum())


def spoilt(name: str) -> Iterator[tuple[str, int, int]]:
    """(field, its bits, how many of them are named as that field and no other when they alone are turned)."""
    raw = np.random.default_rng(2).integers(0, 64, (3, block_bytes(name)), dtype=np.uint8)
    start = 0
    for field in FORMATS[name][1]:
        named = 0
        for bit in range(8 * field.bytes):
            other = raw.copy()
            other[1, start + bit // 8] ^= 1 << (bit % 8)
            found = list(differing_blocks(name, raw, other))
            named += [(d.block, d.fields) for d in found] == [(1, (field.name,))]
        yield field.name, 8 * field.bytes, named
        start += field.bytes


def rows() -> Iterator[str]:
    yield "| format | numbers a block | bytes | blocks equal to ggml's | fields: bits named of bits turned |"
    yield "|---|---:|---:|---:|---|"
    for name in FORMATS:
        fields = ", ".join(f"{field} {named}/{bits}" for field, bits, named in spoilt(name))
        yield f"| {name} | {FORMATS[name][0]} | {block_bytes(name)} | {equal(name)}/{BLOCKS} | {fields} |"


if __name__ == "__main__":
    table = "\n".join(rows()) + "\n"
    if "--write" in sys.argv:
        PAGE.write_text(PAGE.read_text("utf-8").partition(MARK)[0] + MARK + table, "utf-8")
    print(table, end="")
