"""How steady the gate is: clean variations of an engine, of which none may turn it red, and creeping errors, of which
every one must. Writes a page beside itself.

    python tests/bench/gate_noise.py [--clean 100] [--creeping 30]

The engine that creeps is the built-in one, built with one value of it noisier, in its source, than its arithmetic is:
by twice the noise floor and a little more, still far inside allclose's defaults.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from firstbad import session
from firstbad.cli import main as command
from firstbad.config import Config, load
from firstbad.finding import CaseResult
from firstbad.gate import gate
from firstbad.machine import environment
from firstbad.run import CaptureOptions

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "probes" / "engine"
CLIP = ROOT / "case_studies" / "whisper_buffer_wiring" / "clip.wav"
PAGE = Path(__file__).with_suffix(".md")

CASE = f"""
[case.micro]
random_weights = 1
size = "micro"
audio_context = 40
audio = ["{CLIP.name}"]
max_tokens = 3
inputs = 3
"""

NOISY = """
import os
from pathlib import Path
from firstbad.probes import c
from firstbad.toolchain import build

HERE = Path(__file__).parent

def capture(argument, prepared, trace_path, options):
    name, size, seed = argument.split("@")
    os.environ.update(CREEP_NAME=name, CREEP_SIZE=size, CREEP_SEED=seed)
    before = c.engine
    sources = sorted((HERE / "engine").glob("*.c"))
    include = (Path(c.__file__).parent / "include",)
    c.engine = lambda cflags=(), *_: build(sources, flags=(*c.FLAGS, *cflags), program=True, include=include)
    try:
        return c.capture("", prepared, trace_path, options)
    finally:
        c.engine = before
