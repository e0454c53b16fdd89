"""What naming a fault costs on real weights: localising in bare reference runs, explaining in seconds, fault by fault.

    python tests/bench/explaining.py [--model tiny.en|micro] [--context POSITIONS] [--budget SECONDS] [ID ...]

A bare run is the reference with nobody looking, driven by the same tokens, with the same threads; the best of three.
Localising is everything between two traces on disk and the list of faults; `--split` shows what it goes to. Seconds of
the clock, and of all processor cores together, since a busy machine stretches the clock. Leaves out the candidate's own
run (adapters.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "case_studies" / "fault_zoo"
sys.path.insert(0, str(ZOO))

import torch  # noqa: E402 - after the path
import zoo  # noqa: E402 - a folder of scripts
from broken import broken  # noqa: E402 - the same folder of scripts

from firstbad import comparison  # noqa: E402 - after the path
from firstbad.graph import Op  # noqa: E402 - after the path
from firstbad.probes import c  # noqa: E402 - after the path
from firstbad.reference import whisper  # noqa: E402 - after the path
from firstbad.replay import moves_only  # noqa: E402 - after the path
from firstbad.result import FaultResult  # noqa: E402 - after the path
from firstbad.trace import open_trace  # noqa: E402 - after the path

IDS = (
    "wire.e.1.self_attn.v_proj.x.e.0.add_1",
    "gelu.tanh.d.1.activation_fn.gelu",
    "gain.1.001.e.0.self_attn.v_proj",
    "dead_column.e.1.fc1",
    "norm.eps_0.001.e.1.final_layer_norm",
    "precision.bf16_sum.e.0.fc1",
    "clobber.e.1.self_attn.v_proj.on.e.1.self_attn.mul",
    "softmax.base_2.e.0.self_attn",
    "heads.swapped.d.1.self_attn.q_proj",
    "residual.first_only.e.1.add",
    "conv.flipped.e.conv2",
    "same.wire+bias.e.1.self_attn.v_proj",
)
"""A spread of classes: wires, memory, constants, variants, tails, precision, layout, two at once."""

RUNS, SECONDS = 6.0, 10.0
"""What the project promises: localising in so many bare runs, explaining a fault in so many seconds."""


@dataclass(frozen=True)
class Figure:
    """One fault. Localising and explaining in seconds of the clock and of the processor, a bare run likewise."""

    id: str
    cause: str
    faults: int
    bare: tuple[float, float]
    localise: tuple[float, float]
    explain: tuple[float, float]  # for one fault
    split: Mapping[str, float] = field(default_factory=dict)  # part of localising → seconds of the processor

    @property
    def runs(self) -> float:
        """Localising in bare runs, by the processor."""
        return self.localise[1] / self.bare[1]


class Clocked:
    """An executor that counts the processor's seconds by what is asked of it: for a run apart, which is not timed."""

    stacks = True

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def run(self, op: Op, inputs: Any, dtype: str) -> Any:
        part = "moves" if moves_only(op) else "float64" if dtype == "float64" else "twin"
        return self._timed(part, self.executor.run, op, inputs, dtype)

    def scale(self, *args: Any) -> Any:
        return self._timed("conditions", self.executor.scale, *args)

    def sequential(self, *args: Any) -> Any:
        return self._timed("sums in order", self.executor.sequential, *args)

    def _timed(self, part: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.process_time()
        try:
            return call(*args)
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - started


def figures(
    ids: Sequence[str] = IDS, model: str = "tiny.en", context: int = 0, budget: float = 10.0
) -> Iterator[Figure]:
    """One figure a fault, as they come. `context`: encoder positions instead of the zoo's; -1: all of the model's."""
    spec, tokens = zoo.MODELS[model]
    if context:
        zoo.MODELS = {**zoo.MODELS, model: (replace(spec, audio_context=None if context < 0 else context), tokens)}
    every = {e["id"]: e for e in json.loads((ZOO / "faults.json").read_text("utf-8"))}
    with tempfile.TemporaryDirectory() as scratch:
        made = zoo.Zoo.of(model, Path(scratch), budget)
        torch.set_num_threads(2)
        healthy = c.plan_for("", made.prepared)
        for name in ids:
            path = made.folder / "candidate.h5"
            output = made._run_c(broken(healthy, made.prepared, every[name]["edits"]), path, made.options)
            bare = min((_clocked(lambda t=output.tokens: _bare(made, t)) for _ in range(3)), key=lambda s: s[1])  # type: ignore[misc]  # a default argument binds
            with open_trace(made.reference(output)) as ours, open_trace(path) as theirs:
                executor = made.room.executor(made.prepared)
                found: list[FaultResult] = []
                seconds: list[tuple[float, float]] = []
                for allowed in (0.0, 0.0, budget):  # the first warms the page cache

                    def named(allowed: float = allowed) -> None:
                        found[:] = comparison.compare(ours, theirs, executor, budget=allowed).result.faults  # noqa: B023 - called at once

                    seconds.append(_clocked(named))
                clocked = Clocked(executor)
                _, whole = _clocked(lambda clocked=clocked: comparison.compare(ours, theirs, clocked, budget=0.0))  # type: ignore[misc]  # a default argument binds
            split = {**clocked.seconds, "judging and the rest": whole - sum(clocked.seconds.values())}
            count = max(1, len(found))
            more = tuple(max(0.0, b - a) / count for a, b in zip(*seconds[1:], strict=True))
            causes = ", ".join(dict.fromkeys(f.cause.kind for f in found))
            yield Figure(name, causes, len(found), bare, seconds[1], (more[0], more[1]), split)
            path.unlink()


def rows(quick: bool) -> Iterator[tuple[str, float, str, str]]:
    """For bench.py: the worst of every third fault, (name, value, unit, goal)."""
    found = []
    for one in figures(IDS[:2] if quick else IDS[::3]):
        found.append(one)
        yield f"localising {one.id}", one.runs, "bare reference runs", ""
    name = "localising, the worst fault on tiny.en"
    yield f"{name}, 60 positions and 3 tokens", max(f.runs for f in found), "bare reference runs", f"<= {RUNS:g}"
    yield "explaining, the worst fault on tiny.en", max(f.explain[0] for f in found), "s", f"<= {SECONDS:g}"
    for one in [] if quick else figures(IDS[3:4], context=-1):
        yield "localising a fault on tiny.en, the whole of its context", one.runs, "bare reference runs", f"<= {RUNS:g}"
        for part, seconds in one.split.items():
            yield f"localising, of which {part}", seconds / one.bare[1], "bare reference runs", ""


def _bare(made: zoo.Zoo, tokens: Sequence[int]) -> None:
    with torch.inference_mode():
        whisper._generate(made.prepared, None, tuple(tokens), len(tokens))


def _clocked(call: object) -> tuple[float, float]:
    """Seconds of the clock and of the processor."""
    assert callable(call)
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model", choices=list(zoo.MODELS), default="tiny.en")
    parser.add_argument("--context", type=int, default=0, help="encoder positions; -1: all")
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--split", action="store_true", help="what localising goes to, in bare runs")
    parser.add_argument("ids", nargs="*", default=list(IDS), metavar="ID")
    args = parser.parse_args()
    print(f"{'fault':52}{'bare run':>10}{'localise':>10}{'runs':>7}{'explain':>10}{'processor':>11}  cause")
    shown = []
    for f in figures(args.ids, args.model, args.context, args.budget):
        shown.append(f)
        print(
            f"{f.id[:50]:52}{f.bare[0]:8.2f} s{f.localise[0]:8.2f} s{f.runs:7.1f}{f.explain[0]:8.2f} s"
            f"{f.explain[1]:9.2f} s  {f.cause}",
            flush=True,
        )
        if args.split:
            print("".join(f"  {part} {s / f.bare[1]:.1f}" for part, s in f.split.items()))
    runs, seconds = max(f.runs for f in shown), max(f.explain[0] for f in shown)
    print(
        f"localising: {runs:.1f} bare runs at most (promised: {RUNS:g}); explaining: {seconds:.1f} s a fault at most ",
        end="",
    )
    print(f"(promised: {SECONDS:g})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
