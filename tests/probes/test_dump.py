"""Dumps as candidates: each importer reads what its tool writes, and says in one line what is wrong with a cut one."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from firstbad.comparison import compare
from firstbad.errors import CompareError, FirstbadError, UsageError
from firstbad.material import open_material
from firstbad.probes import c, dump
from firstbad.reference import whisper
from firstbad.result import Result, save
from firstbad.run import CaptureOptions, Prepared
from firstbad.session import capture_reference
from firstbad.trace import Trace, open_trace

OPTIONS = CaptureOptions(max_tokens=1, threads=2)
Values = dict[str, np.ndarray]
Writer = Callable[[Values, Path, Prepared], None]


@pytest.fixture(scope="module")
def traces(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Values]:
    """The reference, and the encoder's values as the C engine computes them."""
    folder = tmp_path_factory.mktemp("dump")
    own = c.capture("", prepared, folder / "c.h5", OPTIONS)
    capture_reference(whisper, prepared, folder / "r.h5", OPTIONS, own.tokens)
    trace = open_trace(folder / "c.h5")
    encoder = [v for v in trace.graph.values if v.step == "encode" and v.kind == "value"]
    return open_trace(folder / "r.h5"), {v.name: trace.array(v) for v in encoder}


def as_npy(values: Values, folder: Path, _prepared: Prepared) -> None:
    (folder / "encode").mkdir()
    for name, array in values.items():
        np.save(folder / "encode" / f"{name}.npy", array)


def as_npz(values: Values, folder: Path, _prepared: Prepared) -> None:
    np.savez(folder / "all.npz", **{name.replace("model.", ""): array for name, array in values.items()})  # type: ignore[arg-type]  # names are arguments


def as_safetensors(values: Values, folder: Path, _prepared: Prepared) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in values.items()}, folder / "run.safetensors")


def as_torch(values: Values, folder: Path, _prepared: Prepared) -> None:
    torch.save({"encoder": {name: torch.tensor(array) for name, array in values.items()}}, folder / "run.pt")


def as_raw(values: Values, folder: Path, _prepared: Prepared) -> None:
    rows, offset = [], 0
    with (folder / "all.bin").open("wb") as file:
        for name, array in values.items():
            file.write(np.ascontiguousarray(array).tobytes())
            rows.append({"name": name, "file": "all.bin", "dtype": "float32", "shape": array.shape, "offset": offset})
            offset += array.nbytes
    (folder / "index.json").write_text(json.dumps({"values": rows}))


def as_onnx(values: Values, folder: Path, _prepared: Prepared) -> None:
    onnx = pytest.importorskip("onnx")
    for i, (name, array) in enumerate(values.items()):
        onnx.save_tensor(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name), folder / f"node_{i}.pb")


def as_polygraphy(values: Values, folder: Path, _prepared: Prepared) -> None:
    comparator = pytest.importorskip("polygraphy.comparator")
    from polygraphy.comparator.struct import IterationResult

    results = comparator.RunResults()
    results.append(("onnxrt", [IterationResult(outputs=dict(values), runtime=0.1, runner_name="onnxrt")]))
    results.save(str(folder / "results.json"))


def as_transformers(_values: Values, folder: Path, prepared: Prepared) -> None:
    import copy

    from transformers.model_debugging_utils import model_addition_debugger_context

    model = copy.deepcopy(prepared.model_object)
    try:
        with model_addition_debugger_context(model, debug_path=str(folder), use_repr=False, do_prune_layers=False):
            features = torch.from_numpy(prepared.inputs["input_features"])
            model(input_features=features, decoder_input_ids=torch.tensor([list(prepared.prompt)]), use_cache=False)
    finally:
        torch.set_printoptions(profile="default")  # the debugger leaves its own behind


def as_cke(values: Values, folder: Path, _prepared: Prepared) -> None:
    """CKDMP, as ck_dump_tensor writes it: flat, the layer and a short name; head-major already reordered."""
    with (folder / "dump.bin").open("wb") as file:
        for name, array in values.items():
            parts = name.split(".")
            layer = int(parts[3]) if "layers" in name else -1
            flat = (array.transpose(0, 2, 1, 3) if array.ndim == 4 and "matmul_1" in name else array).reshape(-1)
            short = "_".join(parts[4:] or parts[1:])[:31].encode()
            header = struct.pack("<8sIi32sII4qIi32x", b"CKDMP", 1, layer, short, 0, 1, flat.size, 0, 0, 0, flat.size, 0)
            file.write(header + np.ascontiguousarray(flat).tobytes())


