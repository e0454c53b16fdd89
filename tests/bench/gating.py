"""What one case of the gate costs on Whisper tiny.en, in bare runs of both engines: cold, and with its references kept.

    python tests/bench/gating.py [--quick]

A bare run of both is the C engine without its probe and PyTorch without a recorder, the same tokens, one after the
other. The gate is timed from a loaded model to its result, as both leave out imports and the model's loading; the whole
command is given beside it, against a program that loads the model and runs both. Real weights where a package has them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from capturing import CLIP, eager, prepared_model, turns, wall  # the same folder of scripts

from firstbad import references
from firstbad.accept import propose, write
from firstbad.config import Config, GateCase, load
from firstbad.finding import CaseResult
from firstbad.gate import gate
from firstbad.probes import c
from firstbad.run import CaptureOptions

Figure = tuple[str, float | None, str, str]

TOKENS = 24
CASE = f"""
[case.bench]
audio = ["{CLIP.name}"]
max_tokens = {TOKENS}
inputs = 1
"""
QUICK = 'random_weights = 1\nsize = "micro"\naudio_context = 100\n'


def accepted(folder: Path, quick: bool) -> tuple[Config, GateCase]:
    """The case with its baseline, made of one clean run."""
    shutil.copy(CLIP, folder)
    (folder / "firstbad.toml").write_text(CASE + 'model = "whisper"\n' + (QUICK if quick else ""), "utf-8")
    config = load(folder / "firstbad.toml")
    (case,) = config.cases
    for proposal in propose(config, [case], folder / "accept", repeat=1, jobs=1):
        write(proposal)
    return config, case


def clocked(config: Config, case: GateCase, inputs: int, jobs: int, *, cold: bool) -> float:
    """Seconds of one gate, whose inputs must all have run; `cold`: no reference is there."""
    if cold:
        shutil.rmtree(references.folder(), ignore_errors=True)
    judged: list[CaseResult] = []
    seconds = wall(lambda: judged.extend(gate(config, [case], config.folder / "out", inputs=inputs, jobs=jobs).cases))
    (one,) = judged
    if one.verdict in ("incomplete", "not run") or one.references_cached != (0 if cold else inputs):
        raise RuntimeError(f"{one.verdict}, {one.references_cached} references were there: {one.findings}")
    return seconds


def rows(quick: bool = False) -> Iterator[Figure]:
    repeat = 2 if quick else 3
    prepared, name = prepared_model(quick)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["FIRSTBAD_CACHE"] = str(folder / "cache")
        config, case = accepted(folder, quick)
        options = CaptureOptions(max_tokens=TOKENS)
        bare, cold, kept = turns(
            repeat,
            lambda: wall(lambda: eager(prepared, TOKENS)) + wall(lambda: c.bare("", prepared, options, folder)),
            lambda: clocked(config, case, 1, 1, cold=True),
            lambda: clocked(config, case, 1, 1, cold=False),
        )
        yield f"bare runs of both engines, {name}", bare, "s", ""
        yield "a gate case, cold", cold / bare, "bare runs of both", "<= 6"
        yield "a gate case, its reference kept", kept / bare, "bare runs of both", "<= 4"
        if not quick:
            many = replace(case, inputs=6)
            one = clocked(config, many, 6, 1, cold=True)
            yield "six inputs, two at a time, over one at a time", clocked(config, many, 6, 2, cold=True) / one, "x", ""


if __name__ == "__main__":
    for row in rows("--quick" in sys.argv[1:]):
        print(*row, flush=True)
