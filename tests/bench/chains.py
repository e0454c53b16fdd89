"""Two traces of any size without a model, and one comparison of them in a process of its own that says what it took.

    python tests/bench/chains.py REFERENCE.h5 CANDIDATE.h5 LIMIT   (prints seconds and memory as JSON)

A chain of normalise, gelu, halve, add, recorded from PyTorch; the candidate's file is the reference's with other words
in it, so that nothing is wrong. Memory is what the process owns (RssAnon, sampled); pages of the mapped files are the
system's to take back, and given beside it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit


class Chain(nn.Module):
    """Four values a link, all of the input's shape."""

    def __init__(self, links: int) -> None:
        super().__init__()
        self.links = links

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.links):
            x = x * 0.5 + F.gelu(F.layer_norm(x, x.shape[-1:]))
        return x


def make(folder: Path, links: int, shape: tuple[int, ...]) -> tuple[Path, Path]:
    """(reference.h5, candidate.h5) with 4 x links values of `shape`."""
    import h5py

    from firstbad.reference.function import record
    from firstbad.trace import TraceWriter

    ours, theirs = folder / "reference.h5", folder / "candidate.h5"
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))
    with TraceWriter(ours, "reference", "torch") as writer:
        record(Chain(links), [("x", x)], writer)
    shutil.copyfile(ours, theirs)
    with h5py.File(theirs, "r+") as file:
        file.attrs["role"] = "candidate"
    return ours, theirs


@dataclass
class Watch:
    """The most memory that this process held, sampled every few milliseconds, in bytes."""

    anonymous: int = 0
    resident: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()

    def _look(self) -> None:
        while not self.over.wait(0.004):
            with Path("/proc/self/status").open(encoding="utf-8") as file:
                sizes = {k: v for k, _, v in (line.partition(":") for line in file) if k.startswith(("Rss", "VmRSS"))}
            self.anonymous = max(self.anonymous, int(sizes["RssAnon"].split()[0]) << 10)
            self.resident = max(self.resident, int(sizes["VmRSS"].split()[0]) << 10)


def child(ours: Path, theirs: Path, limit: int = 0) -> dict[str, Any]:
    """`main` in a new process; `limit`: bytes of its own memory (RLIMIT_DATA), beyond which it dies."""
    command = [sys.executable, __file__, str(ours), str(theirs), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the comparison died with {done.returncode}: {done.stderr[-500:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main(argv: list[str]) -> int:
    from firstbad.allocator import keep_large_blocks
    from firstbad.comparison import compare
    from firstbad.reference.executor import Executor
    from firstbad.trace import open_trace

    if int(argv[2]):
        resource.setrlimit(resource.RLIMIT_DATA, (int(argv[2]), int(argv[2])))
    keep_large_blocks()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with Watch() as watch:
        started, cpu = time.perf_counter(), time.process_time()
        with open_trace(argv[0]) as ours, open_trace(argv[1]) as theirs:
            result = compare(ours, theirs, Executor({})).result
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    bytes_ = sum(Path(path).stat().st_size for path in argv[:2])
    print(
        json.dumps(
            {
                "verdict": result.verdict,
                "compared": sum(result.coverage.compared.values()),
                "seconds": seconds,
                "cpu": cpu,
                "anonymous": watch.anonymous,
                "resident": watch.resident,
                "bytes": bytes_,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
