"""Every measure of a pair (candidate c, reference r) from one pass over memory.

`measure` runs the C code (measures.c), or its NumPy twin (measures_numpy.py) where there is no compiler;
`measure_all` does so for the values of a whole trace. Numbers are
taken over the pairs in which both are finite and unmasked; where the two sides differ in that, the pair is
`mismatched`, and every error measure is then infinite, so that no comparison lets it pass. Leaves out judging.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from firstbad.errors import CompareError
from firstbad.measures_numpy import FIELDS, MANTISSA, ULP_EDGES, Part, measure_numpy
from firstbad.native import Native, address, cores, native, parallel, shares

#: types that go to the C code as they are
_SAME = {np.dtype(name): name for name in ("float32", "float16", "float64", "uint8", "int32", "int64")}
CODES = {"float32": 0, "float16": 1, "bfloat16": 2, "float64": 3, "bool": 4, "uint8": 4, "int32": 5, "int64": 6}

LARGE = 32 << 20
"""Bytes of a value from which on all threads take their share of it."""


class Sums(NamedTuple):
    """What a pass over memory adds up, in the order of the C code's enum; indices are flat, -1: none."""

    n: float
    finite: float
    mean_r: float
    m2_r: float  # Σ(r − mean r)²
    mean_e: float  # e = c − r
    c_er: float  # Σ(e − mean e)(r − mean r)
    ee: float
    cc: float
    cr: float
    max_e: float
    max_c: float
    max_r: float
    max_rel: float
    max_rel_at: float
    max_ulp: float
    max_ulp_at: float
    beyond: float
    beyond_at: float
    mismatched: float
    mismatched_at: float
    differ: float  # finite pairs that are not equal
    c_nan: float
    c_posinf: float
    c_neginf: float
    r_nan: float
    r_posinf: float
    r_neginf: float
    over_0: float  # how many finite pairs are more than 0, 1, 2, ... ulps apart (ULP_EDGES), where that was wished
    over_1: float
    over_2: float
    over_4: float
    over_16: float
    over_256: float
    over_65536: float


class Worst(NamedTuple):
    """One of the worst elements; the error of a mismatched one is infinite."""

    error: float
    at: int  # flat index
    candidate: float
    reference: float


class Nonfinite(NamedTuple):
    """How many elements of one side are not finite numbers; a masked value counts as −inf."""

    nan: int
    posinf: int
    neginf: int


@dataclass(frozen=True, slots=True)
class Slices:
    """Sums for each row (along the last axis) or each column (across all rows): five arrays."""

    length: int  # elements of one slice
    error: np.ndarray  # Σe
    error2: np.ndarray  # Σe²
    reference2: np.ndarray  # Σr²
    cross: np.ndarray  # Σe·r
    max_abs: np.ndarray  # max|e|; infinite where a mismatched element lies

    @property
    def rms(self) -> np.ndarray:
        """Root mean square of the error of each slice; infinite where a mismatched element lies."""
        rms: np.ndarray = np.sqrt(self.error2 / max(self.length, 1))
        return np.where(np.isinf(self.max_abs), np.inf, rms)

    @property
    def reference_rms(self) -> np.ndarray:
        rms: np.ndarray = np.sqrt(self.reference2 / max(self.length, 1))
        return rms

    @property
    def mean_error(self) -> np.ndarray:
        mean: np.ndarray = self.error / max(self.length, 1)
        return mean


