"""The sums over one value that tell a fault from rounding: whole, rows, columns, groups (heads) and the worst element.

The loop is `judge.c`, compiled on first use; the NumPy twin below is its oracle and stands in where there is no
compiler. Leaves out what is too large: that is noise.py.
"""

from __future__ import annotations

import ctypes
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.errors import UsageError
from firstbad.toolchain import build

if TYPE_CHECKING:
    from numpy.typing import NDArray

MASKED = -9.0e8  # -inf, the dtype's lowest and -1e9 alike: exp gives 0
SMALLEST_NORMAL = 1.1754944e-38  # an engine may flush what is smaller to zero
_SLOTS = 16
_THREADS = min(8, os.cpu_count() or 1)
_LARGE = 1 << 18  # elements from which threads pay


@dataclass(frozen=True)
class Slice:
    """The worst of several slices: root mean square of q, and of the twin's p over the twin's own worst slice."""

    candidate: float
    twin: float
    index: int
    count: int  # how many slices there are
    length: int  # elements in each


@dataclass(frozen=True)
class Sums:
    """One value judged: q = error / (u x condition), p the same for the twin; no units, no limits.

    `gain`, `offset`: slope of the error on the value and its mean, in units of u (of the condition for the offset).
    """

    count: int
    candidate: float  # rms of q over the whole value
    twin: float
    rows: Slice
    columns: Slice
    groups: Slice
    element: float  # largest |q|
    element_twin: float
    element_index: int  # flat
    gain: float
    gain_twin: float
    gain_weight: float  # sum of (value / condition)^2: what the gain rests on
    offset: float
    gains: Slice  # the largest |gain| of a group; its `length` is the weight that it rests on, rounded
    offsets: Slice  # the largest |mean of q| of a column
    last: Slice  # the last row of each group (the newest token): root mean square of q, as `rows`
    bad_nonfinite: int  # elements where one side is NaN or infinite and the other is not
    bad_masked: int  # elements where one side is masked and the other is not
    first_bad: int  # flat index of the first of those; -1: none
    local_error: float  # |candidate - expected| / |expected|
    twin_error: float
    row_rms: NDArray[np.float64]  # [G * R]
    column_rms: NDArray[np.float64]  # [G, C]


def judge(
    candidate: NDArray[np.float32],
    expected: NDArray[np.float64],
    twin: NDArray[np.float32],
    scale: NDArray[np.float32],
    *,
    u: float,
    exact: bool = False,
    heads: int = 1,
) -> Sums:
    """Sums over a value: all arrays of one shape (`scale` may also be a single number), seen as [G, R, C].

    `u`: unit roundoff of the candidate's dtype; `scale`: the condition of each element, for u = 1;
    `exact`: the op moves values and computes nothing, so that any difference counts; `heads`: see Rows.
    """
    rows = Rows(candidate.shape, u, exact, heads)
    rows.add(0, candidate, expected, twin, scale)
    return rows.sums()


def equal(shape: tuple[int, ...]) -> Sums:
    """The sums of a value that may not differ and does not, without a look at it."""
    rows = Rows(shape, 1.0, exact=True)
    rows.count()
    return rows.sums()


