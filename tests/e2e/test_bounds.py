"""Memory that a comparison takes: bounded by a block of a value, however large the traces are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from firstbad.graph import Value
from firstbad.measures import measure
from firstbad.trace import TraceWriter, open_trace

CHAINS = Path(__file__).parents[1] / "bench" / "chains.py"


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all of a process's own memory on Linux alone")
def test_traces_of_more_than_the_memory(tmp_path: Path) -> None:
    """300 MB of traces under a limit of which the imports take a fifth; whole values would take more than it."""
    sys.path.insert(0, str(CHAINS.parent))
    try:
        from chains import make  # type: ignore[import-not-found]  # a script of the bench
    finally:
        sys.path.pop(0)
    ours, theirs = make(tmp_path, 1, (16, 512, 1024))
    command = [sys.executable, str(CHAINS), str(ours), str(theirs), str(800 << 20)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (found["verdict"], found["compared"]) == ("match", 4)
    assert found["bytes"] > 300e6
    assert found["anonymous"] < 500e6 + 33.6e6


@pytest.mark.slow
def test_a_value_of_more_than_two_to_the_31(tmp_path: Path) -> None:
    """Two sparse files of 2.2 billion bytes each: written, mapped and measured, the last element the only wrong one."""
    n = (1 << 31) + 4097
    for side in ("reference", "candidate"):
        with TraceWriter(tmp_path / f"{side}.h5", side, "c") as writer:
            writer.value(Value(0, "encode", "bits", "value", (1,), "uint8"), np.zeros(1, np.uint8))
        with h5py.File(tmp_path / f"{side}.h5", "r+") as file:  # nothing is written to what is allocated late
            del file["values/encode/bits"]
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space = h5py.h5s.create_simple((n,))
            h5py.h5d.create(file["values/encode"].id, b"bits", h5py.h5t.NATIVE_UINT8, space, plan)
            rows = file["graph/values"][:]
            rows["shape"] = f"[{n}]".encode()
            file["graph/values"][:] = rows
            if side == "candidate":
                file["values/encode/bits"][n - 1] = 7
    assert sum((tmp_path / f"{side}.h5").stat().st_blocks for side in ("reference", "candidate")) * 512 < 1e9
    with open_trace(tmp_path / "reference.h5") as ours, open_trace(tmp_path / "candidate.h5") as theirs:
        r, c = ours.array(ours.graph.values[0]), theirs.array(theirs.graph.values[0])
        assert r.shape == (n,)
        m = measure(c, r)
        assert (m.count, m.differing, m.max_abs, m.max_abs_index) == (n, 1, 7, n - 1)
