"""whisper.cpp's model file: what is written is read, and a spoilt file is one line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from firstbad import whisper_file
from firstbad.errors import UsageError
from firstbad.reference import random_whisper

CONFIG = dict(random_whisper.CONFIGS["micro"].config)
FILTERS = np.ones((80, 201), np.float32)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return dict(random_whisper.weights(CONFIG, 1))


def test_names_go_both_ways(weights: dict[str, np.ndarray]) -> None:
    named = {name: whisper_file.theirs(name) for name in weights}
    assert named["model.decoder.layers.1.encoder_attn.k_proj.weight"] == "decoder.blocks.1.cross_attn.key.weight"
    assert named["model.encoder.layers.0.fc2.bias"] == "encoder.blocks.0.mlp.2.bias"
    assert all(whisper_file.ours(theirs) == name for name, theirs in named.items() if theirs)
    assert whisper_file.theirs("proj_out.weight") == whisper_file.ours("nobody.weight") == ""


@pytest.mark.parametrize(("kind", "most"), [("f32", 0.0), ("f16", 2.0**-11)])
def test_round_trip(tmp_path: Path, weights: dict[str, np.ndarray], kind: str, most: float) -> None:
    path = tmp_path / "model.bin"
    words = [b"a", b"\xff", b""]
    whisper_file.write(path, weights, CONFIG, filters=FILTERS, vocabulary=words, kind=kind)
    held = whisper_file.read(path)
    assert held.vocabulary == tuple(words)
    assert {k: held.config[k] for k in held.config} == {k: CONFIG[k] for k in held.config}
    for name, array in held.state.items():
        assert array.shape == weights[name].shape
        assert np.abs(array - weights[name]).max() <= most * np.abs(weights[name]).max()
    assert set(weights) - set(held.state) <= {"proj_out.weight"}
    assert held.types["model.encoder.layer_norm.weight"] == "f32"


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs gguf: pip install 'firstbad[ggml]'")
@pytest.mark.parametrize(("kind", "most"), [("q8_0", 1 / 127), ("q5_0", 1 / 8)])
def test_quantised_to_within_its_step(tmp_path: Path, weights: dict[str, np.ndarray], kind: str, most: float) -> None:
    path = tmp_path / "model.bin"
    whisper_file.write(path, weights, CONFIG, filters=FILTERS, kind=kind)
    held = whisper_file.read(path)
    name = "model.encoder.layers.0.fc1.weight"
    blocks = weights[name].reshape(-1, 32)
    off = np.abs(held.state[name].reshape(-1, 32) - blocks).max(1)
    assert held.types[name] == kind
    assert (off <= most * np.abs(blocks).max(1)).all()
    assert off.max() > 0


def test_spoilt_files(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    path = tmp_path / "model.bin"
    whisper_file.write(path, weights, CONFIG, filters=FILTERS)
    whole = path.read_bytes()
    for cut in (2, 40, 64_000, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(UsageError, match=r"no whisper\.cpp model"):
            whisper_file.read(path)
    path.write_bytes(b"GGUF" + whole[4:])
    assert not whisper_file.is_whisper_file(path)
    with pytest.raises(UsageError, match="magic"):
        whisper_file.read(path)
    with pytest.raises(UsageError, match="no weights of type"):
        whisper_file.write(path, weights, CONFIG, filters=FILTERS, kind="q9")