class Rows:
    """The sums of one value, taken a block of rows at a time; without a compiler only as a whole.

    `heads`: blocks of columns, each with a gain of its own, where the value has no axis for them.
    """

    def __init__(self, shape: tuple[int, ...], u: float, exact: bool = False, heads: int = 1) -> None:
        C = shape[-1] if shape else 1
        R = shape[-2] if len(shape) > 1 else 1
        G = max(1, math.prod(shape[:-2]))
        if math.prod(shape) == 0:
            C, R, G = 0, 0, 1
        self._size, self._u, self._exact = (G, R, C), u, exact
        self._heads = heads if G == 1 and C % heads == 0 else 1
        self._raw = _new(G, R, C, self._heads)

    def add(
        self,
        start: int,
        candidate: NDArray[np.float32],
        expected: NDArray[np.float64] | None,
        twin: NDArray[np.float32],
        scale: NDArray[np.float32],
    ) -> None:
        """Rows from `start` on, in order; all arrays of one shape, as `judge` takes them.

        `expected` None: the twin stands for it, the twin's own sums are 0, and where it is no number nothing passes.
        """
        c = np.ascontiguousarray(candidate, np.float32)
        y = None if expected is None else np.ascontiguousarray(expected, np.float64)
        t = np.ascontiguousarray(twin, np.float32)
        s = np.ascontiguousarray(scale, np.float32)
        if s.size not in (1, c.size):
            s = np.ascontiguousarray(np.broadcast_to(s, candidate.shape))
        if _library():
            _native_sums(self._raw, start, c, y, t, s, self._u, self._exact, *self._size[1:], self._heads)
        else:
            self._raw = _numpy_sums(c, y, t, s, self._u, self._exact, *self._size, self._heads)

    def count(self) -> None:
        """All elements as equal to what was expected."""
        self._raw.whole[[0, 4]] = math.prod(self._size), -1

    def sums(self) -> Sums:
        return _summary(self._raw, *self._size)


def takes_blocks() -> bool:
    """Whether a value may be judged in blocks: only by the compiled loop."""
    return _library() is not None


@dataclass
class _Raw:
    row_q2: NDArray[np.float64]
    row_p2: NDArray[np.float64]
    row_q: NDArray[np.float64]
    row_p: NDArray[np.float64]
    row_g: NDArray[np.float64]  # [G * R, heads, 3] shares of sum(q r), sum(p r), sum(r r)
    col_q2: NDArray[np.float64]
    col_p2: NDArray[np.float64]
    col_q1: NDArray[np.float64]
    col_p1: NDArray[np.float64]
    whole: NDArray[np.float64]  # the slots of judge.c


def _summary(raw: _Raw, G: int, R: int, C: int) -> Sums:
    library = _library()
    if library is not None and G * R * C:
        return _native_summary(library, raw, G, R, C)
    w = raw.whole
    row_q, row_p = np.sqrt(raw.row_q2 / max(C, 1)), np.sqrt(raw.row_p2 / max(C, 1))
    col_q, col_p = np.sqrt(raw.col_q2 / max(R, 1)), np.sqrt(raw.col_p2 / max(R, 1))
    group_q = np.sqrt(raw.row_q2.reshape(G, R).sum(1) / max(R * C, 1)) if R else np.zeros(1)
    group_p = np.sqrt(raw.row_p2.reshape(G, R).sum(1) / max(R * C, 1)) if R else np.zeros(1)
    slices = (
        _worst(row_q, row_p, C),
        _worst(col_q.ravel(), col_p.ravel(), R),
        _worst(group_q, group_p, R * C),
        gains_of(raw.row_g.reshape(G, R, -1, 3).sum(1).reshape(-1, 3)) if R else Slice(0.0, 0.0, 0, 0, 0),
        _worst(np.abs(raw.col_q1) / max(R, 1), np.abs(raw.col_p1) / max(R, 1), R),
        _worst(row_q.reshape(G, R)[:, -1], row_p.reshape(G, R)[:, -1], C) if R else Slice(0.0, 0.0, 0, 0, 0),
    )
    return _sums(w.tolist(), float(raw.row_q2.sum()), float(raw.row_p2.sum()), slices, row_q, col_q.reshape(G, C))


