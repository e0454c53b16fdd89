"""The CTranslate2 reader: a whole model written by an independent writer, and files that nobody should trust."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstbad.errors import UsageError
from firstbad.reference import ct2, random_whisper
from firstbad.reference.weights import build

CODES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
PATH = Path("model.bin")


def text(s: str) -> bytes:
    return struct.pack("<H", len(s) + 1) + s.encode() + b"\0"


def write(
    variables: dict[str, np.ndarray], aliases: dict[str, str], version: int = 6, spec: str = "WhisperSpec"
) -> bytes:
    out = struct.pack("<I", version) + text(spec) + struct.pack("<II", 3, len(variables))
    for name, array in variables.items():
        out += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        out += struct.pack("<BI", CODES[str(array.dtype)], array.nbytes) + array.tobytes()
    out += struct.pack("<I", len(aliases))
    return out + b"".join(text(a) + text(t) for a, t in aliases.items())


@pytest.fixture(scope="module")
def micro() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(Hugging Face parameters, the same as CTranslate2 variables in float16)."""
    config = random_whisper.CONFIGS["micro"].config
    state = {n: a.astype(np.float16).astype(np.float32) for n, a in random_whisper.weights(config, 3).items()}
    D = config["d_model"]
    flags = {"decoder/activation": 3, "decoder/pre_norm": 1, "decoder/alibi": 0, "decoder/scale_embeddings": 0}
    variables = {name: np.array(flag, np.int8) for name, flag in flags.items()}
    variables |= {f"{s}/num_heads": np.array(4, np.int16) for s in ("encoder", "decoder")}
    variables |= {"decoder/embeddings/weight": state["model.decoder.embed_tokens.weight"]}
    for s in ("encoder", "decoder"):
        variables[f"{s}/position_encodings/encodings"] = state[f"model.{s}.embed_positions.weight"]
        norms = {f"{s}/layer_norm": f"model.{s}.layer_norm"}
        stacks: dict[str, list[str]] = {}
        for i in range(config[f"{s}_layers"]):
            here, there = f"{s}/layer_{i}", f"model.{s}.layers.{i}"
            norms |= {f"{here}/self_attention/layer_norm": f"{there}.self_attn_layer_norm"}
            norms |= {f"{here}/ffn/layer_norm": f"{there}.final_layer_norm"}
            own = f"{there}.self_attn."
            stacks |= {f"{here}/self_attention/linear_0": [own + p for p in ("q_proj", "k_proj", "v_proj")]}
            stacks |= {f"{here}/self_attention/linear_1": [own + "out_proj"]}
            stacks |= {f"{here}/ffn/linear_0": [f"{there}.fc1"], f"{here}/ffn/linear_1": [f"{there}.fc2"]}
            if s == "decoder":
                cross = f"{there}.encoder_attn."
                norms |= {f"{here}/attention/layer_norm": f"{there}.encoder_attn_layer_norm"}
                stacks |= {f"{here}/attention/linear_0": [cross + "q_proj"]}
                stacks |= {f"{here}/attention/linear_1": [cross + "k_proj", cross + "v_proj"]}
                stacks |= {f"{here}/attention/linear_2": [cross + "out_proj"]}
        for ours, theirs in norms.items():
            variables[f"{ours}/gamma"], variables[f"{ours}/beta"] = state[f"{theirs}.weight"], state[f"{theirs}.bias"]
        for ours, parts in stacks.items():
            variables[f"{ours}/weight"] = np.concatenate([state[f"{p}.weight"] for p in parts])
            variables[f"{ours}/bias"] = np.concatenate([state.get(f"{p}.bias", np.zeros(D, np.float32)) for p in parts])
    for n in (1, 2):
        for part in ("weight", "bias"):
            variables[f"encoder/conv{n}/{part}"] = state[f"model.encoder.conv{n}.{part}"]
    return state, {n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in variables.items()}


ALIAS = {"decoder/projection/weight": "decoder/embeddings/weight"}


