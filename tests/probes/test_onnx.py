"""ONNX Runtime as a candidate: exported models match at each level of optimisation; what is edited in them is named."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from firstbad.comparison import compare
from firstbad.errors import CompareError, UsageError
from firstbad.probes import dump
from firstbad.reference import causal, whisper
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_candidate, capture_reference
from firstbad.trace import Trace, open_trace

onnx = pytest.importorskip("onnx", reason="pip install 'firstbad[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'firstbad[onnx]'")

OPTIONS = CaptureOptions(max_tokens=3, threads=2)

Diff = Callable[[str, ModuleType, Prepared], Result]
Edit = Callable[[Any], None]


def load_exported() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported", Path(__file__).with_name("exported.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault("exported", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def speech() -> Prepared:
    spec = ModelSpec("whisper", random_weights=3, size="micro", audio_context=16)
    features = np.random.default_rng(5).standard_normal((1, 80, 32)).astype(np.float32)
    return replace(whisper.prepare(spec), inputs={"input_features": features})


@pytest.fixture(scope="module")
def batch() -> Prepared:
    return causal.prepare(ModelSpec("causal", random_weights=1, tokens=((5, 6, 7, 8), (9, 10))))


@pytest.fixture(scope="module")
def folder(speech: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = load_exported().whisper(speech.model_object, tmp_path_factory.mktemp("whisper"))
    return made


@pytest.fixture
def diff(tmp_path: Path) -> Diff:
    def diff(candidate: str, room: ModuleType, prepared: Prepared) -> Result:
        answer = capture_candidate(candidate, prepared, tmp_path / "candidate.h5", OPTIONS)
        capture_reference(room, prepared, tmp_path / "reference.h5", OPTIONS, answer.tokens)
        with open_trace(tmp_path / "reference.h5") as reference, open_trace(tmp_path / "candidate.h5") as other:
            return compare(reference, other, room.executor(prepared), budget=3).result

    return diff


@pytest.mark.parametrize("level", ["off", "basic", "all"])
def test_whisper_matches(diff: Diff, folder: Path, speech: Prepared, level: str) -> None:
    result = diff(f"onnx:{folder},level={level}", whisper, speech)
    assert result.verdict == "match", result.first_bad
    assert result.outputs["tokens_equal"]
    assert result.coverage.weights_compared == 89
    assert result.coverage.weights_differ == ()
    assert {"encode", "prefill", "decode"} <= set(result.coverage.compared)
    assert sum(result.coverage.compared.values()) > 180
    assert not any("when it is looked at" in note for note in result.notes)


def test_a_batch_with_left_padding_matches(diff: Diff, batch: Prepared, tmp_path: Path) -> None:
    load_exported().language(batch.model_object, tmp_path, 2, 4)
    result = diff(f"onnx:{tmp_path}", causal, batch)
    assert result.verdict == "match", result.first_bad
    assert result.outputs["tokens_equal"]


def test_a_padding_mask_that_is_ignored_is_named(diff: Diff, batch: Prepared, tmp_path: Path) -> None:
    load_exported().language(batch.model_object, tmp_path, 2, 4)

    def ignore(model: Any) -> None:
        for node in model.graph.node:
            for i, name in enumerate(node.input):
                if name == "attention_mask":
                    node.input[i] = "all_ones"
        ones = onnx.numpy_helper.from_array(np.ones((2, 4), np.int64), "all_ones")
        model.graph.initializer.append(ones)

    edited(tmp_path / "decoder.onnx", ignore)
    result = diff(f"onnx:{tmp_path}", causal, batch)
    assert result.first_bad is not None
    assert result.first_bad.step == "prefill"
    assert result.first_bad.value.startswith("transformer.h.0.attn.")
    assert result.first_bad.op in ("add", "softmax")


def edited(path: Path, edit: Edit) -> None:
    model = onnx.load(str(path))
    edit(model)
    onnx.save(model, str(path))


def copied(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


@pytest.mark.parametrize("level", ["off", "all"])
def test_an_edited_initializer_is_named(diff: Diff, folder: Path, speech: Prepared, tmp_path: Path, level: str) -> None:
    def scale(model: Any) -> None:
        for weight in model.graph.initializer:
            if weight.name == "encoder.layers.1.fc1.bias":
                array = onnx.numpy_helper.to_array(weight).copy()
                array[5] += 0.5
                weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))

    edited(copied(folder, tmp_path) / "encoder.onnx", scale)
    result = diff(f"onnx:{tmp_path},level={level}", whisper, speech)
    assert result.stage == "weights"
    assert result.coverage.weights_differ == ("model.encoder.layers.1.fc1.bias",)
    assert result.first_bad is not None
    assert result.first_bad.value == "model.encoder.layers.1.fc1"


def test_a_rewired_edge_is_named(diff: Diff, folder: Path, speech: Prepared, tmp_path: Path) -> None:
    def rewire(model: Any) -> None:
        nodes = {node.name: node for node in model.graph.node}
        nodes["/encoder/layers.1/self_attn/v_proj/MatMul"].input[0] = "/encoder/layers.0/Add_1_output_0"

    edited(copied(folder, tmp_path) / "encoder.onnx", rewire)
    result = diff(f"onnx:{tmp_path}", whisper, speech)
    assert result.first_bad is not None
    assert result.first_bad.value == "model.encoder.layers.1.self_attn.v_proj"
    assert result.first_bad.cause.kind == "wrong_input"
    assert "layers.0/Add_1" in result.first_bad.cause.statement


def test_a_changed_attribute_is_named(diff: Diff, folder: Path, speech: Prepared, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        nodes = {node.name: node for node in model.graph.node}
        norm = nodes["/encoder/layers.0/final_layer_norm/LayerNormalization"]
        next(a for a in norm.attribute if a.name == "epsilon").f = 1e-2

    edited(copied(folder, tmp_path) / "encoder.onnx", change)
    result = diff(f"onnx:{tmp_path}", whisper, speech)
    assert result.first_bad is not None
    assert result.first_bad.value == "model.encoder.layers.0.final_layer_norm"
    assert result.first_bad.cause.kind == "wrong_constant"
    assert result.first_bad.source.file.endswith("encoder.onnx")
    assert len(result.faults) == 1


def test_an_encoder_alone_is_compared_by_its_values(diff: Diff, folder: Path, speech: Prepared) -> None:
    result = diff(f"onnx:{folder / 'encoder.onnx'}", whisper, speech)
    assert result.verdict == "match", result.first_bad
    assert set(result.coverage.compared) == {"encode"}


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("nowhere.onnx", "no ONNX model `nowhere.onnx`"),
        ("{folder}/encoder.onnx,level=most", "no optimisation level `most`"),
        ("{folder}/encoder.onnx,provider=abacus", "no provider `abacus`"),
        ("{folder}/encoder.onnx,levle=off", "did you mean `level`"),
        ("{broken}", "cannot load"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    folder: Path, speech: Prepared, tmp_path: Path, argument: str, said: str
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((folder / "encoder.onnx").read_bytes()[:5000])
    candidate = "onnx:" + argument.format(folder=folder, broken=broken)
    with pytest.raises((UsageError, CompareError)) as error:
        capture_candidate(candidate, speech, tmp_path / "t.h5", OPTIONS)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def as_node_dump(trace: Trace, folder: Path, suffix: str) -> None:
    """As ONNX Runtime's debug build does it (`core/framework/debug_node_inputs_outputs_utils.cc`): a TensorProto with
    raw data for each output of a node, in a file of the tensor's name in which all but letters and digits is `_`."""
    folder.mkdir()
    for value in trace.graph.values:
        if value.kind == "value" and trace.stored(value):
            proto = onnx.numpy_helper.from_array(trace.array(value), value.name)
            assert proto.HasField("raw_data")
            file = re.sub("[^0-9A-Za-z]", "_", value.name) + suffix + ".tensorproto"
            (folder / file).write_bytes(proto.SerializeToString())


