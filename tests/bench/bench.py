"""All figures of this folder in one table, with the limits of the machine measured in the same run.

    python tests/bench/bench.py [--quick] [--only NAME,NAME] [--minutes N]

Every script here that has `rows(quick)` is asked for its figures, each (name, value, unit, goal); a value of None is
one that could not be measured, and its name says why. Each is a process of its own, whose rows count as they come: one
that dies or runs out of time costs what it had not said yet, and a row tells. Writes result.json and RESULTS.md beside
itself.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firstbad.machine import environment
from firstbad.run import CaptureOptions

HERE = Path(__file__).parent
MINUTES = 18.0
"""What the whole may take: a script that is still at work when its share is used up is stopped."""

SHARES = {
    "kernels": 1.0,
    "tracing": 1.0,
    "measuring": 2.0,
    "adapters": 2.0,
    "capturing": 2.0,
    "ggml": 2.0,
    "gating": 2.5,
    "explaining": 3.0,
    "growing": 3.0,
    "bisecting": 4.0,  # the last: it has all that is left
}
"""What a script gets of it, in parts; 1.5 where nothing is said. What others leave over is shared by the rest."""

STREAM = """
#include <stddef.h>
#include <stdint.h>
uint64_t read_all(const uint64_t *p, size_t n) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i + 4 <= n; i += 4) a += p[i], b ^= p[i + 1], c += p[i + 2], d ^= p[i + 3];
    return a + b + c + d;
}
"""


@dataclass(frozen=True)
class Row:
    """One figure; `goal` is text like "<= 1.5", "" where there is none."""

    script: str
    name: str
    value: float | None
    unit: str
    goal: str

    @property
    def met(self) -> bool | None:
        sign, _, number = self.goal.partition(" ")
        if self.value is None or sign not in ("<=", ">="):
            return None
        return self.value <= float(number) if sign == "<=" else self.value >= float(number)


def best(run: Any, repeat: int) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def plain_sum() -> Callable[[int, int], int]:
    """(address, words of eight bytes) → a sum over them, as fast as the machine reads."""
    import ctypes

    from firstbad.toolchain import build

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stream.c"
        source.write_text(STREAM, "utf-8")
        library = ctypes.CDLL(str(build([source], flags=("-O3", "-march=native"))))
    library.read_all.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.read_all.restype = ctypes.c_uint64
    read: Callable[[int, int], int] = library.read_all
    return read


def read_bandwidth(megabytes: int = 512) -> float:
    """GB/s of a plain sum over memory on all cores."""
    import numpy as np

    from firstbad.native import address, cores, parallel, shares

    total = plain_sum()
    data = np.ones(megabytes << 17, np.uint64)
    start = address(data)
    parts = shares(len(data), data.nbytes, cores())
    seconds = best(lambda: parallel(lambda part: total(start + 8 * part[0], part[1] - part[0]), parts), 7)
    return float(data.nbytes / seconds / 1e9)


def write_speed(folder: Path, nbytes: int = 256 << 20, piece: int = 4 << 20) -> float:
    """GB/s of plain writes of the same size into a new file, as the system takes them (no sync)."""
    data, path = os.urandom(piece), folder / "raw"

    def write() -> None:
        path.unlink(missing_ok=True)
        with path.open("wb", buffering=0) as file:
            for _ in range(nbytes // piece):
                file.write(data)

    speed = nbytes / best(write, 5) / 1e9
    path.unlink()
    return speed


def figures(name: str, quick: bool) -> Iterator[Row]:
    """The rows of one script, as tuples or as mappings."""
    module = importlib.import_module(name)
    found = getattr(module, "rows", None)
    if found is None:
        return
    for row in found(quick) if inspect.signature(found).parameters else found():
        fields = row if isinstance(row, Mapping) else dict(zip(("name", "value", "unit", "goal"), row, strict=False))
        value = fields.get("value")
        yield Row(
            name,
            str(fields["name"]),
            None if value is None else float(value),
            str(fields.get("unit", "")),
            str(fields.get("goal") or ""),
        )


def page(rows: list[Row], machine: Mapping[str, str], limits: Mapping[str, float]) -> str:
    """RESULTS.md."""
    lines = ["# What it takes", "", "Made by `make bench`; each figure is said by the script of its name.", ""]
    lines += [f"- {name}: {text}" for name, text in machine.items()]
    lines += [f"- {name}: {value:.1f} GB/s" for name, value in limits.items()]
    for script in dict.fromkeys(row.script for row in rows):
        lines += ["", f"## {script}", "", "| what | figure | goal | |", "|---|---:|---:|---|"]
        for row in (r for r in rows if r.script == script):
            figure = "-" if row.value is None else f"{row.value:.4g} {row.unit}".strip()
            lines.append(
                f"| {row.name} | {figure} | {row.goal} | {({True: 'met', False: 'missed'}).get(row.met, '')} |"
            )
    return "\n".join(lines) + "\n"


def asked(name: str, quick: bool, seconds: float, limits: Mapping[str, float]) -> Iterator[Row]:
    """The rows of a script as it says them, in a process of its own, and one more that says why it ended early."""
    # what one script holds or imports must not weigh on the next; what it prints goes past the rows
    code = f"import bench; bench.say({name!r}, {quick})"
    environ = {**os.environ, "READ_GBS": str(limits["memory read"]), "WRITE_GBS": str(limits["file write"])}
    with tempfile.TemporaryDirectory() as scratch:  # also of what a script leaves behind that is stopped
        said, errors = Path(scratch) / "rows", Path(scratch) / "errors"
        with errors.open("wb") as stderr:
            command = ["timeout", "--kill-after=10", f"{seconds:.0f}", sys.executable, "-c", code]
            done = subprocess.run(
                command,
                cwd=HERE,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                check=False,
                env={**environ, "ROWS": str(said), "TMPDIR": scratch},
            )
        for line in said.read_text("utf-8").splitlines() if said.is_file() else ():
            if line.endswith("}"):
                yield Row(**json.loads(line))
        if done.returncode:
            lines = errors.read_text("utf-8", "replace").strip().splitlines()
            stopped = done.returncode in (124, 137)
            reason = f"not done after {seconds:.0f} s" if stopped else (lines or [f"died with {done.returncode}"])[-1]
            yield Row(name, f"the rest is not measured: {reason[:200]}", None, "", "")


def say(name: str, quick: bool) -> None:
    """The script's rows into the file that ROWS names, each when it is known."""
    with Path(os.environ["ROWS"]).open("w", encoding="utf-8") as file:
        for row in figures(name, quick):
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()


