"""Roundings inside an op, tables and float16 sums: against other implementations and by hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from firstbad import flash, gelu_table
from firstbad.arithmetic import Rounding, q8_0, q8_k
from firstbad.errors import UsageError
from firstbad.profile import load_profile


def test_a_rounding_happens_in_the_engines_own_scale() -> None:
    x = np.array([1.0, 1 / 3, 1000.03], np.float64) * 0.125
    given = Rounding("float16", own=0.125, factor=64**-0.25).apply(x)
    engine = ((x / 0.125).astype(np.float32) * np.float32(64**-0.25)).astype(np.float16)
    assert np.array_equal(given, engine.astype(np.float64) / float(np.float32(64**-0.25)) * 0.125)
    assert given.dtype == np.float64


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs gguf: pip install 'firstbad[ggml]'")
def test_q8_0_is_ggufs_but_for_ties() -> None:
    from gguf import GGMLQuantizationType, quants

    x = np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)
    theirs = quants.dequantize(quants.quantize(x, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    assert np.abs(q8_0(x) - theirs).max() <= np.abs(x).max() / 127 * 1.001
    assert (q8_0(x) == theirs).mean() > 0.99


def test_blocks_of_zeros_stay_zeros_and_odd_rows_are_left() -> None:
    assert not q8_0(np.zeros((2, 32), np.float32)).any()
    assert not q8_k(np.zeros((1, 256), np.float32)).any()
    odd = np.ones((2, 33), np.float32)
    assert np.array_equal(q8_0(odd), odd)
    x = np.random.default_rng(2).standard_normal((3, 256)).astype(np.float32)
    assert np.abs(q8_k(x) - x).max() <= np.abs(x).max() / 127


def test_gelu_of_the_table_is_the_tanh_form_to_half_a_step() -> None:
    x = np.linspace(-12, 12, 48001).astype(np.float32)
    exact = np.where(np.abs(x) < 10, x.astype(np.float16).astype(np.float64), x)
    exact = 0.5 * exact * (1 + np.tanh(np.sqrt(2 / np.pi) * exact * (1 + 0.044715 * exact**2)))
    for contracted in (True, False):
        own = gelu_table.gelu(x, contracted)
        assert np.abs(own - exact).max() <= 2.0**-9 * 10
        assert (own[x <= -10] == 0).all()
        assert np.array_equal(own[x >= 10], x[x >= 10])
    every = np.arange(0xBF00, 0xC600, dtype=np.uint16).view(np.float16).astype(np.float32)  # -1.75 to -6
    assert gelu_table.nearest(every, gelu_table.gelu(every, True))
    assert not gelu_table.nearest(every, gelu_table.gelu(every, False))


def test_fused_attention_is_attention_to_float16() -> None:
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal((2, n, 64)).astype(np.float16).astype(np.float32) for n in (3, 40, 40))
    scores = np.einsum("htd,hnd->htn", q.astype(np.float64), k) * 0.125
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    exact = shares @ v
    own = flash.attention(q, k, v, 0.125)
    off = np.linalg.norm(own - exact) / np.linalg.norm(exact)
    assert 1e-5 < off < 2e-3
    noise = np.linalg.norm(flash.weighted_sum(shares, v) - exact) / np.linalg.norm(exact)
    assert 0.3 < off / noise < 3
    mask = np.zeros((3, 40), np.float32)
    mask[:, 20:] = -np.inf
    masked, cut = flash.attention(q, k, v, 0.125, mask), flash.attention(q, k[:, :20], v[:, :20], 0.125)
    assert np.array_equal(masked, cut)


def test_profiles(tmp_path: Path) -> None:
    assert load_profile("ggml").declared[0].op == "aten.gelu"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"engine": "mine", "declared": [{"computes": "gelu (tanh)"}]}), "utf-8")
    assert load_profile(str(path)).engine == "mine"
    path.write_text(json.dumps({"declared": [{"op": "aten.softmax", "computes": "gelu (tanh)"}]}), "utf-8")
    with pytest.raises(UsageError, match="cannot be modelled"):
        load_profile(str(path))
    with pytest.raises(UsageError, match="did you mean `ggml`"):
        load_profile("gglm")
    path.write_text("[", "utf-8")
    with pytest.raises(UsageError, match="no JSON"):
        load_profile(str(path))


def test_a_factor_that_is_split_in_two_is_the_engines_own_and_not_the_models() -> None:
    """whisper.cpp's keys: times the fourth root of 1/64 before they are rounded, and the scores again after."""
    random = np.random.default_rng(5)
    q, k = (random.standard_normal((9, 64)).astype(np.float32) for _ in range(2))
    root, own = np.float32(64**-0.25), 0.125
    narrow = [x.astype(np.float16).astype(np.float64) for x in (q, k * root)]
    theirs = narrow[0] @ narrow[1].T * float(root)
    of_query, of_key = Rounding("float16", own), Rounding("float16", 1.0, float(root), float(root) / own)
    made = of_query.apply(q.astype(np.float64) * own) @ of_key.apply(k.astype(np.float64)).T
    assert np.allclose(made, theirs, rtol=1e-13, atol=0)
    undone = (
        of_query.apply(q.astype(np.float64) * own) @ Rounding("float16", 1.0, float(root)).apply(k.astype(np.float64)).T
    )
    assert np.allclose(undone / theirs - 1, own / float(root) ** 2 - 1, rtol=1e-6)
    assert abs(own / float(root) ** 2 - 1) > 2.0**-25