def as_database(trace: Trace, folder: Path) -> None:
    """The same in the database that it writes instead, if asked to: weights and inputs have no producer."""
    folder.mkdir()
    with sqlite3.connect(folder / "execution-trace-pid7.db") as base:
        columns = "Step int, Name text, Value TensorProto, DeviceType text, TracedProducer NodeArg, TracedConsumers"
        base.execute(f"create table Tensors ({columns} NodeArgList, primary key (Step, Name))")
        for value in trace.graph.values:
            if trace.stored(value):
                data = onnx.numpy_helper.from_array(trace.array(value), value.name).SerializeToString()
                producer = "node:0" if value.kind == "value" else ""
                row = (1, value.name, data, "CPU", producer, "")
                base.execute("insert or ignore into Tensors values (?, ?, ?, ?, ?, ?)", row)
    base.close()


def test_a_database_of_nodes_matches_and_a_broken_one_is_one_line(
    folder: Path, speech: Prepared, tmp_path: Path
) -> None:
    capture_candidate(f"onnx:{folder / 'encoder.onnx'}", speech, tmp_path / "run.h5", OPTIONS)
    with open_trace(tmp_path / "run.h5") as trace:
        as_database(trace, tmp_path / "dump")
    capture_reference(whisper, speech, tmp_path / "reference.h5", OPTIONS, ())
    dump.capture(str(tmp_path / "dump"), speech, tmp_path / "candidate.h5", OPTIONS)
    with open_trace(tmp_path / "reference.h5") as reference, open_trace(tmp_path / "candidate.h5") as candidate:
        result = compare(reference, candidate, whisper.executor(speech), budget=0).result
    assert result.verdict == "match", result.first_bad
    assert result.coverage.compared["encode"] >= 35
    path = next((tmp_path / "dump").iterdir())
    path.write_bytes(b"SQLite format 3, it says")
    with pytest.raises(CompareError, match="cannot read") as error:
        dump.capture(str(tmp_path / "dump"), speech, tmp_path / "candidate.h5", OPTIONS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["", "_default_rank_0"])
