"""What was read too late is known by addresses and bytes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firstbad.graph import Op, Value
from firstbad.stale import stale
from firstbad.trace import TraceWriter, open_trace

PLACES = (0x1000, 0x1040, 0x1000, 0x1040, 0x1020, 0x2000)  # of 64 bytes each: the fifth lies across two


def trace(path: Path, late: bool) -> Path:
    numbers = np.random.default_rng(1).standard_normal((len(PLACES), 16)).astype(np.float32)
    memory = np.zeros(0x2000, np.uint8)
    for place, array in zip(PLACES, numbers, strict=True):
        memory[place - 0x1000 :][:64] = array.view(np.uint8)
    with TraceWriter(path, role="candidate", engine="made", meta={}) as writer:
        for i, place in enumerate(PLACES):
            array = memory[place - 0x1000 :][:64].view(np.float32) if late else numbers[i]
            writer.value(Value(i, "encode", f"v{i}", "value", (16,), "float32", op=i, address=place, extent=64), array)
            writer.op(Op(i, "encode", f"v{i}", "add", writes=(i,)))
        writer.close(complete=True, death="")
    return path


@pytest.mark.parametrize("late", [True, False])
def test_overwritten_values_of_a_run_that_was_read_at_its_end(tmp_path: Path, late: bool) -> None:
    with open_trace(trace(tmp_path / "t.h5", late)) as opened:
        over = {number: value.name for number, value in stale(opened).items()}
    assert over == ({0: "v4", 1: "v4", 2: "v4", 3: "v4"} if late else {})
