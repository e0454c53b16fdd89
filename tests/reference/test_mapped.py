"""Weights that stay in their files: the model that transformers loads, in any layout of files; forged ones refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from firstbad.errors import UsageError
from firstbad.reference import mapped
from firstbad.reference.checkpoint import load

SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def made(kind: str) -> Any:
    torch.manual_seed(3)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=48, tie_word_embeddings=False))
    if kind == "bert":
        return BertForMaskedLM(BertConfig(**SIZES, intermediate_size=48))
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4))  # the head is the table


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_model_that_transformers_loads(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    model = made(kind).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size="20KB" if kind == "llama" else "1GB")
    assert (tmp_path / "model.safetensors.index.json").is_file() == (kind == "llama")
    ours = load(str(tmp_path), lambda _: type(model), offload=True).model
    theirs = load(str(tmp_path), lambda _: type(model)).model
    left, right = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (ours, theirs))
    assert list(left) == list(right)
    for name, t in left.items():
        assert t.dtype == right[name].dtype and torch.equal(t, right[name]), name
        assert not t.requires_grad
    ids = torch.tensor([[1, 7, 3]])
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_nothing_is_copied(tmp_path: Path) -> None:
    made("llama").save_pretrained(tmp_path)
    held = mapped.arrays_of(tmp_path)
    array = held["model.layers.0.mlp.up_proj.weight"]
    assert not array.flags.writeable and not array.flags.owndata
    maps = Path("/proc/self/maps")
    if maps.is_file():
        at = array.__array_interface__["data"][0]
        lines = [line.split() for line in maps.read_text().splitlines()]
        (line,) = [w for w in lines if int(w[0].split("-")[0], 16) <= at < int(w[0].split("-")[1], 16)]
        assert line[1] == "r--s" and line[-1].endswith("model.safetensors")


def test_a_weight_that_is_missing_or_of_another_shape(tmp_path: Path) -> None:
    for name, change, message in (
        ("gone", lambda s: s.pop("model.norm.weight"), "no weight `model.norm.weight`"),
        ("long", lambda s: s.update({"model.norm.weight": torch.ones(33)}), "`model.norm.weight` is \\[33\\]"),
    ):
        model = made("llama")
        state = model.state_dict()
        change(state)
        model.save_pretrained(tmp_path / name, state_dict=state)
        with pytest.raises(UsageError, match=message):
            load(str(tmp_path / name), lambda _: LlamaForCausalLM, offload=True)


def test_other_files_than_safetensors(tmp_path: Path) -> None:
    made("llama").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"no model\.safetensors"):
        load(str(tmp_path), lambda _: LlamaForCausalLM, offload=True)


@pytest.mark.parametrize(
    "header",
    [
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]}},
        {"x": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
        {"x": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [1 << 62, 8], "data_offsets": [0, 0]}},
        {"x": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [4]}},
        {"x": 7},
        [1],
        "no JSON {",
    ],
)
def test_a_forged_header(tmp_path: Path, header: Any) -> None:
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(UsageError):
        mapped.arrays_of(tmp_path)


@pytest.mark.parametrize("data", [b"", b"1234", (1 << 40).to_bytes(8, "little") + b"{}", (3).to_bytes(8, "little")])
def test_a_cut_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UsageError):
        mapped.arrays_of(tmp_path)


def test_too_little_room_for_the_widened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    usage = mapped.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UsageError, match="too little room"):
        mapped.arrays_of(tmp_path)


def test_integers_and_booleans_stay(tmp_path: Path) -> None:
    text = json.dumps({"i": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}}).encode()
    text += b" " * (-len(text) % 8)
    data = np.array([3, -1]).tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    np.testing.assert_array_equal(mapped.arrays_of(tmp_path)["i"], [3, -1])