@dataclass(frozen=True, slots=True)
class PairMeasures:
    """The measures of one pair of arrays."""

    shape: tuple[int, ...]
    dtype: str  # whose ulp is the unit
    sums: Sums
    histogram: bool
    worst: tuple[Worst, ...]  # the worst elements, worst first; equal ones are not listed
    rows: Slices | None = None
    columns: Slices | None = None

    @property
    def count(self) -> int:
        return int(self.sums.n)

    @property
    def finite(self) -> int:
        """Pairs in which both numbers are finite and unmasked; the numbers below are about them."""
        return int(self.sums.finite)

    @property
    def mismatched(self) -> int:
        """Pairs in which one side is NaN, ±inf or masked and the other is not so in the same way."""
        return int(self.sums.mismatched)

    @property
    def first_mismatched(self) -> int:
        return int(self.sums.mismatched_at)

    @property
    def differing(self) -> int:
        """Elements that are not equal as numbers (+0 equals −0, NaN equals NaN)."""
        return int(self.sums.differ + self.sums.mismatched)

    @property
    def equal(self) -> bool:
        return self.differing == 0

    @property
    def max_abs(self) -> float:
        return math.inf if self.sums.mismatched else self.sums.max_e

    @property
    def max_abs_finite(self) -> float:
        """Over the finite pairs alone, however many are mismatched."""
        return self.sums.max_e

    @property
    def max_abs_index(self) -> int:
        """Flat index of the worst element; −1: all are equal."""
        return self.worst[0].at if self.worst else -1

    @property
    def max_rel(self) -> float:
        """Largest |e|/|r|; a zero in the reference counts as the smallest normal number."""
        return self.sums.max_rel

    @property
    def max_rel_index(self) -> int:
        return int(self.sums.max_rel_at)

    @property
    def rms(self) -> float:
        """Root mean square of the error."""
        return self._error(math.sqrt(self.sums.ee / max(self.sums.finite, 1)))

    @property
    def reference_rms(self) -> float:
        return math.sqrt(self._rr / max(self.sums.finite, 1))

    @property
    def relative_l2(self) -> float:
        """|e|/|r|: 0 where both are zero, infinite where only the reference is."""
        if self.sums.ee == 0:
            return self._error(0.0)
        return self._error(math.sqrt(self.sums.ee / self._rr) if self._rr else math.inf)

    @property
    def cosine(self) -> float:
        """1 where both are zero; 0 where one is, or where anything is mismatched."""
        if self.sums.mismatched:
            return 0.0
        return 1 - self.cosine_distance

    @property
    def cosine_distance(self) -> float:
        """1 − cosine; of alike arrays by (|e|² − (|c| − |r|)²) / (2 |c| |r|), which has all digits where 1 − cosine has
        none left.
        """
        if self.sums.mismatched:
            return 1.0
        c, r = math.sqrt(self.sums.cc), math.sqrt(self._rr)
        if c == 0 or r == 0:
            return 0.0 if c == r else 1.0
        if self.sums.ee > 0.01 * self._rr:
            return min(2.0, max(0.0, 1 - self.sums.cr / (c * r)))
        gap = (2 * self._er + self.sums.ee) / (c + r)
        return max(0.0, (self.sums.ee - gap * gap) / (2 * c * r))

    @property
    def gain(self) -> float | None:
        """Slope of c on r; None where r does not vary enough to have one (under u² mean²)."""
        slope = self.gain_error
        return None if slope is None else 1 + slope

    @property
    def gain_error(self) -> float | None:
        """gain − 1 without cancellation: the slope of the error on r."""
        sums = self.sums
        u = 2.0 ** -(MANTISSA.get(self.dtype, 52) + 1)
        if sums.finite < 2 or not sums.m2_r / sums.finite > (u * sums.mean_r) ** 2:
            return None
        return sums.c_er / sums.m2_r

    @property
    def offset(self) -> float:
        """Intercept of c on r where there is a gain, else the mean error."""
        slope = self.gain_error
        return self.sums.mean_e - (slope or 0.0) * self.sums.mean_r

    @property
    def mean_error(self) -> float:
        return self._error(self.sums.mean_e)

    @property
    def max_ulp(self) -> float:
        """Largest distance in ulps of `dtype` (of integers: the difference)."""
        return self._error(self.sums.max_ulp)

    @property
    def max_ulp_index(self) -> int:
        return int(self.sums.mismatched_at if self.sums.mismatched else self.sums.max_ulp_at)

    @property
    def ulp_histogram(self) -> tuple[int, ...]:
        """Finite pairs that are 0, up to 1, 2, 4, 16, 256, 65536 and more ulps apart; () unless it was wished."""
        if not self.histogram:
            return ()
        over = [int(n) for n in (self.sums.finite, *self.sums[-len(ULP_EDGES) :], 0)]
        return tuple(a - b for a, b in pairwise(over))

    @property
    def beyond(self) -> int:
        """Elements that are not within atol + rtol |r|; a mismatched one never is."""
        return int(self.sums.beyond)

    @property
    def first_beyond(self) -> int:
        return int(self.sums.beyond_at)

    @property
    def candidate_nonfinite(self) -> Nonfinite:
        return Nonfinite(int(self.sums.c_nan), int(self.sums.c_posinf), int(self.sums.c_neginf))

    @property
    def reference_nonfinite(self) -> Nonfinite:
        return Nonfinite(int(self.sums.r_nan), int(self.sums.r_posinf), int(self.sums.r_neginf))

    def place(self, index: int) -> tuple[int, ...]:
        """A flat index as one index an axis."""
        return tuple(int(i) for i in np.unravel_index(index, self.shape)) if self.shape else ()

    @property
    def _rr(self) -> float:
        return self.sums.m2_r + self.sums.finite * self.sums.mean_r**2

    @property
    def _er(self) -> float:
        return self.sums.c_er + self.sums.finite * self.sums.mean_r * self.sums.mean_e

    def _error(self, number: float) -> float:
        return math.inf if self.sums.mismatched else number