def seconds_for(name: str, left: Sequence[str], remaining: float) -> float:
    """What a script may take when so many seconds are left for it and for those after it: its share and half of it
    again, as not every one needs its own."""
    share = SHARES.get(name, 1.5) / sum(SHARES.get(other, 1.5) for other in left)
    return max(20.0, remaining * min(1.0, 1.5 * share))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a short look, which writes nothing")
    parser.add_argument("--only", default="", help="names of scripts, with commas")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="what the whole may take")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    scripts = [p.stem for p in sorted(HERE.glob("*.py")) if p.stem != "bench" and "def rows(" in p.read_text("utf-8")]
    chosen = [name for name in scripts if name in args.only.split(",") or not args.only]
    # the quick ones first, so that what they leave over goes to those that may need it
    chosen.sort(key=lambda name: (SHARES.get(name, 1.5), name))
    begun = time.monotonic()
    machine = environment("c", CaptureOptions(), {})
    with tempfile.TemporaryDirectory() as folder:
        limits = {"memory read": read_bandwidth(), "file write": write_speed(Path(folder))}
    rows: list[Row] = []
    for at, name in enumerate(chosen):
        started = time.monotonic()
        allowed = seconds_for(name, chosen[at:], 60 * args.minutes - (started - begun))
        for row in asked(name, args.quick, allowed, limits):
            rows.append(row)
            value = "-" if row.value is None else f"{row.value:.4g}"
            print(f"{name:12} {row.name:80} {value:>10} {row.unit:12} {row.goal}", flush=True)
        print(f"{name:12} took {time.monotonic() - started:.0f} s of {allowed:.0f}", flush=True)
        if not args.quick and not args.only:  # after each script, so that a run that is stopped leaves what it has
            result = {"machine": machine, "limits": limits, "rows": [{**asdict(r), "met": r.met} for r in rows]}
            (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
            (HERE / "RESULTS.md").write_text(page(rows, machine, limits), "utf-8")
    print(f"all in {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
