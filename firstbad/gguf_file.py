"""GGUF files: their tensors by name, raw and as numbers. Reading is the `gguf` package's."""

from __future__ import annotations

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


def tensors(path: Path) -> Mapping[str, Tensor]:
    """Every tensor of the file, mapped into memory."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UsageError("GGUF files need the package `gguf`: pip install 'firstbad[ggml]'") from None
    try:
        reader: Any = GGUFReader(str(path))
        return {
            t.name: Tensor(t.name, t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), np.asarray(t.data))
            for t in reader.tensors
        }
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"`{path}` is no GGUF file that can be read: {str(error).splitlines()[0]}") from None


def lines(path: Path, name: str, blocks: int) -> Iterator[str]:
    """For people: the list of tensors, or the first blocks of one."""
    held = tensors(path)
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