def measure(
    candidate: np.ndarray,
    reference: np.ndarray,
    *,
    dtype: str = "",
    atol: float = 0.0,
    rtol: float = 0.0,
    histogram: bool = False,
    worst: int = 1,
    mask: float = -math.inf,
    rows: bool = False,
    columns: bool = False,
    threads: int | None = None,
) -> PairMeasures:
    """All measures of two arrays of the same shape.

    `dtype` is the engine's: it names the unit of the ulps, and "bfloat16" makes uint16 arrays bfloat16. `mask`: a value
    at or below it is masked, which is a kind of its own as NaN and ±inf are. `rows`, `columns`: sums for each row of
    the last axis and each column across all rows. `histogram`: count elements by their ulps.
    """
    if candidate.shape != reference.shape:
        raise CompareError(
            f"cannot compare {list(candidate.shape)} with {list(reference.shape)}: align the two values first"
        )
    c, c_type = _plain(candidate, dtype)
    r, r_type = _plain(reference, dtype)
    if (c_type in MANTISSA) != (r_type in MANTISSA) or (c_type not in MANTISSA and c_type != r_type):
        c, c_type, r, r_type = _same_type(c, r)
    unit, shift = _unit(c_type, r_type, dtype)
    sliced = rows or columns
    D = c.shape[-1] if sliced and c.ndim else c.size  # the last axis, or everything as one row
    T = c.size // D if D else 0
    step = D if sliced else 1  # elements that a thread's share may not cut
    flat_c, flat_r = c.reshape(-1), r.reshape(-1)
    library = native() if c_type in CODES else None

    def part(share: tuple[int, int]) -> Part:
        start, end = share[0] * step, share[1] * step
        shape = ((end - start) // D, D) if sliced and D else (1, end - start)
        pair = (flat_c[start:end], c_type, flat_r[start:end], r_type, shape, start)
        if library is None:
            return measure_numpy(*pair, atol, rtol, mask, shift, histogram, worst, rows, columns)
        return _compiled(library, *pair, atol, rtol, mask, shift, histogram, worst, rows, columns)

    parts = parallel(part, shares(T if sliced else D, 2 * c.nbytes, threads))
    out = _joined(parts)
    found = out[FIELDS:]
    if shift:
        out[Sums._fields.index("max_ulp")] *= 2.0**-shift
    return PairMeasures(
        c.shape,
        unit,
        Sums._make(out[:FIELDS]),
        histogram,
        tuple(
            Worst(found[i], int(found[i + 1]), found[i + 2], found[i + 3])
            for i in range(0, len(found), 4)
            if found[i + 1] >= 0
        ),
        _slices(D, [p.rows for p in parts], axis=1) if rows else None,
        _slices(T, [p.columns for p in parts], axis=0) if columns else None,
    )


def measure_all(
    pairs: Iterable[tuple[np.ndarray, np.ndarray]], *, threads: int | None = None, **how: Any
) -> list[PairMeasures]:
    """`measure(candidate, reference, **how)` of many pairs: small ones a thread each, large ones by all threads.

    The next pair is taken from `pairs` while others are measured, so what opens files may be a generator.
    """
    numbered, lock = enumerate(pairs), Lock()
    found: dict[int, PairMeasures] = {}
    large: list[tuple[int, tuple[np.ndarray, np.ndarray]]] = []

    def work(_: int) -> None:
        while True:
            with lock:
                i, pair = next(numbered, (-1, None))
            if pair is None:
                return
            if pair[0].nbytes > LARGE:
                large.append((i, pair))
            else:
                found[i] = measure(*pair, threads=1, **how)

    parallel(work, range(threads or cores()))
    found.update((i, measure(*pair, threads=threads, **how)) for i, pair in large)
    return [found[i] for i in range(len(found))]


def _compiled(
    library: Native,
    c: np.ndarray,
    c_type: str,
    r: np.ndarray,
    r_type: str,
    shape: tuple[int, int],
    base: int,
    atol: float,
    rtol: float,
    mask: float,
    shift: int,
    histogram: bool,
    worst: int,
    rows: bool,
    columns: bool,
) -> Part:
    out = np.empty(FIELDS + 4 * worst)
    row = np.empty((shape[0], 5)) if rows else None
    column = np.empty((5, shape[1])) if columns else None
    library.measure(
        *(
            address(c),
            CODES[c_type],
            address(r),
            CODES[r_type],
            *shape,
            base,
            atol,
            rtol,
            mask,
            shift,
            histogram,
            worst,
        ),
        *(address(out), None if row is None else address(row), None if column is None else address(column)),
    )
    return Part(out.tolist(), None if row is None else row.T, column)


def _plain(array: np.ndarray, dtype: str) -> tuple[np.ndarray, str]:
    """The array contiguous and in the machine's byte order, and the name of its type."""
    name = _SAME.get(array.dtype, "")
    if name and array.flags.c_contiguous:
        return array, name
    name = array.dtype.name
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "c":  # as pairs of numbers along a new last axis
        array = np.ascontiguousarray(array)[..., None].view(array.real.dtype)
        name = array.dtype.name
    if name == "bfloat16" or (name == "uint16" and dtype == "bfloat16"):
        array, name = array.view(np.uint16), "bfloat16"
    elif name == "bool":
        array = array.view(np.uint8)
    elif name not in CODES and array.dtype.kind in "iu" and name != "uint64":
        array, name = array.astype(np.int64), "int64"
    elif name not in CODES and name != "uint64":
        raise CompareError(f"cannot compare arrays of {array.dtype}: give numbers or booleans")
    return (array if array.flags.c_contiguous else np.ascontiguousarray(array)), name


def _same_type(c: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, str, np.ndarray, str]:
    """Integers of two types as int64, anything else as float64."""
    integers = np.result_type(c, r).kind in "biu"
    wide = np.int64 if integers else np.float64
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return c.astype(wide), np.dtype(wide).name, r.astype(wide), np.dtype(wide).name


@cache
def _unit(c_type: str, r_type: str, dtype: str) -> tuple[str, int]:
    """The type whose ulp is the unit, and log2 of that ulp in ulps of the arithmetic (float32 or float64)."""
    if c_type not in MANTISSA:
        return c_type, 0
    arithmetic = MANTISSA["float64" if "float64" in (c_type, r_type) else "float32"]
    unit = min(c_type, r_type, dtype if dtype in MANTISSA else c_type, key=MANTISSA.__getitem__)
    return unit, arithmetic - MANTISSA[unit]


def _joined(parts: Sequence[Part]) -> list[float]:
    """The sums of several threads as one, by Chan's update; the worst of all, worst first."""
    first, *others = (part.sums for part in parts)
    if not others:
        return first
    for other in others:
        first = [*_added(Sums._make(first[:FIELDS]), Sums._make(other[:FIELDS])), *first[FIELDS:], *other[FIELDS:]]
    tail = first[FIELDS:]
    ranked = sorted((tail[i : i + 4] for i in range(0, len(tail), 4) if tail[i + 1] >= 0), key=lambda w: (-w[0], w[1]))
    keep = (len(parts[0].sums) - FIELDS) // 4
    return first[:FIELDS] + [number for w in ranked[:keep] for number in w]


def _added(a: Sums, b: Sums) -> Sums:
    finite = a.finite + b.finite
    share = b.finite / finite if finite else 0.0
    dr, de = b.mean_r - a.mean_r, b.mean_e - a.mean_e
    total = {name: x + y for name, x, y in zip(Sums._fields, a, b, strict=True)}
    total |= {name: max(getattr(a, name), getattr(b, name)) for name in ("max_e", "max_c", "max_r")}
    for name in ("max_rel", "max_ulp"):
        best = b if getattr(b, name) > getattr(a, name) else a
        total |= {name: getattr(best, name), f"{name}_at": getattr(best, f"{name}_at")}
    for name in ("beyond_at", "mismatched_at"):
        total[name] = getattr(a if getattr(a, name) >= 0 else b, name)
    total["mean_r"] = a.mean_r + dr * share
    total["mean_e"] = a.mean_e + de * share
    total["m2_r"] = a.m2_r + b.m2_r + dr * dr * a.finite * share
    total["c_er"] = a.c_er + b.c_er + dr * de * a.finite * share
    return Sums(**total)


def _slices(length: int, parts: Iterable[np.ndarray | None], axis: int) -> Slices:
    """The five sums of all threads: rows one after the other, columns added."""
    arrays = [part for part in parts if part is not None]
    if axis == 1:
        return Slices(length, *np.concatenate(arrays, axis=1))
    sums = np.sum(arrays, axis=0)
    sums[4] = np.max(arrays, axis=0)[4]
    return Slices(length, *sums)
