"""The C engine's products against PyTorch's on the same cores, at the sizes of Whisper tiny.en: encoder, decode step.

    python tests/bench/kernels.py

Both in this process and in turns, medians; what is compared is checked to be the same numbers. Leaves out what is no
product: together it is a few per cent of a run.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad.native import cores
from firstbad.probes import c
from firstbad.toolchain import build

ENGINE = Path(c.__file__).parent / "engine"


@dataclass(frozen=True)
class Case:
    """One product both ways; `ours` writes into `y`, `theirs` returns the same numbers."""

    name: str
    flops: float
    y: np.ndarray
    ours: Callable[[], object]
    theirs: Callable[[], torch.Tensor]


def library() -> ctypes.CDLL:
    sources = [ENGINE / name for name in ("matmul.c", "pointwise.c", "blocks.c", "pool.c")]
    made = ctypes.CDLL(str(build(sources, flags=[*c.FLAGS, "-DBENCH"], include=(ENGINE.parent / "include",))))
    made.pool_start(cores())
    return made


def call(kernel: Any, *arguments: Any) -> None:
    kernel.restype = None
    kernel(
        *[
            ctypes.c_void_p(a.__array_interface__["data"][0]) if isinstance(a, np.ndarray) else ctypes.c_int64(a)
            for a in arguments
        ]
    )


def cases(made: ctypes.CDLL) -> Iterator[Case]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    def linear(where: str, rows: int, cols: int, inner: int) -> Case:
        x, w, b, y = normal(rows, inner), normal(cols, inner), normal(cols), np.empty((rows, cols), np.float32)
        tx, tw, tb = map(torch.from_numpy, (x, w, b))
        return Case(
            f"{where}: linear {rows} x {inner} -> {cols}",
            2.0 * rows * cols * inner,
            y,
            lambda: call(made.linear, y, x, w, b, rows, cols, inner),
            lambda: F.linear(tx, tw, tb),
        )

    def scores(where: str, H: int, Tq: int, Tk: int, K: int) -> Case:
        q, k, y = normal(Tq, H, K), normal(Tk, H, K), np.empty((H, Tq, Tk), np.float32)
        tq, tk = torch.from_numpy(q).transpose(0, 1), torch.from_numpy(k).permute(1, 2, 0)
        return Case(
            f"{where}: attention scores, {H} heads {Tq} x {Tk}",
            2.0 * H * Tq * Tk * K,
            y,
            lambda: call(made.attention_scores, y, q, k, H, H, Tq, Tk, K),
            lambda: torch.matmul(tq, tk),
        )

    def mix(where: str, H: int, Tq: int, Tk: int, K: int) -> Case:
        p, v, y = normal(H, Tq, Tk), normal(Tk, H, K), np.empty((Tq, H, K), np.float32)
        tp, tv = torch.from_numpy(p), torch.from_numpy(v).transpose(0, 1)
        return Case(
            f"{where}: attention mix, {H} heads {Tq} x {Tk}",
            2.0 * H * Tq * Tk * K,
            y,
            lambda: call(made.attention_mix, y, p, v, H, H, Tq, Tk, K),
            lambda: torch.matmul(tp, tv).transpose(0, 1),
        )

    for D, F_ in ((384, 384), (384, 1536), (1536, 384)):
        yield linear("encoder", 1500, F_, D)
    yield scores("encoder", 6, 1500, 1500, 64)
    yield mix("encoder", 6, 1500, 1500, 64)
    for D, F_ in ((384, 384), (384, 1536), (1536, 384), (384, 51864)):
        yield linear("decode step", 1, F_, D)
    for Tk in (100, 1500):
        yield scores("decode step", 6, 1, Tk, 64)
        yield mix("decode step", 6, 1, Tk, 64)


def measured(case: Case, seconds: float) -> tuple[float, float]:
    """(ours, theirs): median seconds of calls in turns."""
    case.ours()
    theirs = case.theirs().numpy()
    apart = float(np.abs(case.y.reshape(theirs.shape) - theirs).max() / np.abs(theirs).max())
    if not apart < 1e-4:
        raise RuntimeError(f"{case.name}: not the same numbers ({apart:.1e})")
    taken: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(taken[0]) < 5:
        for runs, run in zip(taken, (case.ours, case.theirs), strict=True):
            started = time.perf_counter()
            for _ in range(repeats := 1 if case.flops > 1e7 else 20):
                run()
            runs.append((time.perf_counter() - started) / repeats)
    return median(taken[0]), median(taken[1])


def rows(quick: bool = False) -> Iterator[tuple[str, float, str, str]]:
    torch.set_num_threads(cores())
    made = library()
    sums: dict[str, list[float]] = {}
    with torch.inference_mode():
        for case in cases(made):
            ours, theirs = measured(case, 0.3 if quick else 1.5)
            where = case.name.partition(":")[0]
            both = sums.setdefault(where, [0.0, 0.0])
            both[0], both[1] = both[0] + ours, both[1] + theirs
            yield f"{case.name}, C over PyTorch", ours / theirs, "x", ""
            if case.flops > 1e8:
                yield f"{case.name}, C", case.flops / ours / 1e9, "GFLOP/s", ""
    for where, (ours, theirs) in sums.items():
        yield f"{where}: one of each, C over PyTorch", ours / theirs, "x", ""
    made.pool_stop()


if __name__ == "__main__":
    for name, value, unit, _ in rows():
        print(f"{name:70} {value:8.3g} {unit}")
