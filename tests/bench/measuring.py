"""The measures of a pair against memory's read bandwidth, and against what others take for the same values.

Rivals run in this interpreter, or in the one that RIVALS names (`RIVALS=venv/bin/python make bench`) where their
packages may not live beside ours.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench import plain_sum  # the same folder of scripts

from firstbad.native import address, cores, parallel

Figure = tuple[str, float | None, str, str]

POLYGRAPHY = """
import json, sys, time, io, contextlib
import numpy as np
from collections import OrderedDict
from polygraphy.comparator import Comparator, CompareFunc, RunResults, IterationResult
from polygraphy.logger import G_LOGGER
c, r = np.load(sys.argv[1]), np.load(sys.argv[2])
n = int(sys.argv[3])
def run(name, arrays):
    outputs = OrderedDict((f"value_{i}", a) for i, a in enumerate(np.array_split(arrays, n)))
    return RunResults([(name, [IterationResult(outputs, runner_name=name)])])
results = run("r", r)
results.extend(run("c", c))
text = io.StringIO()
started = time.perf_counter()
with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
    func = CompareFunc.simple(atol=1e-5, rtol=1e-5, check_error_stat="max")
    ok = Comparator.compare_accuracy(results, compare_func=func)
seconds = time.perf_counter() - started
peak = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
print(json.dumps([seconds, len(text.getvalue().splitlines()), peak]))
"""

MSPROBE = """
import json, sys, time
import numpy as np
from msprobe.core.compare.npy_compare import compare_ops_apply
c, r, n = np.load(sys.argv[1]), np.load(sys.argv[2]), int(sys.argv[3])
pairs = list(zip(np.array_split(c, n), np.array_split(r, n)))
compare_ops_apply(pairs[0][0][:99], pairs[0][1][:99], False, "")
started = time.perf_counter()
found = [compare_ops_apply(x, y, False, "") for x, y in pairs]
print(json.dumps([time.perf_counter() - started, len(found[0][0])]))
"""
"""Its metrics of a pair, as its comparison of two dumps calls them: the files of the dumps and the table left out."""


def seconds(run: Callable[[], object], repeat: int = 5) -> float:
    """Median of several runs, after one that warms up."""
    run()
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return median(taken)


def naive(c: np.ndarray, r: np.ndarray) -> list[float]:
    """The usual metrics the usual way."""
    d = c.astype(np.float64) - r
    return [
        float(np.abs(d).max()),
        float((np.abs(d) / np.maximum(np.abs(r), 1e-30)).max()),
        float(np.sqrt((d**2).mean())),
        float(np.linalg.norm(d) / np.linalg.norm(r)),
        float(c.ravel() @ r.ravel() / np.linalg.norm(c) / np.linalg.norm(r)),
        *np.polyfit(r.ravel().astype(np.float64), c.ravel(), 1),
        float((~np.isfinite(c)).sum()),
    ]


def rival(code: str, *arguments: str) -> tuple[Any, str]:
    """What the code printed, or why not."""
    python = os.environ.get("RIVALS", sys.executable)
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["died"])[-1][:120]
    return json.loads(done.stdout.splitlines()[-1]), ""


def in_memory(read: float, quick: bool) -> Iterator[Figure]:
    from firstbad.measures import measure

    rng = np.random.default_rng(0)
    r = rng.standard_normal(((8 if quick else 64) << 20) // 384 * 384, np.float32).reshape(-1, 384)
    c = r + np.float32(1e-6) * rng.standard_normal(r.shape, np.float32)
    GB = 2 * c.nbytes / 1e9
    core = GB / seconds(lambda: measure(c, r), 7)
    full = GB / seconds(
        lambda: measure(c, r, atol=1e-5, rtol=1e-5, histogram=True, worst=8, rows=True, columns=True), 7
    )
    yield f"core measures of {GB * 1e3:.0f} MB in memory", core, "GB/s", ""
    yield "core measures against a plain sum", core / read, "of read", ">= 0.8"
    yield "full set against a plain sum", full / read, "of read", ">= 0.5"
    half = slice(0, max(1, len(c) // 32))
    small = 2 * c[half].nbytes / 1e9
    tens = torch.from_numpy(c[half]), torch.from_numpy(r[half])
    yield "times faster than NumPy's naive metrics", seconds(lambda: naive(c[half], r[half]), 1) * core / small, "x", ""
    close = seconds(lambda: torch.testing.assert_close(*tens, atol=1.0, rtol=1.0), 3)
    yield "times faster than torch.testing.assert_close (which says only yes or no)", close * core / small, "x", ""


def file_limits(paths: list[Path], piece: int = 256 << 10) -> tuple[float, float]:
    """GB/s at which all cores read files that the system holds in memory: by mapping them, and by copying pieces."""
    total = plain_sum()

    def by_map(path: Path, start: int, end: int) -> None:
        words = np.memmap(path, np.uint64, "r", 0, (path.stat().st_size // 8,))[start // 8 : end // 8]
        total(address(words), len(words))

    def by_copy(path: Path, start: int, end: int) -> None:
        buffer = np.empty(piece, np.uint8)
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            for at in range(start, end, piece):
                total(address(buffer), file.readinto(buffer[: min(piece, end - at)]) // 8)

    sizes = [path.stat().st_size // 8 * 8 for path in paths]
    n = cores()

    def share(i: int, way: Callable[[Path, int, int], None]) -> None:
        for path, size in zip(paths, sizes, strict=True):
            way(path, size * i // n // 8 * 8, size * (i + 1) // n // 8 * 8)

    mapped = seconds(lambda: parallel(lambda i: share(i, by_map), range(n)))
    copied = seconds(lambda: parallel(lambda i: share(i, by_copy), range(n)))
    return sum(sizes) / 1e9 / mapped, sum(sizes) / 1e9 / copied


def from_files(quick: bool) -> Iterator[Figure]:
    """120 values, 256 MB a trace: the core measures and a verdict, mapped files, imports and start left out."""
    from firstbad.graph import Value
    from firstbad.measures import measure_all
    from firstbad.trace import TraceWriter, open_trace

    n, each = (12 if quick else 120), 557_000
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        r = rng.standard_normal(n * each, np.float32)
        c = r + np.float32(1e-5) * rng.standard_normal(n * each, np.float32)
        for role, arrays in (("reference", r), ("candidate", c)):
            with TraceWriter(folder / f"{role}.h5", role, "bench") as writer:
                for i, array in enumerate(np.array_split(arrays, n)):
                    writer.value(Value(i, "encode", f"value_{i}", "value", array.shape, "float32"), array)
            np.save(folder / f"{role}.npy", arrays)

        def ours() -> list[bool]:
            with open_trace(folder / "reference.h5") as a, open_trace(folder / "candidate.h5") as b:
                pairs = ((b.array(v), a.array(v)) for v in a.graph.values)
                return [m.beyond == 0 for m in measure_all(pairs, atol=1e-5, rtol=1e-5)]

        taken = seconds(ours)
        yield f"measures and verdict of {n} values from two files", taken, "s", ""
        GBS = 2 * r.nbytes / 1e9 / taken
        yield "from files by memory map", GBS, "GB/s", ">= 8"
        mapped, copied = file_limits([folder / "reference.h5", folder / "candidate.h5"])
        yield "a plain sum of the same two files, mapped anew each time: what the machine gives", mapped, "GB/s", ""
        yield "a plain sum of the same two files, read into a buffer that stays in the cache", copied, "GB/s", ""
        yield "from files, of the faster of these two", GBS / max(mapped, copied), "", ""
        names = (str(folder / "candidate.npy"), str(folder / "reference.npy"), str(n))
        found, why = rival(POLYGRAPHY, *names)
        if found is None:
            yield f"times faster than Polygraphy: not measured ({why})", None, "x", ">= 100"
        else:
            yield "Polygraphy's compare_accuracy on the same values", found[0], "s", ""
            yield "times faster than Polygraphy", found[0] / taken, "x", ">= 100"
            yield "lines that Polygraphy prints", found[1], "lines", ""
            yield "Polygraphy's peak memory", found[2] / 1e3, "MB", ""
        found, why = rival(MSPROBE, *names)
        if found is None:
            yield f"times faster than msprobe: not measured ({why})", None, "x", ""
        else:
            yield f"msprobe's {found[1]} metrics of the same values, no files", found[0], "s", ""
            yield "times faster than msprobe", found[0] / taken, "x", ""


def rows(quick: bool = False) -> Iterator[Figure]:
    yield from in_memory(float(os.environ.get("READ_GBS", "nan")), quick)
    yield from from_files(quick)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    yield "peak of this script, arrays in memory included", peak, "MB", ""
