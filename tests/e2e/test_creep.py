"""Noise turns no gate red, and an error of twice the noise floor always does: on an engine built with one value of it
made noisier, in its source, than its arithmetic is."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from firstbad import session
from firstbad.cli import main
from firstbad.config import Config, load
from firstbad.finding import CaseResult
from firstbad.gate import gate

from .conftest import CLIP

ENGINE = Path(__file__).parents[2] / "probes" / "engine"

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


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("creep")
    shutil.copy(CLIP, folder)
    (folder / "firstbad.toml").write_text(CASE)
    (folder / "noisy.py").write_text(NOISY)
    shutil.copytree(ENGINE, folder / "engine")
    runtime = folder / "engine" / "runtime.c"
    text = runtime.read_text()
    for line, more in (("        kernel.run(&call);", "\n        creep(op->out.name, out);"),):
        assert text.count(line) == 1
        text = text.replace(line, line + more)
    assert text.count("\nvoid run_step(") == 1
    runtime.write_text(text.replace("\nvoid run_step(", f"{CREEP}\nvoid run_step("))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        assert main(["accept", "--yes", "--jobs", "1", "--repeat", "3"]) == 0
    return load(folder / "firstbad.toml")


def run(config: Config, **changes: object) -> CaseResult:
    (case,) = config.cases
    options = {k: v for k, v in changes.items() if k in ("threads", "cflags")}
    others = {k: v for k, v in changes.items() if k not in options}
    case = replace(case, options=replace(case.options, **options), **others)  # type: ignore[arg-type]
    return gate(config, [case], config.folder / "out", jobs=1).cases[0]


def clean(config: Config, count: int, seed: int) -> list[str]:
    draw, red = random.Random(seed), []
    for _ in range(count):
        flags, threads, variables = draw.choice(FLAGS), draw.choice([1, 2, 3, 4]), draw.choice(ENVIRONMENTS)
        result = run(config, cflags=tuple(flags.split()), threads=threads, environment=variables)
        red += [f"{flags} {threads} {variables}: {finding.message}" for finding in result.red]
    return red


def creeping(config: Config, count: int, seed: int) -> list[str]:
    """The values whose planted error was not red."""
    (case,) = config.cases
    spec = replace(case.spec, audio=case.audio[0])
    values = session.diff(spec, "c", config.folder / "floors", case.options, budget=0).result.values
    floors: dict[str, float] = {}
    for name, floor in zip(values["name"], values["noise_floor"], strict=True):
        if floor:
            floors[name] = max(floor, floors.get(name, 0.0))
    draw, missed = random.Random(seed), []
    names = draw.sample(sorted(name for name in floors if not name.startswith("generate")), count)
    for n, name in enumerate(names):
        size = draw.choice([2.0, 2.25, 2.5]) * floors[name]
        assert size < 1e-5  # allclose, at its defaults, is blind to it
        result = run(config, candidate=f"noisy.py:{name}@{size!r}@{n}")
        if not any(finding.value == name for finding in result.red):
            missed.append(json.dumps([name, size, [finding.message for finding in result.red]]))
    return missed


def test_some_clean_variations_and_some_creeping_errors(config: Config) -> None:
    assert clean(config, 2, seed=1) == []
    assert creeping(config, 2, seed=2) == []


@pytest.mark.slow
def test_a_hundred_clean_variations(config: Config) -> None:
    assert clean(config, 100, seed=3) == []


@pytest.mark.slow
def test_thirty_creeping_errors(config: Config) -> None:
    assert creeping(config, 30, seed=4) == []
