"""How much of real engines' traces is aligned without a map, and how much of that is right; names taken away or lying.

The truth is the names that the engines had before they were scrambled. Engines run on a micro Whisper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from firstbad.alignment import Alignment, align
from firstbad.comparison import compare
from firstbad.graph import Value
from firstbad.mapfile import load_map, save_map
from firstbad.probes import c, edits
from firstbad.probes.plan import save
from firstbad.reference import whisper
from firstbad.replay import Executor
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_candidate, capture_reference
from firstbad.trace import Trace, open_trace
from tests.rewritten import hidden, liar, rewritten

OPTIONS = CaptureOptions(max_tokens=2, threads=2)
POSITIONS = 24
ENGINES = ("c", "torch", "torch:attn=sdpa", "torch:dtype=bfloat16")


@dataclass(frozen=True)
class Engines:
    """A micro Whisper, its reference trace, and a way to run candidates."""

    prepared: Prepared
    reference: Trace
    executor: Executor
    capture: Callable[[str], Trace]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    folder = tmp_path_factory.mktemp("engines")
    spec = ModelSpec("whisper", random_weights=3, size="micro", audio_context=POSITIONS)
    features = np.random.default_rng(5).standard_normal((1, 80, 2 * POSITIONS)).astype(np.float32)
    prepared = replace(whisper.prepare(spec), inputs={"input_features": features})
    own = c.capture("", prepared, folder / "c.h5", OPTIONS)
    capture_reference(whisper, prepared, folder / "reference.h5", OPTIONS, own.tokens)
    made: dict[str, Trace] = {}

    def capture(candidate: str) -> Trace:
        if candidate not in made:
            path = folder / f"{len(made)}.h5"
            capture_candidate(candidate, prepared, path, OPTIONS)
            made[candidate] = open_trace(path)
        return made[candidate]

    return Engines(prepared, open_trace(folder / "reference.h5"), whisper.executor(prepared), capture)


def other_layout(value: Value, array: np.ndarray) -> np.ndarray:
    """Batch dropped, heads merged into rows; what is left as a matrix is transposed, by turns."""
    if value.kind == "input" or array.ndim < 3 or not np.issubdtype(array.dtype, np.floating):
        return array
    array = array[0]
    if array.ndim == 3:  # [H, T, K] -> [T, H * K]
        return array.transpose(1, 0, 2).reshape(array.shape[1], -1)
    return array.T if len(value.name) % 2 else array


def wrong_v(value: Value, array: np.ndarray) -> np.ndarray:
    """A fault whose damage is computed by nobody: everything behind it stays as it was."""
    return array[:, ::-1] if value.name == "model.encoder.layers.0.self_attn.v_proj" else array


def aligned(engines: Engines, candidate: Trace) -> Alignment:
    return align(
        engines.reference.graph,
        candidate.graph,
        engines.reference.array,
        candidate.array,
        executor=engines.executor,
    )


def scored(
    engines: Engines, found: Alignment, candidate: Trace, truth: dict[tuple[str, str], str]
) -> tuple[float, float, list[str]]:
    """(share of what bears values aligned, share of that right, what is wrong).

    `truth`: (step, name) -> reference name. Right is also a value with the very same content: one of two equal ones.
    """
    content = {
        (v.step, v.name): engines.reference.array(v).reshape(-1)
        for v in engines.reference.graph.values
        if v.kind == "value" and engines.reference.stored(v)
    }
    bearing = [v for v in candidate.graph.values if "float" in v.dtype and (v.step, v.name) in truth]
    pairs = [p for p in found.pairs if (p.candidate.step, p.candidate.name) in truth]
    wrong = [
        f"{p.candidate.step} {meant} as {p.reference.name}"
        for p in pairs
        if p.reference.name != (meant := truth[p.candidate.step, p.candidate.name])
        and not np.array_equal(content[p.reference.step, p.reference.name], content[p.candidate.step, meant])
    ]
    share = sum(p.candidate in bearing for p in pairs) / len(bearing)
    return share, 1 - len(wrong) / len(pairs), wrong


def truth_of(engines: Engines, original: Trace) -> dict[tuple[str, str], str]:
    """(step, hidden name) -> reference name, for every value with numbers of its own."""
    meant = {"scaled_dot_product_attention": "matmul_1"}
    names = {v.name for v in engines.reference.graph.values}
    truth = {}
    for value in original.graph.values:
        path, _, word = value.name.rpartition(".")
        name = f"{path}.{meant.get(word, word)}" if path else word
        if value.kind == "value" and original.stored(value) and value.same_as < 0 and name in names:
            truth[value.step, hidden(value)] = name
    return truth


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scramble", ["names", "names and layouts", "names, no edges"])
def test_names_taken_away(engines: Engines, tmp_path: Path, engine: str, scramble: str) -> None:
    original = engines.capture(engine)
    change = other_layout if "layouts" in scramble else lambda _v, a: a
    candidate = rewritten(original, tmp_path / "s.h5", rename=hidden, change=change, edges="no edges" not in scramble)
    share, right, wrong = scored(engines, aligned(engines, candidate), candidate, truth_of(engines, original))
    print(f"{engine:24} {scramble:20} {share:6.1%} aligned, {right:6.1%} of them right")
    assert right == 1, wrong
    assert share >= 0.95


def result_of(engines: Engines, candidate: Trace) -> Result:
    return compare(engines.reference, candidate, engines.executor, budget=0).result


@pytest.mark.parametrize("with_edges", [True, False])
def test_names_taken_away_and_a_fault(engines: Engines, tmp_path: Path, with_edges: bool) -> None:
    """A wrong value has no content to go by: it is placed, and what it damaged is found by what follows from it."""
    wired = edits.rewire(
        c.plan_for("", engines.prepared),
        "encode",
        "model.encoder.layers.1.self_attn.v_proj",
        "x",
        "model.encoder.layers.0.add_1",
    )
    save(wired, tmp_path / "plan.json")
    original = engines.capture(f"c:{tmp_path / 'plan.json'}")
    candidate = rewritten(original, tmp_path / "s.h5", rename=hidden, edges=with_edges)
    found = aligned(engines, candidate)
    share, right, wrong = scored(engines, found, candidate, truth_of(engines, original))
    assert (share, right) == (1, 1), wrong
    wrong_one = "model.encoder.layers.1.self_attn.v_proj"
    assert [p.reference.name for p in found.pairs if p.how == "placed"] == [wrong_one]
    result = result_of(engines, candidate)
    assert result.first_bad is not None
    assert result.first_bad.value == wrong_one
    assert len(result.faults) == 1


def test_names_that_lie(engines: Engines, tmp_path: Path) -> None:
    """Two layers exchanged: said, and nobody is blamed."""

    def exchanged(value: Value) -> str:
        swap = {"encoder.layers.0": "encoder.layers.1", "encoder.layers.1": "encoder.layers.0"}
        return next((value.name.replace(a, b) for a, b in swap.items() if a in value.name), value.name)

    candidate = rewritten(engines.capture("c"), tmp_path / "s.h5", rename=exchanged)
    result = result_of(engines, candidate)
    assert result.verdict == "match"
    said = [note for note in result.notes if "misaligned" in note]
    assert len(said) == 2
    assert "layers.0" in said[0]
    assert "layers.1" in said[0]
    assert "misaligned" in result.values["verdict"]


@pytest.mark.parametrize("engine", ["c", "torch:dtype=bfloat16"])
def test_every_name_lies(engines: Engines, tmp_path: Path, engine: str) -> None:
    """Names exchanged among all values of a shape: content says what each is, and nobody is blamed."""
    original = engines.capture(engine)
    rename = liar(original)
    candidate = rewritten(original, tmp_path / "s.h5", rename=rename)
    done = compare(engines.reference, candidate, engines.executor, budget=0)
    assert done.result.verdict == "match", done.result.first_bad
    assert any("misaligned, not wrong" in note for note in done.result.notes)
    own = {(v.step, v.name) for v in engines.reference.graph.values if v.same_as < 0 and engines.reference.stored(v)}
    truth = {(v.step, rename(v)): v.name for v in original.graph.values if (v.step, v.name) in own}
    share, right, wrong = scored(engines, done.alignment, candidate, truth)
    assert right == 1, wrong
    assert share >= 0.95


def test_every_name_lies_and_a_fault(engines: Engines, tmp_path: Path) -> None:
    wired = edits.rewire(
        c.plan_for("", engines.prepared),
        "encode",
        "model.encoder.layers.1.self_attn.v_proj",
        "x",
        "model.encoder.layers.0.add_1",
    )
    save(wired, tmp_path / "plan.json")
    original = engines.capture(f"c:{tmp_path / 'plan.json'}")
    result = result_of(engines, rewritten(original, tmp_path / "s.h5", rename=liar(original)))
    assert [fault.value for fault in result.faults] == ["model.encoder.layers.1.self_attn.v_proj"]


def test_what_an_engine_exchanges_is_no_lie(engines: Engines, tmp_path: Path) -> None:
    """A query made with the value's weight and a value with the query's hold each other's numbers: what reads them says
    that it is no matter of names."""
    plan = c.plan_for("", engines.prepared)
    name = "model.encoder.layers.0.self_attn.{}_proj"
    for one, other in ("qv", "vq"):
        for kind in ("weight", "bias"):
            plan = edits.set_weight(plan, "encode", name.format(one), kind, f"{name.format(other)}.{kind}")
    save(plan, tmp_path / "plan.json")
    result = result_of(engines, engines.capture(f"c:{tmp_path / 'plan.json'}"))
    assert {fault.value for fault in result.faults} == {name.format("q"), name.format("v")}


def test_a_tap_one_layer_late(engines: Engines, tmp_path: Path) -> None:
    """A dump of layer outputs in which layer l stands under the name of layer l + 1."""
    outputs = {
        "model.encoder.add": "model.encoder.layers.0.add_1",
        "model.encoder.layers.0.add_1": "model.encoder.layers.1.add_1",
    }
    candidate = rewritten(
        engines.capture("c"),
        tmp_path / "s.h5",
        rename=lambda v: outputs.get(v.name, v.name),
        keep=lambda v: v.kind != "value" or v.step != "encode" or v.name in outputs or "encoder.layer_norm" in v.name,
        edges=False,
    )
    result = result_of(engines, candidate)
    assert result.verdict == "match", result.first_bad
    assert any("layers.0.add_1 is model.encoder.add" in note for note in result.notes)


def test_shards_in_another_order(engines: Engines, tmp_path: Path) -> None:
    def swapped(value: Value, array: np.ndarray) -> np.ndarray:
        if not value.name.endswith("encoder.layers.0.fc1"):
            return array
        half = array.shape[-1] // 2
        return np.concatenate([array[..., half:], array[..., :half]], -1)

    candidate = rewritten(engines.capture("c"), tmp_path / "s.h5", change=swapped)
    result = result_of(engines, candidate)
    assert result.verdict == "match", result.first_bad
    assert any("fc1 is in another order" in note for note in result.notes)


def test_another_order_that_leaves_damage_is_a_fault(engines: Engines, tmp_path: Path) -> None:
    """Nothing reads the last value: whether the engine or the tap turned it round cannot be told, so it is a fault."""

    def turned(value: Value, array: np.ndarray) -> np.ndarray:
        return array[..., ::-1] if value.name == "generate.masked_fill" else array

    plain = engines.capture("c")
    last = rewritten(plain, tmp_path / "s.h5", change=turned, keep=lambda v: v.name != "generate.argmax:int64")
    assert result_of(engines, last).verdict == "diverged"


def test_a_map_written_and_read_again(engines: Engines, tmp_path: Path) -> None:
    candidate = rewritten(engines.capture("c"), tmp_path / "s.h5", rename=hidden, change=other_layout)
    found = aligned(engines, candidate)
    save_map(found, tmp_path / "map.json")
    again = align(
        engines.reference.graph,
        candidate.graph,
        engines.reference.array,
        candidate.array,
        mapped=load_map(tmp_path / "map.json"),
    )
    assert [(p.reference, p.candidate, p.layout) for p in again.pairs] == [
        (p.reference, p.candidate, p.layout) for p in found.pairs
    ]