@pytest.mark.parametrize("version", [4, 5, 6])
def test_every_parameter_arrives_bit_for_bit(micro: tuple[dict[str, np.ndarray], ...], version: int) -> None:
    state, variables = micro
    read = ct2.read(memoryview(write(variables, ALIAS, version)), PATH)
    assert read["decoder/projection/weight"] is read["decoder/embeddings/weight"]
    found, config = ct2.to_huggingface(read, PATH)
    assert config == dict(random_whisper.CONFIGS["micro"].config)
    assert found.keys() == state.keys()
    model = build(config, found)
    for name, tensor in model.named_parameters():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), state[name], err_msg=name)
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight


def test_bfloat16_is_widened() -> None:
    array = np.array([[1.5, -2.0]], np.float32)
    raw = write({"x": array}, {}).replace(
        struct.pack("<BI", 0, 8) + array.tobytes(),
        struct.pack("<BI", 5, 4) + (array.view(np.uint32) >> 16).astype("<u2").tobytes(),
    )
    np.testing.assert_array_equal(ct2.read(memoryview(raw), PATH)["x"], array)


def changed(variables: dict[str, np.ndarray], name: str, array: np.ndarray | None) -> dict[str, np.ndarray]:
    return {n: a if n != name else array for n, a in variables.items() if n != name or array is not None}  # type: ignore[misc]


def test_models_that_are_not_whisper(micro: tuple[dict[str, np.ndarray], ...]) -> None:
    _, variables = micro
    linear = "encoder/layer_0/self_attention/linear_0"
    biased = variables[f"{linear}/bias"].copy()
    biased[70] = 1
    for name, array, message in [
        (f"{linear}/weight", None, "has no variable"),
        (f"{linear}/weight", variables[f"{linear}/weight"].astype(np.int8), "is quantised"),
        (f"{linear}/weight", variables[f"{linear}/weight"][:-1], "of shape"),
        (f"{linear}/bias", biased, "has a key bias"),
        ("decoder/activation", np.array(0, np.int8), "not built as Whisper"),
        ("encoder/conv1/weight", np.zeros(3, np.float16), "does not have Whisper's shapes"),
    ]:
        with pytest.raises(UsageError, match=message):
            ct2.to_huggingface(changed(variables, name, array), PATH)
    odd = changed(variables, "encoder/conv2/bias", np.zeros(3, np.float16))
    state, config = ct2.to_huggingface(odd, PATH)
    with pytest.raises(UsageError, match="weights do not fit"):
        build(config, state)


SMALL = write({"a/weight": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(4, np.int16)}, {"b": "a/weight"})


def test_every_cut_is_one_line() -> None:
    ct2.read(memoryview(SMALL), PATH)
    for n in range(len(SMALL)):
        with pytest.raises(UsageError, match="no CTranslate2 Whisper model"):
            ct2.read(memoryview(SMALL[:n]), PATH)


ONE = write({"x": np.zeros(2, np.float32)}, {})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "ends inside"),
        (SMALL + b"\0", "1 bytes more"),
        (write({}, {}, version=3), "version is 3"),
        (write({}, {}, spec="TransformerSpec"), "TransformerSpec"),
        (write({"a": np.zeros(2, np.float32)}, {"b": "c"}), "alias"),
        (struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, 1 << 31), "ends inside"),
        (ONE.replace(b"x\0\1", b"x\0\xff"), "dimensions"),
        (
            ONE.replace(struct.pack("<BI", 0, 8), struct.pack("<BI", 9, 8)),
            "type 9",
        ),
        (
            ONE.replace(struct.pack("<BI", 0, 8), struct.pack("<BI", 0, 9)),
            "9 bytes",
        ),
        (ONE.replace(b"x\0", b"\xff\0"), "not text"),
    ],
)
def test_hostile_files(raw: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ct2.read(memoryview(raw), PATH)


def test_a_name_twice() -> None:
    raw = write({"x": np.zeros(1, np.float32), "y": np.zeros(1, np.float32)}, {}).replace(b"y\0", b"x\0")
    with pytest.raises(UsageError, match="twice"):
        ct2.read(memoryview(raw), PATH)


@settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(where=st.integers(0, len(SMALL) - 1), byte=st.integers(0, 255))
def test_a_spoilt_byte_is_one_line_or_a_model(where: int, byte: int) -> None:
    raw = bytearray(SMALL)
    raw[where] = byte
    try:
        ct2.read(memoryview(bytes(raw)), PATH)
    except UsageError as error:
        assert "\n" not in str(error)
