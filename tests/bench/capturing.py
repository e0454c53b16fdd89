"""What a capture and a diff cost on Whisper tiny.en and the case study's clip, as multiples of the bare runs.

The model's own weights where a package has them, else random ones of its size. Times of the same thing with and
without a probe are taken in turns; medians. Leaves out other adapters (adapters.py), and the C engine's kernels against
PyTorch's: times of ops in a recording hold the recording.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from firstbad import session
from firstbad.errors import FirstbadError
from firstbad.probes import c
from firstbad.reference import whisper
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.trace import TraceWriter, open_trace

ROOT = Path(__file__).parents[2]
CLIP = ROOT / "case_studies/whisper_buffer_wiring/clip.wav"
Figure = tuple[str, float | None, str, str]

KERNEL = """
#include <stdlib.h>
#ifdef PROBED
#define FIRSTBAD_IMPLEMENTATION
#include "firstbad.h"
#else
#define FB_STEP(s)
#define FB_OP(k)
#define FB_READ_F32(...)
#define FB_WRITE_F32(...)
#define FB_OP_END()
#endif
enum { N = 64, D = 512 };
__attribute__((noinline)) static void linear(const float *x, const float *w, float *y) {
    for (int i = 0; i < N; i++)
        for (int o = 0; o < D; o++) {
            float sum = 0;
            for (int k = 0; k < D; k++) sum += x[i * D + k] * w[o * D + k];
            y[i * D + o] = sum;
        }
}
int main(void) {
    float *x = calloc(N * D, 4), *w = calloc(D * D, 4), *y = calloc(N * D, 4);
    FB_STEP("encode");
    for (int layer = 0; layer < 4; layer++) {
        FB_OP("linear");
        FB_READ_F32("x", x, N, D);
        FB_READ_F32("weight", w, D, D);
        linear(x, w, y);
        FB_WRITE_F32("y", y, N, D);
        FB_OP_END();
    }
    return (int)y[5];
}
"""


def header() -> Iterator[Figure]:
    """Instructions of four linear layers with the header and no sink, over those without it."""
    counts = []
    name = "instructions with the header and no sink, over none (callgrind)"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "kernel.c").write_text(KERNEL, "utf-8")
        for flag in ("-DBARE", "-DPROBED"):
            program = folder / flag
            include = f"-I{Path(c.__file__).parent / 'include'}"
            build = [
                "cc",
                "-O2",
                "-std=gnu11",
                flag,
                include,
                "-o",
                str(program),
                str(folder / "kernel.c"),
                "-lpthread",
            ]
            subprocess.run(build, check=True)
            run = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'out'}", str(program)]
            try:
                done = subprocess.run(run, capture_output=True, text=True, check=True)
            except OSError:
                yield f"{name}: not measured (no valgrind)", None, "", ""
                return
            counts.append(int(done.stderr.rpartition("Collected :")[2].split()[0]))
    yield name, counts[1] / counts[0], "x", "<= 1.001"


def prepared_model(quick: bool) -> tuple[Prepared, str]:
    if not quick:
        try:
            return whisper.prepare(ModelSpec("whisper", CLIP)), "tiny.en"
        except FirstbadError:
            pass
    size = "micro" if quick else "tiny.en"
    return whisper.prepare(ModelSpec("whisper", CLIP, 1, 100 if quick else None, size)), f"{size} with random weights"


def turns(repeat: int, *runs: Callable[[], float]) -> list[float]:
    """Median seconds of each run, taken in turns after one round that warms up."""
    taken = [[run() for run in runs] for _ in range(repeat + 1)][1:]
    return [median(column) for column in zip(*taken, strict=True)]


def wall(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def recorded(prepared: Prepared, folder: Path, options: CaptureOptions) -> RunOutput:
    path = folder / "reference.h5"
    with TraceWriter(path, role="reference", engine="torch", meta=session.meta_of(prepared)) as writer:
        return whisper.capture(prepared, writer, tokens=None, options=options)


def eager(prepared: Prepared, tokens: int) -> None:
    with torch.inference_mode():
        whisper._generate(prepared, None, None, tokens)


def encoder(prepared: Prepared) -> None:
    with torch.inference_mode():
        prepared.model_object.model.encoder(torch.from_numpy(prepared.inputs["input_features"]))


def reference(prepared: Prepared, folder: Path, repeat: int) -> Iterator[Figure]:
    few, many = CaptureOptions(max_tokens=2), CaptureOptions(max_tokens=14)
    recorded(prepared, folder, few)
    with open_trace(folder / "reference.h5") as trace:
        last = [v for v in trace.graph.values if v.step == "encode" and v.kind == "value"][-1]
    first_step = replace(few, stop=(f"encode/{last.name}",))
    bare_short, bare_long, own_short, own_long, bare_encoder, own_encoder = turns(
        repeat,
        lambda: wall(lambda: eager(prepared, 2)),
        lambda: wall(lambda: eager(prepared, 14)),
        lambda: recorded(prepared, folder, few).seconds["run"],
        lambda: recorded(prepared, folder, many).seconds["run"],
        lambda: wall(lambda: encoder(prepared)),
        lambda: recorded(prepared, folder, first_step).seconds["run"],
    )
    yield "bare encoder", 1e3 * bare_encoder, "ms", ""
    yield "reference: encoder under the recorder, beyond writing", own_encoder / bare_encoder, "x", "<= 1.5"
    yield "bare decode step", 1e3 * (bare_long - bare_short) / 12, "ms", ""
    step = (own_long - own_short) / (bare_long - bare_short)
    yield "reference: decode step under the recorder, beyond writing", step, "x", "<= 2"


def engine(prepared: Prepared, folder: Path, repeat: int, write: float, options: CaptureOptions) -> Iterator[Figure]:
    path = folder / "candidate.h5"
    nothing = replace(options, steps=("none",))
    bare, hashed, full = turns(
        repeat,
        lambda: wall(lambda: c.bare("", prepared, options, folder)),
        lambda: wall(lambda: c.capture("", prepared, path, nothing)),
        lambda: wall(lambda: c.capture("", prepared, path, options)),
    )
    writing = path.stat().st_size / 1e9 / write
    yield "bare C engine, weights handed over", bare, "s", ""
    yield "C engine with hashes alone", hashed / bare, "x", ""
    yield "C engine captured in full", full / bare, "x", ""
    yield "C engine captured, beyond plain writes of the same bytes", (full - writing) / bare, "x", "<= 1.1"


def diffed(prepared: Prepared, folder: Path, options: CaptureOptions) -> Iterator[Figure]:
    """A diff of a healthy engine with replay, by what it says of its own time."""
    bare_c = wall(lambda: c.bare("", prepared, options, folder))
    spec = prepared.spec
    found = session.diff(spec, "c", folder / "diff", options, budget=10.0)
    with open_trace(folder / "diff" / "reference.h5") as trace:
        tokens = sum(step.startswith(("prefill", "decode")) for step in trace.graph.steps)
    eager(prepared, tokens)
    bare = wall(lambda: eager(prepared, tokens))
    timings = found.result.timings
    for name, seconds in timings.items():
        yield f"diff: {name}", seconds, "s", ""
    writing = sum(seconds for name, seconds in timings.items() if name.startswith("writing"))
    captured = timings["candidate"] + timings["reference"] - writing
    yield "diff: both captures beyond writing, over both bare runs", captured / (bare + bare_c), "x", "<= 3"
    yield (
        "diff: alignment and replay, in bare reference runs",
        (timings["align"] + timings["replay"]) / bare,
        "x",
        "<= 6",
    )


def rows(quick: bool = False) -> Iterator[Figure]:
    repeat = 2 if quick else 5
    options = CaptureOptions(max_tokens=4 if quick else 24)  # random weights never end
    yield from header()
    prepared, name = prepared_model(quick)
    yield f"layers of the model, {name}", float(prepared.config["encoder_layers"]), "", ""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        yield from reference(prepared, folder, repeat)
        yield from engine(prepared, folder, repeat, float(os.environ.get("WRITE_GBS", "1")), options)
        yield from diffed(prepared, folder, options)
