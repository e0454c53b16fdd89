"""Writing a trace: against plain writes of the same bytes, hashes included, and small values by their number."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from bench import write_speed  # the same folder of scripts

from firstbad.graph import Value
from firstbad.hashing import hash_array
from firstbad.trace import TraceWriter


def taken(path: Path, arrays: list[np.ndarray]) -> float:
    started = time.perf_counter()
    with TraceWriter(path, "candidate", "bench") as writer:
        for i, array in enumerate(arrays):
            writer.value(Value(i, "encode", f"v.{i}", "value", array.shape, "float32", hash=hash_array(array)), array)
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds


def rows(quick: bool = False) -> Iterator[tuple[str, float | None, str, str]]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.h5"
        for megabytes in (1, 4, 32):
            arrays = [rng.standard_normal(megabytes << 18, np.float32) for _ in range(256 // megabytes)]
            nbytes = sum(a.nbytes for a in arrays)
            ratios = []
            for _ in range(3 if quick else 7):  # in turns, as the disk's mood changes
                raw = write_speed(path.parent, nbytes, megabytes << 20)
                ratios.append(nbytes / taken(path, arrays) / 1e9 / raw)
            yield (
                f"writing values of {megabytes} MB with hashes, against plain writes",
                median(ratios),
                "of raw",
                ">= 0.75",
            )
        small = [rng.standard_normal(64, np.float32) for _ in range(2_000 if quick else 10_000)]
        best = min(taken(path, small) for _ in range(3))
        yield f"{len(small)} values of 256 bytes", len(small) / best, "values/s", ">= 10000"
    yield "raw writes at the start of the run", float(os.environ.get("WRITE_GBS", "nan")), "GB/s", ""