"""

CREEP = """
#include <math.h>
/* the value of one name, off by normal noise of a share of its own size */
static void creep(const char *name, View out) {
    static unsigned long long state;
    const char *wanted = getenv("CREEP_NAME");
    if (!wanted || strcmp(name, wanted) || out.dtype != FB_F32) return;
    double square = 0, size = atof(getenv("CREEP_SIZE"));
    float *y = (float *)out.at;
    long n = 0;
    if (!state) state = 88172645463325252ull ^ (unsigned long long)atol(getenv("CREEP_SEED"));
    for (long i = 0; i < out.count; i++)
        if (isfinite(y[i]) && fabsf(y[i]) < 1e8) square += (double)y[i] * y[i], n++;
    for (long i = 0; i < out.count; i++) {
        double g = -6;
        for (int k = 0; k < 12; k++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            g += (double)(state >> 11) / 9007199254740992.0;
        }
        if (isfinite(y[i]) && fabsf(y[i]) < 1e8) y[i] += (float)(size * sqrt(square / n) * g);
    }
}
"""

FLAGS = [
    *("", "-O2", "-O1", "-O0", "-O3 -funroll-loops", "-ffp-contract=off", "-fno-tree-vectorize", "-ffast-math"),
    *("-mno-avx512f", "-mno-avx512f -mno-fma", "-mno-avx2 -mno-avx512f"),
]
ENVIRONMENTS = [{}, {"OPENBLAS_CORETYPE": "Nehalem"}, {"OMP_NUM_THREADS": "2"}, {"MKL_NUM_THREADS": "1"}]


@dataclass(frozen=True)
class Clean:
    """One gate run of a clean variation."""

    flags: str
    threads: int
    variables: dict[str, str]
    red: tuple[str, ...]

    @property
    def words(self) -> str:
        return " ".join(f"{name}={text}" for name, text in self.variables.items())


@dataclass(frozen=True)
class Creeping:
    """One gate run with an error planted in one value."""

    name: str
    floors: float  # how large, in noise floors
    size: float  # of the value's root mean square
    said: tuple[str, ...]  # what was red for this value


def accepted(folder: Path) -> Config:
    """A case with its baseline, and an engine whose source can make one value noisier."""
    shutil.copy(CLIP, folder)
    (folder / "firstbad.toml").write_text(CASE)
    (folder / "noisy.py").write_text(NOISY)
    shutil.copytree(ENGINE, folder / "engine")
    runtime = folder / "engine" / "runtime.c"
    text = runtime.read_text()
    line = "        kernel.run(&call);"
    assert text.count(line) == 1
    assert text.count("\nvoid run_step(") == 1
    text = text.replace(line, line + "\n        creep(op->out.name, out);")
    runtime.write_text(text.replace("\nvoid run_step(", f"{CREEP}\nvoid run_step("))
    config = str(folder / "firstbad.toml")
    words = ["accept", "--config", config, "--yes", "--jobs", "1", "--repeat", "3", "-o", str(folder / "made")]
    assert command(words) == 0
    return load(folder / "firstbad.toml")


def run(config: Config, **changes: object) -> CaseResult:
    (case,) = config.cases
    options = {k: v for k, v in changes.items() if k in ("threads", "cflags")}
    others = {k: v for k, v in changes.items() if k not in options}
    case = replace(case, options=replace(case.options, **options), **others)  # type: ignore[arg-type]
    return gate(config, [case], config.folder / "out", jobs=1).cases[0]


def clean(config: Config, count: int, seed: int) -> Iterator[Clean]:
    draw = random.Random(seed)
    for _ in range(count):
        flags, threads, variables = draw.choice(FLAGS), draw.choice([1, 2, 3, 4]), draw.choice(ENVIRONMENTS)
        result = run(config, cflags=tuple(flags.split()), threads=threads, environment=variables)
        yield Clean(flags, threads, variables, tuple(finding.message for finding in result.red))


def creeping(config: Config, count: int, seed: int) -> Iterator[Creeping]:
    (case,) = config.cases
    spec = replace(case.spec, audio=case.audio[0])
    values = session.diff(spec, "c", config.folder / "floors", case.options, budget=0).result.values
    floors: dict[str, float] = {}
    for name, floor in zip(values["name"], values["noise_floor"], strict=True):
        if floor:
            floors[name] = max(floor, floors.get(name, 0.0))
    draw = random.Random(seed)
    names = draw.sample(sorted(name for name in floors if not name.startswith("generate")), count)
    for n, name in enumerate(names):
        times = draw.choice([2.0, 2.25, 2.5])
        size = times * floors[name]
        assert size < 1e-5  # allclose, at its defaults, is blind to it
        result = run(config, candidate=f"noisy.py:{name}@{size!r}@{n}")
        here = f"{config.folder}/"
        said = tuple(f"{f.kind}: {f.message}".replace(here, "") for f in result.red if f.value == name)
        yield Creeping(name, times, size, said)


def page(cleans: list[Clean], creeps: list[Creeping], seconds: float) -> str:
    kinds = sorted({(one.flags, one.words) for one in cleans})
    red = sum(bool(one.red) for one in cleans)
    caught = sum(bool(one.said) for one in creeps)
    found = environment("c", CaptureOptions(), {})
    here = ", ".join(f"{name} {found[name]}" for name in ("compiler", "torch", "numpy") if name in found)
    lines = [
        "# Noise turns no gate red, a creeping error always does",
        "",
        "Written by `python tests/bench/gate_noise.py`, which says how; a micro Whisper, three inputs a run.",
        "",
        f"**{len(cleans)} clean variations: {red} red. {len(creeps)} creeping errors: {caught} red.** "
        f"{seconds / 60:.0f} minutes on {os.cpu_count()} cores ({here}).",
        "",
        f"Clean: {len(kinds)} combinations of compiler flags and environment, 1 to 4 threads.",
        "",
        "| flags | environment | runs | red |",
        "|---|---|---|---|",
    ]
    for flags, variables in kinds:
        same = [c for c in cleans if (c.flags, c.words) == (flags, variables)]
        shown = f"`{flags or 'default'}` | {variables or '-'}"
        lines.append(f"| {shown} | {len(same)} | {'; '.join(m for c in same for m in c.red) or 0} |")
    lines += [
        "",
        "Creeping: what is planted, in noise floors of that value and relative to its size, and what the gate said.",
        "",
        "| value | floors | relative | said |",
        "|---|---|---|---|",
    ]
    lines += [f"| {c.name} | {c.floors:g} | {c.size:.1e} | {c.said[0] if c.said else 'nothing'} |" for c in creeps]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--creeping", type=int, default=30)
    args = parser.parse_args()
    started = time.monotonic()
    for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):  # accept does not run there
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as scratch:
        config = accepted(Path(scratch))
        creeps, cleans = [], []
        for one in creeping(config, args.creeping, seed=4):
            creeps.append(one)
            print(f"{one.name} {one.floors:g} {one.said[0] if one.said else 'NOTHING'}", flush=True)
        for other in clean(config, args.clean, seed=3):
            cleans.append(other)
            print(f"{other.flags} {other.threads} {other.variables} {other.red or 'green'}", flush=True)
    PAGE.write_text(page(cleans, creeps, time.monotonic() - started), "utf-8")
    return int(any(one.red for one in cleans) or not all(one.said for one in creeps))


if __name__ == "__main__":
    sys.exit(main())