def _native_summary(library: ctypes.CDLL, raw: _Raw, G: int, R: int, C: int) -> Sums:
    """The same by the compiled loop: a value of a decode step is over before NumPy has begun."""
    heads = raw.row_g.shape[1]
    row_rms, column_rms = np.empty(G * R), np.empty((G, C))
    scratch, out = np.empty(2 * max(G * R, G * C, G * heads)), np.empty(21)
    arrays = raw.row_q2, raw.row_p2, raw.row_g, raw.col_q2, raw.col_p2, raw.col_q1, raw.col_p1
    library.fb_slices(G, R, C, heads, *(_address(a) for a in (*arrays, row_rms, column_rms, scratch, out)))
    o = out.tolist()
    sizes = (G * R, C), (G * C, R), (G, R * C), (G * heads, int(min(o[18], 2**53))), (G * C, R), (G, C)
    slices = tuple(Slice(o[3 * i], o[3 * i + 1], int(o[3 * i + 2]), *size) for i, size in enumerate(sizes))
    return _sums(raw.whole.tolist(), o[19], o[20], slices, row_rms, column_rms)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _sums(
    w: list[float],
    q2: float,
    p2: float,
    slices: tuple[Slice, ...],
    row_rms: NDArray[np.float64],
    column_rms: NDArray[np.float64],
) -> Sums:
    """`w`: the slots of judge.c; `q2`, `p2`: the sums over all rows."""
    counted, weight = max(1.0, w[0] - w[1]), w[7]
    rows, columns, groups, gains, offsets, last = slices
    return Sums(
        count=int(w[0]),
        candidate=math.sqrt(q2 / counted),
        twin=math.sqrt(p2 / counted),
        rows=rows,
        columns=columns,
        groups=groups,
        element=w[13],
        element_twin=w[15],
        element_index=int(w[14]),
        gain=w[5] / weight if weight > 0 else 0.0,
        gain_twin=w[6] / weight if weight > 0 else 0.0,
        gain_weight=weight,
        offset=w[8] / counted,
        gains=gains,
        offsets=offsets,
        last=last,
        bad_nonfinite=int(w[2]),
        bad_masked=int(w[3]),
        first_bad=int(w[4]),
        local_error=_ratio(w[10], w[12]),
        twin_error=_ratio(w[11], w[12]),
        row_rms=row_rms,
        column_rms=column_rms,
    )


