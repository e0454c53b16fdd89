"""What looking costs: each adapter's run under its probe as a multiple of the same run with nobody looking.

    python tests/bench/adapters.py [--size micro|tiny] [--repeat N]

A Whisper with random weights (exec: the GPT-2 of case_studies/gpt2_in_c), the best of N. What both runs need (starting
a program, handing over weights) is in both; loading the model is in neither. Leaves out dumps: nothing is run.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from firstbad.probes import c, onnx_graph, py, user
from firstbad.probes import exec as program
from firstbad.probes import onnx as runtime
from firstbad.probes import torch as pytorch
from firstbad.reference import causal, whisper
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.tapping import listening
from firstbad.trace import TraceWriter

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "probes"
POSITIONS = {"micro": 100, "tiny": 400}


@dataclass(frozen=True)
class Bench:
    """One adapter: the run with nobody looking, and the one under the probe."""

    name: str
    bare: Callable[[], object]
    probed: Callable[[Path], object]


def benches(size: str, folder: Path) -> Iterator[Bench]:
    options = CaptureOptions(max_tokens=4, threads=2)
    T = POSITIONS[size]
    spec = ModelSpec("whisper", random_weights=3, size=size, audio_context=T)
    features = np.random.default_rng(5).standard_normal((1, 80, 2 * T)).astype(np.float32)
    speech = replace(whisper.prepare(spec), inputs={"input_features": features})
    yield Bench("c", lambda: c.bare("", speech, options, folder), lambda path: c.capture("", speech, path, options))
    text = causal.prepare(ModelSpec("causal", random_weights=1, tokens=(tuple(range(5, 25)),)))
    command = f"{built(folder)} {{weights}} {{tokens}} 4 {{max_tokens}}"
    yield Bench(
        "exec",
        lambda: program.bare(command, text, options, folder),
        lambda path: program.capture(command, text, path, options),
    )
    for argument in ("", "dtype=bfloat16,attn=sdpa"):
        changed = replace(speech, model_object=pytorch.variant(speech.model_object, pytorch.parse(argument)))
        yield Bench(
            f"torch:{argument}".rstrip(":"),
            lambda changed=changed: eager(changed, options),  # type: ignore[misc]  # a default argument binds
            lambda path, changed=changed: recorded(changed, path, options),  # type: ignore[misc]  # a default argument binds
        )
    exported = module(TESTS / "exported.py")
    exported.save(
        exported.Encoder(speech.model_object),
        (torch.from_numpy(features),),
        folder / "encoder.onnx",
        ["input_features"],
        ["last_hidden_state"],
        {},
    )
    model = onnx_graph.observe(folder / "encoder.onnx", "all", ["CPUExecutionProvider"], folder, 2)
    yield Bench(
        "onnx (encoder)",
        lambda: model.plain.run(None, {"input_features": features}),
        lambda path: observed(model, speech, path, options),
    )
    function = user.user_function(f"{TESTS / 'candidates/encoder_layer.py'}:numpy_layer")
    given = py.Given(speech.inputs, speech.weights, speech.config, speech.prompt, 1)
    yield Bench("py (one layer)", lambda: function(given), lambda path: tapped(function, given, path))


def eager(prepared: Prepared, options: CaptureOptions) -> None:
    with torch.inference_mode():
        whisper._generate(prepared, None, None, options.max_tokens or 4)


def recorded(prepared: Prepared, path: Path, options: CaptureOptions) -> None:
    with TraceWriter(path, role="candidate", engine="torch") as writer:
        whisper.capture(prepared, writer, tokens=None, options=options)


def observed(model: onnx_graph.Observed, prepared: Prepared, path: Path, options: CaptureOptions) -> None:
    with TraceWriter(path, role="candidate", engine="onnx") as writer:
        run = runtime._Run(prepared, writer, options)
        run.weights([model])
        run.all_steps([model])


def tapped(function: Callable[..., object], given: py.Given, path: Path) -> None:
    with TraceWriter(path, role="candidate", engine="py") as writer, listening(writer, "encode"):
        function(given)


def built(folder: Path) -> Path:
    source = ROOT / "case_studies/gpt2_in_c/gpt2.c"
    include = Path(c.__file__).parent / "include"
    flags = ["-std=gnu11", "-O2", f"-I{include}"]
    subprocess.run(["cc", *flags, "-o", folder / "gpt2", source, "-lm", "-lpthread"], check=True)
    return folder / "gpt2"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def best(run: Callable[[], object], repeat: int) -> float:
    seconds = []
    for _ in range(repeat + 1):  # the first warms caches
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def rows(quick: bool = False) -> Iterator[tuple[str, float, str, str]]:
    """What `make bench` puts into its table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for bench in benches("micro" if quick else "tiny", folder):
            bare = best(bench.bare, 1 if quick else 3)
            probed = best(lambda bench=bench: bench.probed(folder / "trace.h5"), 1 if quick else 3)  # type: ignore[misc]  # a default argument binds
            yield f"{bench.name}: its run under the probe, over the bare one", probed / bare, "x", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--size", choices=POSITIONS, default="tiny")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(f"{'adapter':34}{'bare':>10}{'probed':>10}{'times':>8}{'trace':>10}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = folder / "trace.h5"
        for bench in benches(args.size, folder):
            bare = best(bench.bare, args.repeat)
            probed = best(lambda bench=bench: bench.probed(path), args.repeat)  # type: ignore[misc]  # a default argument binds
            size = path.stat().st_size / 1e6
            print(f"{bench.name:34}{1e3 * bare:7.1f} ms{1e3 * probed:7.1f} ms{probed / bare:8.1f}{size:7.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