def test_a_node_dump_matches_and_a_wrong_node_in_it_is_named(
    folder: Path, speech: Prepared, tmp_path: Path, suffix: str
) -> None:
    """No wheel that was looked at has the debug build: its values, in files made as it makes them."""
    capture_candidate(f"onnx:{folder / 'encoder.onnx'}", speech, tmp_path / "run.h5", OPTIONS)
    with open_trace(tmp_path / "run.h5") as trace:
        as_node_dump(trace, tmp_path / "dump", suffix)
    capture_reference(whisper, speech, tmp_path / "reference.h5", OPTIONS, ())

    def compared() -> Result:
        dump.capture(str(tmp_path / "dump"), speech, tmp_path / "candidate.h5", OPTIONS)
        with open_trace(tmp_path / "reference.h5") as reference, open_trace(tmp_path / "candidate.h5") as candidate:
            return compare(reference, candidate, whisper.executor(speech), budget=0).result

    result = compared()
    assert result.verdict == "match", result.first_bad
    assert result.coverage.compared["encode"] >= 35
    file = tmp_path / f"dump/last_hidden_state{suffix}.tensorproto"
    proto = onnx.TensorProto.FromString(file.read_bytes())
    wrong = onnx.numpy_helper.to_array(proto) * np.float32(1.01)
    file.write_bytes(onnx.numpy_helper.from_array(wrong, proto.name).SerializeToString())
    first = compared().first_bad
    assert first is not None
    assert first.value == "model.encoder.layer_norm"