def softmax_scale(y: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """How far rounding may move a softmax `y` of `x` over the last axis for u = 1: y (1 + |x - max| + Σ y |x - max|).

    None where there is no compiler, or the arrays are not laid out in rows.
    """
    library = _library()
    flat = x.flags.c_contiguous and y.flags.c_contiguous and x.dtype == y.dtype == np.float32 and x.shape == y.shape
    if library is None or not flat or not x.size:
        return None
    made = np.empty_like(x)
    library.fb_softmax_scale(_address(y), _address(x), x.size // x.shape[-1], x.shape[-1], _address(made))
    return made


def _ratio(error2: float, value2: float) -> float:
    if error2 == 0:
        return 0.0
    return math.sqrt(error2 / value2) if value2 > 0 else math.inf


def _worst(candidate: NDArray[np.float64], twin: NDArray[np.float64], length: int) -> Slice:
    if candidate.size == 0:
        return Slice(0.0, 0.0, 0, 0, 0)
    at = int(np.argmax(candidate))
    return Slice(float(candidate[at]), float(twin.max()), at, candidate.size, length)


def gains_of(shares: NDArray[np.float64]) -> Slice:
    """The largest |gain| of a group, of [groups, 3] sums, where it rests on as much as one whole element."""
    weight = shares[:, 2]
    with np.errstate(invalid="ignore", divide="ignore"):
        gains = np.where(weight[:, None] >= 1, np.abs(shares[:, :2]) / weight[:, None], 0.0)
    at = int(np.argmax(gains[:, 0]))
    return Slice(float(gains[at, 0]), float(gains[:, 1].max()), at, len(weight), int(min(weight[at], 2**53)))


def _new(G: int, R: int, C: int, heads: int) -> _Raw:
    r, c = np.zeros((4, G * R)), np.zeros((4, G * C))
    return _Raw(r[0], r[1], r[2], r[3], np.zeros((G * R, heads, 3)), c[0], c[1], c[2], c[3], np.zeros(_SLOTS))


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled loop, or None where there is no compiler."""
    source = Path(__file__).with_name("judge.c")
    flags = ("-O3", "-march=native", "-ffp-contract=off", "-fno-trapping-math", "-fopenmp-simd")
    try:
        library = ctypes.CDLL(str(build([source], flags=flags)))
    except (UsageError, OSError):
        return None
    if library.fb_judge_slots() != _SLOTS:
        return None
    library.fb_judge.restype = None
    pointer, i64 = [ctypes.c_void_p], [ctypes.c_int64]
    library.fb_slices.restype = library.fb_softmax_scale.restype = None
    library.fb_slices.argtypes = [*i64 * 4, *pointer * 11]
    library.fb_softmax_scale.argtypes = [*pointer * 2, *i64 * 2, *pointer]
    library.fb_judge.argtypes = [*pointer * 4, *i64, ctypes.c_double, ctypes.c_int, *i64 * 5, *pointer * 10]
    return library


def _native_sums(
    raw: _Raw,
    start: int,
    c: NDArray[np.float32],
    y: NDArray[np.float64] | None,
    t: NDArray[np.float32],
    s: NDArray[np.float32],
    u: float,
    exact: bool,
    R: int,
    C: int,
    heads: int,
) -> None:
    """Adds the rows from `start` on to `raw`."""
    library = _library()
    assert library is not None
    rows = c.size // C if C else 0
    parts = min(_THREADS if c.size >= _LARGE else 1, max(1, rows))
    bounds = [start + rows * i // parts for i in range(parts + 1)]
    # Rows are split among the threads, so each thread needs its own sums over columns and the whole.
    whole = np.zeros(_SLOTS)
    G = len(raw.col_q2) // C if C else 0
    own = [replace(raw, whole=whole), *(_new(G, 0, C, 1) for _ in range(parts - 1))]
    skipped = start * C  # the loop counts from the value's first row, the arrays from this block's

    def call(i: int) -> None:
        mine = own[i]
        pointers = [raw.row_q2, raw.row_p2, raw.row_q, raw.row_p, raw.row_g]
        pointers += [mine.col_q2, mine.col_p2, mine.col_q1, mine.col_p1, mine.whole]
        library.fb_judge(
            c.ctypes.data - 4 * skipped,
            None if y is None else y.ctypes.data - 8 * skipped,
            t.ctypes.data - 4 * skipped,
            s.ctypes.data - (4 * skipped if s.size > 1 else 0),
            int(s.size > 1),
            u,
            int(exact),
            R,
            C,
            C // heads,
            bounds[i],
            bounds[i + 1],
            *(a.ctypes.data for a in pointers),
        )

    if parts == 1:
        call(0)
    else:
        list(_pool().map(call, range(parts)))
    for part in own[1:]:
        raw.col_q2 += part.col_q2
        raw.col_p2 += part.col_p2
        raw.col_q1 += part.col_q1
        raw.col_p1 += part.col_p1
        whole = _merged(whole, part.whole)
    raw.whole = _merged(raw.whole, whole) if start else whole


@cache
def _pool() -> ThreadPoolExecutor:
    """One pool for the process: starting threads for each value costs more than a small value takes."""
    return ThreadPoolExecutor(_THREADS)


def _merged(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The whole-value slots of two parts; part a comes before part b in memory."""
    merged = a + b
    merged[4] = a[4] if a[4] >= 0 else b[4]
    worst = a if a[13] >= b[13] else b
    merged[13], merged[14] = worst[13], worst[14]
    merged[15] = max(a[15], b[15])
    return merged


def _numpy_sums(
    c: NDArray[np.float32],
    given: NDArray[np.float64] | None,
    t: NDArray[np.float32],
    s: NDArray[np.float32],
    u: float,
    exact: bool,
    G: int,
    R: int,
    C: int,
    heads: int,
) -> _Raw:
    """The same sums by NumPy: the oracle of judge.c, written for reading."""
    raw = _new(G, R, C, heads)
    if c.size == 0:
        return raw
    y = t.astype(np.float64) if given is None else given
    c, y, t = c.reshape(G * R, C), y.reshape(G * R, C), t.reshape(G * R, C)
    scale = np.broadcast_to(s.reshape(-1) if s.size == 1 else s.reshape(G * R, C), c.shape).astype(np.float64)
    top = float(np.finfo(np.float32).max)
    number = (y > MASKED) & (y < 3.5e38) & (c > MASKED) & (c <= top)
    twin_number = number & (t >= -top) & (t <= top)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        e = np.where(number, c.astype(np.float64) - y, 0.0)
        d = np.where(twin_number, t.astype(np.float64) - y, 0.0)
        natural = u * scale + (1e-300 if exact else SMALLEST_NORMAL)
        natural = np.where(number, natural, 1.0)  # the scale of what is no number is none either
        q, p = np.clip(e / natural, -1e18, 1e18), np.clip(d / natural, -1e18, 1e18)
        r = np.where(number, 0.0 if exact else u * y / natural, 0.0)
    kinds = [np.where(np.isnan(x), 3, np.where(x <= MASKED, 1, np.where(np.isposinf(x), 2, 0))) for x in (c, y)]
    bad = (kinds[0] != kinds[1]) | ((kinds[1] > 1) & (given is None))
    bad_masked = bad & ((kinds[0] == 1) | (kinds[1] == 1))
    yn = np.where(number, y, 0.0)
    raw.row_q2, raw.row_p2 = (q * q).sum(1), (p * p).sum(1)
    raw.row_q, raw.row_p = np.abs(q).max(1), np.abs(p).max(1)
    raw.col_q2 = (q * q).reshape(G, R, C).sum(1).ravel()
    raw.col_p2 = (p * p).reshape(G, R, C).sum(1).ravel()
    raw.col_q1 = q.reshape(G, R, C).sum(1).ravel()
    raw.col_p1 = p.reshape(G, R, C).sum(1).ravel()
    raw.row_g = np.stack([x.reshape(G * R, heads, -1).sum(2) for x in (q * r, p * r, r * r)], 2)
    first = int(np.argmax(bad)) if bad.any() else -1
    raw.whole[:] = [
        c.size,
        int((~number).sum()),
        int((bad & ~bad_masked).sum()),
        int(bad_masked.sum()),
        first,
        (q * r).sum(),
        (p * r).sum(),
        (r * r).sum(),
        q.sum(),
        p.sum(),
        (e * e).sum(),
        (d * d).sum(),
        (yn * yn).sum(),
        np.abs(q).max(),
        int(np.argmax(np.abs(q))),
        np.abs(p).max(),
    ]
    return raw


def distance(candidate: NDArray[np.float32], reference: NDArray[np.float32]) -> tuple[float, int]:
    """Relative L2 distance and the flat index of the largest difference; infinite where kinds of numbers differ.

    Integers and booleans: the share of elements that differ and the first of them.
    """
    if not np.issubdtype(reference.dtype, np.floating):
        different = np.asarray(candidate).reshape(-1) != np.asarray(reference).reshape(-1)
        at = int(np.argmax(different)) if different.any() else -1
        return (float(different.mean()) if different.size else 0.0), at
    c = np.ascontiguousarray(candidate, np.float32)
    r = np.ascontiguousarray(reference, np.float32)
    library = _library()
    out = np.zeros(5)
    if library is not None:
        library.fb_distance(
            ctypes.c_void_p(c.ctypes.data),
            ctypes.c_void_p(r.ctypes.data),
            ctypes.c_int64(c.size),
            ctypes.c_void_p(out.ctypes.data),
        )
    elif c.size:
        out[:] = _numpy_distance(c.ravel(), r.ravel())
    if out[2]:
        return math.inf, int(out[4])
    return _ratio(out[0], out[1]), int(out[4])


def _numpy_distance(c: NDArray[np.float32], r: NDArray[np.float32]) -> list[float]:
    kinds = [np.where(np.isnan(x), 3, np.where(x <= MASKED, 1, np.where(np.isposinf(x), 2, 0))) for x in (c, r)]
    number = (kinds[0] == 0) & (kinds[1] == 0)
    d = np.where(number, c.astype(np.float64) - r, 0.0)
    size = np.where(number, r.astype(np.float64), 0.0)
    at = int(np.argmax(np.abs(d)))
    return [(d * d).sum(), (size * size).sum(), float((kinds[0] != kinds[1]).sum()), abs(d[at]), at]
