"""GGUF files: what they say of themselves, and their tensors by name, raw and as numbers.

Read in one pass: with the `gguf` package's reader a vocabulary of 49 thousand words takes seconds. The numbers of the
formats and what blocks stand for are that package's.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.gguf_blocks import FORMATS, block_bytes, draw, numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray


NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The file's words → transformers'."""


@dataclass(frozen=True)
class Tensor:
    name: str
    type: str  # "Q4_1", "F32", ...
    shape: tuple[int, ...]  # in PyTorch's order
    raw: NDArray[Any]

    @property
    def blocks(self) -> int:
        """Blocks in all; 0: it has none."""
        return self.raw.nbytes // block_bytes(self.type) if self.type in FORMATS else 0

    def array(self) -> NDArray[np.float32]:
        """The numbers, in the tensor's shape."""
        if self.type in FORMATS:
            return numbers(self.type, self.raw.reshape(-1)).reshape(self.shape)
        if self.type == "BF16":
            bits = self.raw.reshape(-1).view(np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(self.shape)
        return np.asarray(self.raw, np.float32).reshape(self.shape)


def is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


@dataclass(frozen=True)
class Gguf:
    """A file: what it says of itself, and its tensors, mapped into memory."""

    metadata: Mapping[str, Any]  # key → number, word, or list of them
    tensors: Mapping[str, Tensor]


def read(path: Path) -> Gguf:
    """The whole file; UsageError where it is none, or not whole."""
    try:
        with path.open("rb") as file:
            return _read(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
        reason = (str(error) or "it is cut off").splitlines()[0]
        raise UsageError(f"`{path}` is no GGUF file that can be read: {reason}") from None


def _read(mapped: mmap.mmap) -> Gguf:
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:
        raise UsageError("GGUF files need the package `gguf`: pip install 'firstbad[ggml]'") from None
    cursor = _Cursor(memoryview(mapped))
    magic, version = cursor.take("<4sI")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"version {version}")
    tensors, keys = cursor.take("<QQ")
    said = {cursor.text(): cursor.value(cursor.one("<I")) for _ in range(keys)}
    heads = []
    for _ in range(tensors):
        name, rank = cursor.text(), cursor.one("<I")
        if rank > 4:
            raise ValueError(f"`{name}` has {rank} axes")
        heads.append((name, cursor.take(f"<{rank}Q"), GGMLQuantizationType(cursor.one("<I")), cursor.one("<Q")))
    align = int(said.get("general.alignment", 32))
    start = -(-cursor.at // align) * align
    data, held = np.frombuffer(mapped, np.uint8), {}
    for name, ne, kind, offset in heads:
        size, bytes_each = GGML_QUANT_SIZES[kind]
        count = math.prod(ne) // size * bytes_each
        raw = np.asarray(data[start + offset : start + offset + count])
        if raw.size != count or (start + offset) % 4:
            raise ValueError(f"`{name}` reaches beyond its end")
        plain = _PLAIN.get(kind.name)
        held[name] = Tensor(name, kind.name, tuple(reversed(ne)), raw if plain is None else raw.view(plain))
    return Gguf(said, held)


_PLAIN: Mapping[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F64": np.float64,
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
}
_WORDS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _LIST = 8, 9
_SIZE = struct.Struct("<Q")


class _Cursor:
    """Reads on from where it stands."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return found

    def one(self, layout: str) -> Any:
        return self.take(layout)[0]

    def text(self) -> str:
        size = self.one("<Q")
        if size > len(self.data) - self.at:
            raise ValueError("a string reaches beyond its end")
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _LIST:
            return self.one(_WORDS[kind])
        of, count = self.take("<IQ")
        if count > len(self.data) - self.at:
            raise ValueError("a list reaches beyond its end")
        if of in _WORDS:
            return list(self.take(f"<{count}{_WORDS[of][1]}"))
        return self._texts(count) if of == _STRING else [self.value(of) for _ in range(count)]

    def _texts(self, count: int) -> list[str]:
        """A list of strings: a vocabulary has a hundred thousand."""
        data, at, found = self.data, self.at, []
        for _ in range(count):
            end = at + 8 + _SIZE.unpack_from(data, at)[0]
            if end > len(data):
                raise ValueError("a string reaches beyond its end")
            found.append(str(data[at + 8 : end], "utf-8", "replace"))
            at = end
        self.at = at
        return found


def name_of(tensor: str) -> str:
    """ "blk.0.attn_q.weight" → "model.layers.0.self_attn.q_proj.weight"; "": not known."""
    layer = re.match(r"blk\.(\d+)\.", tensor)
    word, _, kind = tensor[layer.end() if layer else 0 :].rpartition(".")
    known = NAMES.get(word)
    if known is None:
        return ""
    return f"model.layers.{layer[1]}.{known}.{kind}" if layer else f"{known}.{kind}"


def lines(path: Path, name: str, blocks: int) -> Iterator[str]:
    """For people: the list of tensors, or the first blocks of one."""
    held = read(path).tensors
    if not name:
        for tensor in held.values():
            yield f"{tensor.name}  {'x'.join(map(str, tensor.shape))}  {tensor.type}" + _count(tensor)
        yield f"{len(held)} tensors; the blocks of one: firstbad show {path} NAME --blocks 3"
        return
    if name not in held:
        raise UsageError(f"no tensor `{name}` in `{path}`: {did_you_mean(name, held) or 'see the list without a name'}")
    tensor = held[name]
    yield f"{tensor.name}  {list(tensor.shape)} {tensor.type}{_count(tensor)}"
    if not tensor.blocks:
        yield f"  {' '.join(f'{x:.5g}' for x in tensor.array().reshape(-1)[:8])} ..."
        return
    size = block_bytes(tensor.type)
    flat = tensor.raw.reshape(-1).view(np.uint8)
    for number in range(min(blocks, tensor.blocks)):
        yield f"block {number}"
        yield from (f"  {line}" for line in draw(tensor.type, flat[number * size : (number + 1) * size]))


def _count(tensor: Tensor) -> str:
    return f"  {tensor.blocks} blocks of {FORMATS[tensor.type][0]}" if tensor.blocks else ""