def as_cke_manifest(values: Values, folder: Path, _prepared: Prepared) -> None:
    rows = []
    for i, (name, array) in enumerate(values.items()):
        axes = (
            ["batch", "head", "token", "channel"] if array.ndim == 4 else ["batch", "token", "channel"][-array.ndim :]
        )
        stored = array.transpose(0, 2, 1, 3) if array.ndim == 4 else array
        np.ascontiguousarray(stored).tofile(folder / f"{i}.f32")
        rows.append(
            {
                "checkpoint": f"audio.{name}",
                "path": f"{i}.f32",
                "format": "raw",
                "dtype": "fp32",
                "shape": list(stored.shape),
                "axes": ["batch", "token", "head", "channel"] if array.ndim == 4 else axes,
                "canonical_axes": axes,
            }
        )
    document = {"schema": "cke.v8.parity_tensor_manifest", "schema_version": 1, "backend": "cke", "tensors": rows}
    (folder / "manifest.json").write_text(json.dumps(document))


WRITERS: dict[str, Writer] = {
    "npy": as_npy,
    "npz": as_npz,
    "safetensors": as_safetensors,
    "torch": as_torch,
    "raw": as_raw,
    "onnx": as_onnx,
    "polygraphy": as_polygraphy,
    "transformers": as_transformers,
    "cke": as_cke,
    "cke manifest": as_cke_manifest,
}


def compared(folder: Path, prepared: Prepared, reference: Trace, trace: Path) -> Result:
    dump.capture(str(folder), prepared, trace, OPTIONS)
    with open_trace(trace) as candidate:
        return compare(reference, candidate, whisper.executor(prepared), budget=1).result


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the tools themselves
@pytest.mark.parametrize("kind", WRITERS)
def test_what_a_tool_writes_matches(
    kind: str, traces: tuple[Trace, Values], prepared: Prepared, tmp_path: Path
) -> None:
    reference, values = traces
    folder = tmp_path / "dump"
    folder.mkdir()
    WRITERS[kind](values, folder, prepared)
    result = compared(folder, prepared, reference, tmp_path / "c.h5")
    assert result.verdict == "match", result.first_bad
    assert sum(result.coverage.compared.values()) >= (25 if kind == "transformers" else 0.95 * len(values))


def test_a_missing_an_extra_and_a_wrong_value_are_named(
    traces: tuple[Trace, Values], prepared: Prepared, tmp_path: Path
) -> None:
    reference, values = traces
    changed = dict(values)
    missing, wrong = "model.encoder.layers.0.fc1", "model.encoder.layers.1.fc1"
    del changed[missing]
    changed["model.encoder.extra"] = np.ones((1, 7, 3), np.float32)
    changed[wrong] = np.roll(changed[wrong], 1, axis=1)  # a row late
    (tmp_path / "d").mkdir()
    as_npy(changed, tmp_path / "d", prepared)
    result = compared(tmp_path / "d", prepared, reference, tmp_path / "c.h5")
    assert missing in {name for _, name, _ in result.coverage.only_reference}
    assert "model.encoder.extra" in {name for _, name, _ in result.coverage.only_candidate}
    shifted = [note for note in result.notes if wrong in note]
    assert shifted or (result.first_bad is not None and result.first_bad.value == wrong)


BROKEN: dict[str, tuple[Writer, Callable[[Path], None], str]] = {
    "npy cut": (as_npy, lambda d: cut(next((d / "encode").iterdir())), "cannot read"),
    "npz cut": (as_npz, lambda d: cut(d / "all.npz"), "cannot read"),
    "safetensors cut": (as_safetensors, lambda d: cut(d / "run.safetensors"), "cannot read"),
    "torch cut": (as_torch, lambda d: cut(d / "run.pt"), "run.pt"),
    "raw cut": (as_raw, lambda d: cut(d / "all.bin"), "bytes are left"),
    "raw without its file": (as_raw, lambda d: (d / "all.bin").unlink(), "no such file"),
    "raw, no index": (as_raw, lambda d: put(d / "index.json", "[1, 2]"), "is no index"),
    "raw, spoilt index": (as_raw, lambda d: put(d / "index.json", "{"), "cannot read"),
    "onnx cut": (as_onnx, lambda d: cut(d / "node_0.pb"), "node_0.pb"),
    "polygraphy cut": (as_polygraphy, lambda d: cut(d / "results.json"), "cannot read"),
    "polygraphy, other JSON": (
        as_polygraphy,
        lambda d: put(d / "results.json", '{"polygraphy_class": "RunResults"}'),
        "no RunResults",
    ),
    "cke cut": (as_cke, lambda d: cut(d / "dump.bin"), "cut short"),
    "cke, other version": (as_cke, lambda d: patch(d / "dump.bin", 8, b"\7"), "no record of version 1"),
    "cke manifest cut": (as_cke_manifest, lambda d: cut(d / "0.f32"), "bytes are left"),
}


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3 + 1])


