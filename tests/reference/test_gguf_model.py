"""Language models from GGUF files: the same numbers, the same settings, the same logits, and spoilt files."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firstbad.errors import UsageError
from firstbad.gguf_file import read
from firstbad.reference import causal
from firstbad.run import ModelSpec
from firstbad.session import room_of
from tests import gguf_made

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="needs gguf: pip install 'firstbad[ggml]'"
)


def model_of(kind: str, **more: Any) -> Any:
    import transformers

    sizes = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64, "head_dim": 16}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **more})
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)  # transformers makes them zeros
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 54321.0}, "rms_norm_eps": 3e-5}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 24}),
    ],
)
def test_a_file_is_the_model_that_it_was_made_of(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    model = model_of(kind, **more)
    gguf_made.write(tmp_path / "m.gguf", model, kind)
    assert room_of(str(tmp_path / "m.gguf")).__name__.endswith("causal")
    ids = (5, 6, 7, 8)
    made = causal.prepare(ModelSpec(str(tmp_path / "m.gguf"), tokens=(ids,)))
    assert made.prompt == ids
    for name, parameter in model.named_parameters():
        assert np.array_equal(made.weights[name], parameter.numpy()), name
    with torch.inference_mode():
        ours = made.model_object(torch.tensor([ids])).logits
        assert torch.equal(ours, model(torch.tensor([ids])).logits)


def test_quantised_rows_are_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, quants

    model = model_of("llama")
    gguf_made.write(tmp_path / "m.gguf", model, "llama", quantised="Q4_1")
    made = causal.prepare(ModelSpec(str(tmp_path / "m.gguf")))
    kind = GGMLQuantizationType.Q4_1
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        own = dict(model.named_parameters())[name].numpy()
        assert np.array_equal(made.weights[name], quants.dequantize(quants.quantize(own, kind), kind))
        assert 0 < np.abs(made.weights[name] - own).max() < np.abs(own).max() / 10


def test_text_is_cut_as_the_file_says(tmp_path: Path) -> None:
    words = ["<|end|>", *"abcdefghij", "Ġ", "ab", "Ġc", "1", "2"]
    gguf_made.write(tmp_path / "m.gguf", model_of("llama", vocab_size=len(words)), "llama", vocabulary=words)
    said = dict(read(tmp_path / "m.gguf").metadata)
    from firstbad.reference.gguf_model import tokenizer

    said |= {"tokenizer.ggml.merges": ["a b", "Ġ c"], "tokenizer.ggml.token_type": [3] + [1] * (len(words) - 1)}
    made = tokenizer(said)
    assert made.encode("ab c12").tokens == ["ab", "Ġc", "1", "2"]
    assert made.encode("<|end|>ba").ids == [0, 2, 1]
    assert made.decode([12, 13]) == "ab c"
    assert tokenizer({**said, "tokenizer.ggml.pre": "of-another-kind"}) is None


def spoilt(path: Path, at: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


def test_spoilt_files_are_one_line(tmp_path: Path) -> None:
    good = tmp_path / "good.gguf"
    gguf_made.write(good, model_of("llama"), "llama")
    data = good.read_bytes()
    key = data.index(b"llama.rope.freq_base") + len(b"llama.rope.freq_base") + 4
    spoils = {
        "cut in the head": data[:40],
        "cut in the tensors": data[:-4096],
        "another version": data[:4] + struct.pack("<I", 9) + data[8:],
        "a string without an end": data[:24] + struct.pack("<Q", 1 << 62) + data[32:],
        "a million million tensors": data[:8] + struct.pack("<Q", 1 << 40) + data[16:],
        "another architecture": data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gamma", 1),
    }
    for what, bad in spoils.items():
        (tmp_path / "bad.gguf").write_bytes(bad)
        with pytest.raises(UsageError) as error:
            causal.prepare(ModelSpec(str(tmp_path / "bad.gguf"), tokens=((1,),)))
        assert "\n" not in str(error.value), what
    spoilt(good, key, struct.pack("<f", 777.0))
    made = causal.prepare(ModelSpec(str(good)))
    assert made.model_object.config.rope_parameters["rope_theta"] == 777.0
