"""What the end-to-end tests share: a bench that runs an edited plan of the small Whisper against the reference.

The reference depends on the tokens that it is fed and on nothing else of the candidate, so it is recorded once for
each history. Leaves out what the tests judge by.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

from firstbad import session
from firstbad.cli import main
from firstbad.comparison import compare
from firstbad.probes import c
from firstbad.probes.plan import Plan, save
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.trace import open_trace

ROOT = Path(__file__).parents[2]
CLIP = ROOT / "case_studies" / "whisper_buffer_wiring" / "clip.wav"
SPEECH = ROOT / "tests" / "data" / "speech"
THREADS = min(2, os.cpu_count() or 1)


@dataclass
class Bench:
    """One model and one input, prepared once; every run lands in `folder`."""

    room: ModuleType
    prepared: Prepared
    folder: Path
    options: CaptureOptions
    references: dict[tuple[int, ...], Path] = field(default_factory=dict)
    count: int = 0

    @property
    def plan(self) -> Plan:
        return c.plan_for("", self.prepared)

    def run(self, plan: Plan | None = None, **options: object) -> tuple[Path, RunOutput]:
        """The candidate alone: its trace and what it answered."""
        self.count += 1
        trace = self.folder / f"{self.count}.h5"
        argument = ""
        if plan is not None:
            argument = str(trace.with_suffix(".json"))
            save(plan, Path(argument))
        wishes = replace(self.options, **options)  # type: ignore[arg-type]
        return trace, c.capture(argument, self.prepared, trace, wishes)

    def reference(self, tokens: tuple[int, ...]) -> Path:
        """The reference driven by these tokens."""
        if tokens not in self.references:
            path = self.folder / f"reference-{len(self.references)}.h5"
            session.capture_reference(self.room, self.prepared, path, self.options, tokens)
            self.references[tokens] = path
        return self.references[tokens]

    def judge(self, candidate: Path, output: RunOutput, *, budget: float = 10.0) -> Result:
        """What firstbad says about a recorded candidate."""
        with open_trace(self.reference(output.tokens)) as ours, open_trace(candidate) as theirs:
            return compare(ours, theirs, self.room.executor(self.prepared), budget=budget).result


def bench_of(spec: ModelSpec, folder: Path, options: CaptureOptions) -> Bench:
    room, prepared = session.prepare(spec)
    return Bench(room, prepared, folder, options)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The small Whisper with random weights on 0.8 s of the spoken clip, three tokens."""
    spec = ModelSpec("whisper", CLIP, random_weights=1, audio_context=40, size="micro")
    return bench_of(spec, tmp_path_factory.mktemp("micro"), CaptureOptions(max_tokens=3, threads=1, timeout=60))


@dataclass(frozen=True)
class Said:
    """What one command left: its exit code, and its two streams."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def firstbad(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `firstbad WORDS...` in this process."""

    def command(*words: object) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return command


MICRO = ("--random-weights", 1, "--size", "micro", "--audio", CLIP, "--audio-context", 40, "--threads", 1)
"""The small Whisper, for commands."""