def test_a_node_with_a_body_is_refused(speech: Prepared, tmp_path: Path) -> None:
    helper = onnx.helper
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "b", [], [info("y", [1, 80, 32])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "b", [], [info("y", [1, 80, 32])])
    nodes = [
        helper.make_node("ReduceSum", ["input_features"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("Identity", ["input_features"], ["x"]),
        helper.make_node("If", ["positive"], ["out"], then_branch=body, else_branch=other),
    ]
    zero = onnx.numpy_helper.from_array(np.zeros((), np.float32), "zero")
    path = saved(tmp_path / "if.onnx", nodes, [zero])
    with pytest.raises(UsageError, match="If node with a body"):
        capture_candidate(f"onnx:{path}", speech, tmp_path / "t.h5", OPTIONS)


def test_a_loop_is_refused(speech: Prepared, tmp_path: Path) -> None:
    helper, boolean = onnx.helper, onnx.TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Neg", ["x"], ["y"])],
        "b",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("on", boolean, []),
            info("x", [1, 80, 32]),
        ],
        [helper.make_tensor_value_info("still", boolean, []), info("y", [1, 80, 32])],
    )
    node = helper.make_node("Loop", ["times", "", "input_features"], ["out"], body=body)
    times = onnx.numpy_helper.from_array(np.array(3, np.int64), "times")
    path = saved(tmp_path / "loop.onnx", [node], [times])
    with pytest.raises(UsageError, match="Loop node with a body"):
        capture_candidate(f"onnx:{path}", speech, tmp_path / "t.h5", OPTIONS)


def test_a_sequence_is_passed_over_and_what_is_made_of_it_is_seen(speech: Prepared, tmp_path: Path) -> None:
    helper = onnx.helper
    nodes = [
        helper.make_node("Neg", ["input_features"], ["x"]),
        helper.make_node("SequenceConstruct", ["x", "input_features"], ["both"]),
        helper.make_node("SequenceAt", ["both", "zero"], ["first"]),
        helper.make_node("Abs", ["first"], ["out"]),
    ]
    zero = onnx.numpy_helper.from_array(np.array(0, np.int64), "zero")
    path = saved(tmp_path / "sequence.onnx", nodes, [zero])
    capture_candidate(f"onnx:{path},level=off", speech, tmp_path / "t.h5", OPTIONS)
    with open_trace(tmp_path / "t.h5") as trace:
        seen = {v.name: trace.array(v) for v in trace.graph.values if v.kind == "value"}
    features = speech.inputs["input_features"]
    np.testing.assert_array_equal(seen["x"], -features)
    np.testing.assert_array_equal(seen["out"], np.abs(features))
    assert "both" not in seen


@pytest.mark.slow
def test_weights_of_more_than_two_gigabytes_beside_the_model(speech: Prepared, tmp_path: Path) -> None:
    """The data file is sparse: a hole of 2.4 GB, then one number."""
    helper, n = onnx.helper, 600_000_001
    with (tmp_path / "big.onnx.data").open("wb") as file:
        file.seek(4 * (n - 1))
        file.write(np.float32(2.5).tobytes())
    big = onnx.TensorProto(name="big", dims=[n], data_type=onnx.TensorProto.FLOAT)
    big.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "big.onnx.data"), ("offset", "0"), ("length", str(4 * n))):
        big.external_data.add(key=key, value=value)
    last = onnx.numpy_helper.from_array(np.array([n - 1], np.int64), "last")
    nodes = [
        helper.make_node("Gather", ["big", "last"], ["factor"]),
        helper.make_node("Mul", ["input_features", "factor"], ["out"]),
    ]
    path = saved(tmp_path / "big.onnx", nodes, [big, last])
    capture_candidate(f"onnx:{path},level=off", speech, tmp_path / "t.h5", OPTIONS)
    with open_trace(tmp_path / "t.h5") as trace:
        made = next(trace.array(v) for v in trace.graph.values if v.name == "out")
    np.testing.assert_array_equal(made, speech.inputs["input_features"] * np.float32(2.5))


def saved(path: Path, nodes: list[Any], weights: list[Any]) -> Path:
    """A model from `input_features` to `out`, both [1, 80, 32]."""
    helper, shape = onnx.helper, [1, 80, 32]
    graph = helper.make_graph(nodes, "g", [info("input_features", shape)], [info("out", shape)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def info(name: str, shape: list[int]) -> Any:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
