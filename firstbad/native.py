"""The C code of this folder, compiled on first use and called through ctypes, which frees the interpreter lock.

Leaves out a wheel with binaries: who debugs kernels has a compiler, and who has none gets the NumPy way.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from firstbad.errors import UsageError
from firstbad.toolchain import build

_FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp-simd", "-Wno-psabi")
_SPLIT_BYTES = 1 << 20  # below this a thread costs more than it gives

T = TypeVar("T")
R = TypeVar("R")


class Native:
    """The library's functions with their types."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self.measure: Callable[..., None] = library.fb_measure
        library.fb_measure.argtypes = [
            *(pointer, ctypes.c_int, pointer, ctypes.c_int, number, number, number),
            *(real, real, real, ctypes.c_int, ctypes.c_int, ctypes.c_int, pointer, pointer, pointer),
        ]
        library.fb_measure.restype = None
        self._hash_words: Callable[..., int] = library.fb_hash_words
        library.fb_hash_words.argtypes = [pointer, number, ctypes.c_uint64]
        library.fb_hash_words.restype = ctypes.c_uint64

    def hash_words(self, data: np.ndarray) -> int:
        """Sum of the mixed whole words of contiguous bytes, see hashing.py."""
        start = address(data)
        parts = shares(data.nbytes // 8, data.nbytes)
        sums = parallel(lambda part: self._hash_words(start + 8 * part[0], part[1] - part[0], part[0]), parts)
        return sum(sums) & (2**64 - 1)


@cache
def native() -> Native | None:
    """The compiled library, or None where there is no compiler that can make it."""
    folder = Path(__file__).parent
    for flags in ((*_FLAGS, "-march=native"), _FLAGS):
        try:
            return Native(build([folder / "measures.c", folder / "hash.c"], flags=flags))
        except (UsageError, OSError):
            continue
    return None


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@cache
def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(count: int, nbytes: int, threads: int | None = None) -> list[tuple[int, int]]:
    """`count` things of `nbytes` in all cut into (start, end), one a thread; a single one where they are small."""
    if nbytes < 2 * _SPLIT_BYTES:
        return [(0, count)]
    n = max(1, min(threads or cores(), nbytes // _SPLIT_BYTES, count))
    return [(count * i // n, count * (i + 1) // n) for i in range(n)]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="firstbad")


def parallel(work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """`work` on every part, together; the calling thread does the first."""
    if len(parts) == 1:
        return [work(parts[0])]
    futures: list[Any] = [_pool().submit(work, part) for part in parts[1:]]
    return [work(parts[0]), *(future.result() for future in futures)]