def put(path: Path, text: str) -> None:
    path.write_text(text)


def patch(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the tools themselves
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_dump_is_one_line(kind: str, traces: tuple[Trace, Values], prepared: Prepared, tmp_path: Path) -> None:
    write, spoil, said = BROKEN[kind]
    folder = tmp_path / "dump"
    folder.mkdir()
    write(traces[1], folder, prepared)
    spoil(folder)
    with pytest.raises(FirstbadError) as error:
        dump.capture(str(folder), prepared, tmp_path / "c.h5", OPTIONS)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_no_code_of_a_file_is_run(prepared: Prepared, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return subprocess.getoutput, (f"touch {tmp_path / 'owned'}",)

    (tmp_path / "d").mkdir()
    torch.save({"x": Evil()}, tmp_path / "d/x.pt")
    np.save(tmp_path / "d/y.npy", np.array([Evil()], object), allow_pickle=True)
    with pytest.raises(CompareError):
        dump.capture(str(tmp_path / "d"), prepared, tmp_path / "c.h5", OPTIONS)
    assert not (tmp_path / "owned").exists()


def test_what_is_no_folder_of_values_is_refused(prepared: Prepared, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones(3))
    for argument, said in (
        (str(tmp_path / "one.npy"), "is one file"),
        (str(tmp_path / "nowhere"), "no folder"),
        ("", "dump:FOLDER"),
    ):
        with pytest.raises(UsageError, match=said):
            dump.capture(argument, prepared, tmp_path / "c.h5", OPTIONS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CompareError, match="no values in a format that is known"):
        dump.capture(str(tmp_path / "empty"), prepared, tmp_path / "c.h5", OPTIONS)


def test_cke_hidden_states_and_cache(prepared: Prepared, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for token in range(3):
        np.full(4, token, np.float32).tofile(folder / f"tok_{token:04d}_layer_002_ffn_out.f32")
    cache = np.arange(2 * 2 * 3 * 4).astype(np.float16)
    header = np.array([0, 1, 5, 3, 2, 16, 4, 0], np.uint32)
    header[0] = int.from_bytes(b"CXKV", "little")
    (folder / "kv.bin").write_bytes(header.tobytes() + cache.tobytes())
    dump.capture(str(folder), prepared, tmp_path / "c.h5", OPTIONS)
    with open_trace(tmp_path / "c.h5") as trace:
        found = {v.name: (v.shape, v.dtype) for v in trace.graph.values}
        assert found == {
            "layer.5.keys": ((2, 3, 4), "float16"),
            "layer.5.values": ((2, 3, 4), "float16"),
            "layer.2.ffn_out": ((3, 4), "float32"),
        }
    (folder / "tok_0001_layer_002_ffn_out.f32").unlink()
    with pytest.raises(CompareError, match=r"token 1 of `layer\.2\.ffn_out` is missing"):
        dump.capture(str(folder), prepared, tmp_path / "c.h5", OPTIONS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the tool itself
def test_the_report_for_polygraphy_is_read_by_it(
    traces: tuple[Trace, Values], prepared: Prepared, tmp_path: Path
) -> None:
    comparator = pytest.importorskip("polygraphy.comparator")
    from firstbad.reports import polygraphy

    reference, values = traces
    (tmp_path / "d").mkdir()
    as_npy(values, tmp_path / "d", prepared)
    result = compared(tmp_path / "d", prepared, reference, tmp_path / "candidate.h5")
    save(result, tmp_path / "result.json")
    with open_material(tmp_path) as material:
        (tmp_path / "polygraphy.json").write_text(polygraphy.render(material))
    loaded = comparator.RunResults.load(str(tmp_path / "polygraphy.json"))
    own = loaded["firstbad-candidate"][0]
    name = "model.encoder.layers.0.fc1"
    np.testing.assert_array_equal(np.asarray(own[name]).reshape(-1), values[name].reshape(-1))
