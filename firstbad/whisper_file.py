"""whisper.cpp's own model file: read and written, with its tensors under Hugging Face's names.

    u32 magic, 11 x i32 sizes, i32 mels, i32 bins, mels x bins x f32 filters, i32 tokens, each: u32 length, bytes; then
    to the end each tensor: i32 rank, i32 length of name, i32 type, rank x i32 sizes (fastest first), name, data.
    All little-endian.

Both engines of a comparison can so be given the very same weights. Quantising is the `gguf` package's. Leaves out the
old formats (ggmf, ggjt) and models that are no Whisper: refused in one line.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.errors import UsageError
from firstbad.gguf_blocks import FORMATS, block_bytes, numbers, smallest

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = 0x67676D6C
QUANTISED = 2000  # added to the file's type where blocks are of the second version

TYPES: Mapping[str, tuple[int, int]] = {  # name → (type of the file, type of a tensor)
    "f32": (0, 0),
    "f16": (1, 1),
    "q4_0": (2, 2),
    "q4_1": (3, 3),
    "q8_0": (7, 8),
    "q5_0": (8, 6),
    "q5_1": (9, 7),
}
SIZES = (
    "vocab_size max_source_positions d_model encoder_attention_heads encoder_layers max_target_positions d_model "
    "decoder_attention_heads decoder_layers num_mel_bins"
).split()
"""The config's words in the order of the file; the eleventh number is the type."""

_BLOCK = {
    "self_attn_layer_norm": "attn_ln",
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
_BLOCK_BACK = {theirs: ours for ours, theirs in _BLOCK.items()}
_OUTSIDE = {
    "model.encoder.conv1": "encoder.conv1",
    "model.encoder.conv2": "encoder.conv2",
    "model.encoder.embed_positions.weight": "encoder.positional_embedding",
    "model.encoder.layer_norm": "encoder.ln_post",
    "model.decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "model.decoder.embed_positions.weight": "decoder.positional_embedding",
    "model.decoder.layer_norm": "decoder.ln",
}
_OUTSIDE_BACK = {theirs: ours for ours, theirs in _OUTSIDE.items()}


@dataclass(frozen=True)
class WhisperFile:
    """What a file holds: config words, mel filters [M, bins], the tokens' bytes, parameters in float32."""

    config: Mapping[str, int]
    filters: NDArray[np.float32]
    vocabulary: tuple[bytes, ...]
    state: Mapping[str, NDArray[np.float32]]
    types: Mapping[str, str]  # parameter → the type it is stored in
    minima: Mapping[str, NDArray[np.float32]]  # parameter → what each block adds to all of its numbers, [rows, blocks]


def theirs(name: str) -> str:
    """whisper.cpp's name of a Hugging Face parameter; "" for one that the file has not (the tied output)."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    module, _, word = name.rpartition(".")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{word}"
    found = re.fullmatch(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.+)", module)
    return f"{found[1]}.blocks.{found[2]}.{_BLOCK[found[3]]}.{word}" if found and found[3] in _BLOCK else ""


def ours(name: str) -> str:
    """Hugging Face's name of a whisper.cpp tensor; "" for an unknown one."""
    if name in _OUTSIDE_BACK:
        return _OUTSIDE_BACK[name]
    module, _, word = name.rpartition(".")
    if module in _OUTSIDE_BACK:
        return f"{_OUTSIDE_BACK[module]}.{word}"
    found = re.fullmatch(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)", module)
    if found and found[3] in _BLOCK_BACK:
        return f"model.{found[1]}.layers.{found[2]}.{_BLOCK_BACK[found[3]]}.{word}"
    return ""


def write(
    path: Path,
    weights: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
    *,
    filters: NDArray[Any],
    vocabulary: Sequence[bytes] = (),
    kind: str = "f16",
) -> None:
    """Writes the file; matrices and kernels in `kind`, what whisper.cpp wants in float32 (vectors, positions) so."""
    if kind not in TYPES:
        raise UsageError(f"no weights of type `{kind}` in whisper.cpp's file: known: {', '.join(TYPES)}")
    of_file, _ = TYPES[kind]
    with path.open("wb") as file:
        sizes = [int(config[word]) for word in SIZES]
        file.write(struct.pack("<I11i", MAGIC, *sizes, of_file + (QUANTISED if of_file > 1 else 0)))
        file.write(struct.pack("<2i", *filters.shape) + np.ascontiguousarray(filters, "<f4").tobytes())
        file.write(struct.pack("<i", len(vocabulary)))
        for word in vocabulary:
            file.write(struct.pack("<I", len(word)) + word)
        for name, array in weights.items():
            called = theirs(name)
            if called:
                _write_tensor(file, called, np.asarray(array, np.float32), kind)


def _write_tensor(file: Any, name: str, array: NDArray[np.float32], kind: str) -> None:
    if name.endswith(("conv1.bias", "conv2.bias")):
        array = array[:, None]  # added to [channels, time]
    chosen = kind
    if array.ndim < 2 or name.endswith(("conv1.bias", "conv2.bias", "positional_embedding")):
        chosen = "f32"
    elif kind not in ("f32", "f16") and (array.ndim != 2 or array.shape[1] % 32):
        chosen = "f16"
    word = name.encode()
    sizes = array.shape[::-1]
    file.write(struct.pack(f"<3i{len(sizes)}i", len(sizes), len(word), TYPES[chosen][1], *sizes) + word)
    file.write(_encoded(array, chosen))


def _encoded(array: NDArray[np.float32], kind: str) -> bytes:
    if kind in ("f32", "f16"):
        return np.ascontiguousarray(array, "<f4" if kind == "f32" else "<f2").tobytes()
    quants, types = _gguf()
    return bytes(quants.quantize(np.ascontiguousarray(array), types[kind.upper()]).tobytes())


def _gguf() -> tuple[Any, Any]:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise UsageError("quantised weights need the package `gguf`: pip install gguf") from None
    return quants, GGMLQuantizationType


def is_whisper_file(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == struct.pack("<I", MAGIC)
    except OSError:
        return False


class _Cursor:
    def __init__(self, path: Path) -> None:
        try:
            self.data = memoryview(path.read_bytes())
        except OSError as error:
            raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from None
        self.path, self.at = path, 0

    def bad(self, what: str) -> UsageError:
        return UsageError(f"`{self.path}` is no whisper.cpp model: {what} at byte {self.at}; convert it again")

    def bytes(self, n: int) -> memoryview:
        if not 0 <= n <= len(self.data) - self.at:
            raise self.bad(f"it ends inside {n} bytes")
        self.at += n
        return self.data[self.at - n : self.at]

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))


