"""CTranslate2's Whisper file (`model.bin`, versions 4 to 6) as Hugging Face parameters in float32.

    u32 version, string spec, u32 revision, u32 count, then for each variable: string name, u8 rank, rank x u32 dims,
    u8 type, u32 bytes, data; then u32 aliases and pairs of strings. string = u16 length with its closing zero, bytes.
    All little-endian.

Leaves out quantised files (int8, int16) and every architecture but Whisper: refused in one line.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import UsageError

TYPES: tuple[str, ...] = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
SIZES = (4, 1, 2, 4, 2, 2)
MAX_RANK = 8
GELU = 3  # of CTranslate2's activation codes


class _Cursor:
    def __init__(self, data: memoryview, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def bad(self, what: str) -> UsageError:
        return UsageError(f"`{self.path}` is no CTranslate2 Whisper model: {what} at byte {self.at}; fetch it again")

    def bytes(self, n: int) -> memoryview:
        if n > len(self.data) - self.at:
            raise self.bad(f"it ends inside {n} bytes")
        self.at += n
        return self.data[self.at - n : self.at]

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))

    def number(self, form: str) -> int:
        return self.numbers(form)[0]

    def text(self) -> str:
        text = bytes(self.bytes(self.number("H"))).rstrip(b"\0").decode("utf-8", "replace")
        if "\ufffd" in text or not text.isprintable():
            raise self.bad("a name that is not text")
        return text


def read(data: memoryview, path: Path) -> dict[str, np.ndarray]:
    """The file's variables by name, as they are stored (bfloat16 widened); `path` is for messages."""
    cursor = _Cursor(data, path)
    version = cursor.number("I")
    if not 4 <= version <= 6:
        raise cursor.bad(f"its version is {version} (4 to 6 are known)")
    spec = cursor.text()
    if spec != "WhisperSpec":
        raise cursor.bad(f"its model is `{spec[:40]}`, not WhisperSpec")
    cursor.number("I")  # the spec's revision
    variables: dict[str, np.ndarray] = {}
    for _ in range(cursor.number("I")):
        name = cursor.text()
        if name in variables:
            raise cursor.bad(f"`{name}` twice")
        variables[name] = _variable(cursor, name)
    for _ in range(cursor.number("I")):
        alias, target = cursor.text(), cursor.text()
        if target not in variables or alias in variables:
            raise cursor.bad(f"the alias `{alias}` of `{target}`")
        variables[alias] = variables[target]
    if cursor.at != len(data):
        raise cursor.bad(f"{len(data) - cursor.at} bytes more than it says")
    return variables


def _variable(cursor: _Cursor, name: str) -> np.ndarray:
    rank = cursor.number("B")
    if rank > MAX_RANK:
        raise cursor.bad(f"`{name}` has {rank} dimensions")
    dims = cursor.numbers(f"{rank}I")
    kind, size = cursor.numbers("BI")
    if kind >= len(TYPES):
        raise cursor.bad(f"`{name}` has the unknown type {kind}")
    if size != math.prod(dims) * SIZES[kind]:
        raise cursor.bad(f"`{name}` of {list(dims)} {TYPES[kind]} has {size} bytes")
    raw = cursor.bytes(size)
    if TYPES[kind] == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(dims)
    return np.frombuffer(raw, np.dtype(TYPES[kind]).newbyteorder("<")).reshape(dims)


