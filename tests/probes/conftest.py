"""A small Whisper with random weights and random features: what every test of the engine runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.probes import c
from firstbad.probes.plan import Plan, save
from firstbad.reference import whisper
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.trace import Trace, open_trace

POSITIONS = 50
OPTIONS = CaptureOptions(max_tokens=6, threads=2, timeout=60)


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    spec = ModelSpec("whisper", random_weights=3, size="micro", audio_context=POSITIONS)
    features = np.random.default_rng(5).standard_normal((1, 80, 2 * POSITIONS)).astype(np.float32)
    return replace(whisper.prepare(spec), inputs={"input_features": features})


@pytest.fixture(scope="session")
def plan(prepared: Prepared) -> Plan:
    return c.plan_for("", prepared)


Capture = Callable[..., tuple[Trace, RunOutput]]


@pytest.fixture
def capture(prepared: Prepared, tmp_path: Path) -> Capture:
    """Runs the engine, with a plan of its own where one is given."""
    count = iter(range(1000))

    def capture(plan: Plan | None = None, options: CaptureOptions = OPTIONS, **more: Any) -> tuple[Trace, RunOutput]:
        path = tmp_path / f"{next(count)}.h5"
        argument = ""
        if plan is not None:
            argument = str(path.with_suffix(".json"))
            save(plan, Path(argument))
        output = c.capture(argument, prepared, path, options, **more)
        return open_trace(path), output

    return capture
