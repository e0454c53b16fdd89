"""Blocks of quantised formats against ggml's own C code, and converted weights told apart."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from firstbad import cli, whisper_file
from firstbad.converted import Held, checked
from firstbad.errors import UsageError
from firstbad.gguf_blocks import FORMATS, block_bytes, differing_blocks, draw, field_at, numbers
from firstbad.reference import random_whisper

needs_gguf = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="needs gguf: pip install 'firstbad[ggml]'"
)


def ggml() -> ctypes.CDLL:
    spec = importlib.util.find_spec("pywhispercpp")
    if spec is None or spec.origin is None:
        pytest.skip("needs ggml's own decoder: pip install 'firstbad[ggml]'")
    found = list((Path(spec.origin).parents[1] / "pywhispercpp.libs").glob("libggml-base*"))
    if not found:
        pytest.skip("the wheel of pywhispercpp has no libggml-base beside it")
    return ctypes.CDLL(str(found[0]))


def symbol(name: str) -> str:
    return f"dequantize_row_{name.lower().replace('_k', '_K')}"


@needs_gguf
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_against_ggmls_own_decoder(name: str) -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    size = FORMATS[name][0]
    assert GGML_QUANT_SIZES[GGMLQuantizationType[name]] == (size, block_bytes(name))
    decode = getattr(ggml(), symbol(name))
    decode.argtypes, decode.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    raw = np.random.default_rng(1).integers(0, 256, (60, block_bytes(name)), dtype=np.uint8)
    raw[0], raw[1] = 0, 255  # edges: nothing, and scales that are no numbers
    theirs = np.zeros((60, size), np.float32)
    decode(raw.ctypes.data, theirs.ctypes.data, theirs.size)
    np.testing.assert_array_equal(numbers(name, raw).reshape(theirs.shape), theirs)


@needs_gguf
@pytest.mark.parametrize("name", FORMATS)
def test_every_fields_corruption_is_named(name: str) -> None:
    raw = np.random.default_rng(2).integers(0, 64, (3, block_bytes(name)), dtype=np.uint8)
    start = 0
    for field in FORMATS[name][1]:
        for byte in {start, start + field.bytes - 1}:
            for bit in range(8):
                other = raw.copy()
                other[1, byte] ^= 1 << bit
                (found,) = differing_blocks(name, raw, other)
                assert (found.block, found.fields) == (1, (field.name,))
        assert field_at(name, start)[1] == 0
        start += field.bytes
    assert len(list(draw(name, raw[0]))) == len(FORMATS[name][1]) + 1


def test_unknown_formats_and_bytes_are_one_line() -> None:
    with pytest.raises(UsageError, match="did you mean `Q4_0`"):
        block_bytes("Q40")
    with pytest.raises(UsageError, match="no byte 99"):
        field_at("Q4_0", 99)


def test_what_was_done_to_a_tensor() -> None:
    random = np.random.default_rng(3)
    a = random.standard_normal((64, 32)).astype(np.float32)
    other = random.standard_normal((64, 32)).astype(np.float32)
    rotary = a.reshape(2, 2, 16, 32).swapaxes(1, 2).reshape(64, 32)
    changed = {
        "equal": a,
        "rounded to float16": a.astype(np.float16).astype(np.float32),
        "transposed": np.ascontiguousarray(a.T),
        "rows permuted for rotary positions of adjacent pairs, 2 heads": rotary,
        "rows moved by 1": np.roll(a, 1, 0),
        "all zeros": a * 0,
        "scaled by 1.5": a * np.float32(1.5),
        "holds the numbers of other": other,
    }
    for what, array in changed.items():
        found = list(checked({"a": Held(a, "F32"), "other": Held(other, "F32")}, {"a": Held(array, "F32")}))
        assert (found[0].name, found[0].what) == ("a", what)
        assert found[0].ok == (what in ("equal", "rounded to float16"))
        assert found[1].what == "missing"


@needs_gguf
def test_the_verb_on_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = dict(random_whisper.CONFIGS["micro"].config)
    weights = dict(random_whisper.weights(config, 1))
    filters = np.ones((80, 201), np.float32)
    paths = {kind: tmp_path / f"{kind}.bin" for kind in ("f32", "q8_0", "spoilt")}
    for kind in ("f32", "q8_0"):
        whisper_file.write(paths[kind], weights, config, filters=filters, kind=kind)
    name = "model.encoder.layers.1.fc1.weight"
    whisper_file.write(paths["spoilt"], {**weights, name: weights[name] * 2}, config, filters=filters, kind="f32")
    assert cli.main(["weights", str(paths["f32"]), str(paths["q8_0"])]) == 0
    assert "0 wrong" in capsys.readouterr().out
    assert cli.main(["weights", str(paths["f32"]), str(paths["spoilt"])]) == 1
    out = capsys.readouterr().out
    assert f"✗ {name}" in out
    assert "scaled by 2" in out