def to_huggingface(variables: Mapping[str, np.ndarray], path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(parameters in float32, arguments of WhisperConfig).

    Q, K and V are stacked by rows; Hugging Face's K has no bias, so the stored one must be zero.
    """

    def get(name: str) -> np.ndarray:
        if name not in variables:
            raise UsageError(f"`{path}` has no variable `{name}`: it is no Whisper model, or not a whole one")
        stored = variables[name]
        if stored.ndim and stored.dtype not in (np.float16, np.float32):
            raise UsageError(
                f"`{path}` is quantised (`{name}` is {stored.dtype}): give a float16 or float32 conversion"
            )
        return stored.astype(np.float32) if stored.ndim else stored

    def count(stack: str) -> int:
        return len({m[1] for n in variables if (m := re.match(rf"{stack}/layer_(\d+)/", n))})

    if int(get("decoder/activation")) != GELU or not int(get("decoder/pre_norm")):
        raise UsageError(f"`{path}` is not built as Whisper is: its activation or its norms differ")
    state: dict[str, np.ndarray] = {}
    for n in (1, 2):
        for part in ("weight", "bias"):
            state[f"model.encoder.conv{n}.{part}"] = get(f"encoder/conv{n}/{part}")
    state["model.encoder.embed_positions.weight"] = get("encoder/position_encodings/encodings")
    state["model.decoder.embed_positions.weight"] = get("decoder/position_encodings/encodings")
    state["model.decoder.embed_tokens.weight"] = get("decoder/embeddings/weight")
    for stack in ("encoder", "decoder"):
        state.update(_norm(get, f"{stack}/layer_norm", f"model.{stack}.layer_norm"))
        for i in range(count(stack)):
            state.update(_layer(get, f"{stack}/layer_{i}", f"model.{stack}.layers.{i}", path))
    return state, _config(state, int(get("encoder/num_heads")), int(get("decoder/num_heads")), count, path)


def _norm(get: Any, source: str, target: str) -> dict[str, np.ndarray]:
    return {f"{target}.weight": get(f"{source}/gamma"), f"{target}.bias": get(f"{source}/beta")}


def _layer(get: Any, source: str, target: str, path: Path) -> dict[str, np.ndarray]:
    state: dict[str, np.ndarray] = {}

    def linear(at: str, names: tuple[str, ...]) -> Iterator[tuple[str, np.ndarray]]:
        weight, bias = get(f"{source}/{at}/weight"), get(f"{source}/{at}/bias")
        if weight.ndim != 2 or weight.shape[0] % len(names) or bias.shape != weight.shape[:1]:
            raise UsageError(f"`{path}` has `{source}/{at}` of shape {list(weight.shape)}: it is no Whisper model")
        for name, w, b in zip(names, np.split(weight, len(names)), np.split(bias, len(names)), strict=True):
            yield f"{target}.{name}.weight", w
            if not name.endswith("k_proj"):
                yield f"{target}.{name}.bias", b
            elif b.any():
                raise UsageError(f"`{path}` has a key bias in `{source}/{at}`, and Whisper has none")

    state.update(_norm(get, f"{source}/self_attention/layer_norm", f"{target}.self_attn_layer_norm"))
    state.update(linear("self_attention/linear_0", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")))
    state.update(linear("self_attention/linear_1", ("self_attn.out_proj",)))
    if source.startswith("decoder"):
        state.update(_norm(get, f"{source}/attention/layer_norm", f"{target}.encoder_attn_layer_norm"))
        state.update(linear("attention/linear_0", ("encoder_attn.q_proj",)))
        state.update(linear("attention/linear_1", ("encoder_attn.k_proj", "encoder_attn.v_proj")))
        state.update(linear("attention/linear_2", ("encoder_attn.out_proj",)))
    state.update(_norm(get, f"{source}/ffn/layer_norm", f"{target}.final_layer_norm"))
    state.update(linear("ffn/linear_0", ("fc1",)))
    state.update(linear("ffn/linear_1", ("fc2",)))
    return state


def _config(state: Mapping[str, np.ndarray], heads: int, decoder_heads: int, count: Any, path: Path) -> dict[str, Any]:
    try:
        V, D = state["model.decoder.embed_tokens.weight"].shape
        _, M, _ = state["model.encoder.conv1.weight"].shape
        return {
            "vocab_size": V,
            "d_model": D,
            "num_mel_bins": M,
            "encoder_layers": count("encoder"),
            "decoder_layers": count("decoder"),
            "encoder_attention_heads": heads,
            "decoder_attention_heads": decoder_heads,
            "encoder_ffn_dim": state["model.encoder.layers.0.fc1.weight"].shape[0],
            "decoder_ffn_dim": state["model.decoder.layers.0.fc1.weight"].shape[0],
            "max_source_positions": state["model.encoder.embed_positions.weight"].shape[0],
            "max_target_positions": state["model.decoder.embed_positions.weight"].shape[0],
        }
    except (KeyError, ValueError):
        raise UsageError(f"`{path}` does not have Whisper's shapes: it is another model, or not a whole one") from None