def read(path: Path) -> WhisperFile:
    """The file's content, quantised tensors as the float32 numbers that they stand for."""
    cursor = _Cursor(path)
    if cursor.numbers("I")[0] != MAGIC:
        raise cursor.bad("its first bytes are not its magic")
    sizes = cursor.numbers("11i")
    M, bins = cursor.numbers("2i")
    if not 0 < M <= 1024 or not 0 < bins <= 8192 or min(sizes[:10]) < 1:
        raise cursor.bad(f"impossible sizes {sizes}")
    filters = np.frombuffer(cursor.bytes(4 * M * bins), "<f4").reshape(M, bins)
    vocabulary = tuple(bytes(cursor.bytes(cursor.numbers("I")[0])) for _ in range(cursor.numbers("i")[0]))
    state: dict[str, NDArray[np.float32]] = {}
    types: dict[str, str] = {}
    minima: dict[str, NDArray[np.float32]] = {}
    while cursor.at < len(cursor.data):
        name, array, kind = _read_tensor(cursor, minima)
        known = ours(name)
        if not known:
            raise cursor.bad(f"the unknown tensor `{name[:60]}`")
        state[known], types[known] = array, kind
    config = dict(zip(SIZES, sizes, strict=False))
    state = {name: _shaped(name, array) for name, array in state.items()}
    return WhisperFile(_with_sizes(config, state, cursor), filters, vocabulary, state, types, minima)


def _read_tensor(cursor: _Cursor, minima: dict[str, NDArray[np.float32]]) -> tuple[str, NDArray[np.float32], str]:
    rank, length, kind = cursor.numbers("3i")
    if not 1 <= rank <= 4 or not 0 < length <= 256:
        raise cursor.bad(f"a tensor of rank {rank} whose name has {length} bytes")
    shape = cursor.numbers(f"{rank}i")[::-1]
    name = bytes(cursor.bytes(length)).decode("utf-8", "replace")
    known = {of_tensor: word for word, (_, of_tensor) in TYPES.items()}
    if kind not in known or min(shape) < 1:
        raise cursor.bad(f"`{name[:60]}` of type {kind} and shape {list(shape)}")
    count = math.prod(shape)
    if known[kind] in ("f32", "f16"):
        item = np.dtype("<f4" if known[kind] == "f32" else "<f2")
        raw = np.frombuffer(cursor.bytes(count * item.itemsize), item).reshape(shape)
        return name, raw.astype(np.float32), known[kind]
    of = known[kind].upper()
    block, size = FORMATS[of][0], block_bytes(of)
    if shape[-1] % block:
        raise cursor.bad(f"`{name[:60]}` has rows of {shape[-1]}, which are no blocks of {block}")
    blocks = np.frombuffer(cursor.bytes(count // block * size), np.uint8)
    least = smallest(of, blocks)
    if least is not None:
        minima[ours(name)] = least.reshape(shape[0], -1)
    return name, numbers(of, blocks).reshape(shape), known[kind]


def _shaped(name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
    return array.reshape(-1) if name.endswith(("conv1.bias", "conv2.bias")) else array


def _with_sizes(config: dict[str, int], state: Mapping[str, NDArray[Any]], cursor: _Cursor) -> dict[str, int]:
    try:
        inner = state["model.encoder.layers.0.fc1.weight"].shape[0]
        return {
            **config,
            "encoder_ffn_dim": inner,
            "decoder_ffn_dim": state["model.decoder.layers.0.fc1.weight"].shape[0],
        }
    except KeyError as error:
        raise cursor.bad(f"no tensor {error}") from None
