"""Local and cumulative error of every aligned value, judged: the first half of localising.

One sweep of replay over the reference graph, one pass of sums over each value, then the limits, once the twin's error
of all ops of a kind is known. Leaves out what follows from it: faults.py groups, cause.py explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad import screen
from firstbad.alignment import Alignment, Pair
from firstbad.allocator import Spare, frozen
from firstbad.blocks import BLOCK
from firstbad.graph import Graph, Op, Value
from firstbad.heads import heads_near
from firstbad.judge import Rows, Sums, distance, equal, judge, takes_blocks
from firstbad.layout import Layout
from firstbad.noise import FACTOR, ROUNDOFF, Excess, Floor, Pool, Sequential, excesses, floor, pools
from firstbad.padding import without
from firstbad.passing import passing
from firstbad.replay import MASKED, Executor, Replayed, sweep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.trace import Trace

CUMULATIVE_FLOOR = 100 * 2.0**-24
"""Relative error below which a value is never called damaged: a few dozen roundings of float32 in a row."""

SAMPLES = 512
"""Elements of a value that are computed in the worst declared order of summation."""

RELEASE = 32 << 20
"""Bytes of values after which pages of the traces are given back."""

ASK = 8 << 20
"""The same after which it is asked whether much of the process's own memory lies free."""

EVERY = 1 << 15
"""The same where a value fails by little."""

NEAR = 3.0
"""Limits up to which a failed test of a slice is little."""

SLICES = frozenset("element rows columns groups last".split())

ORDER_SITES = 4
"""Steps in which that is done for one op, then in each whose number is a power of two; a step is judged by the worst of
those before it: in units of u x condition it is a property of the op's sizes, and of luck."""


@dataclass(frozen=True)
class Judged:
    """One aligned value with its errors and the tests it passed or failed (the worst first)."""

    pair: Pair
    op: Op  # of the reference
    sums: Sums
    floor: Floor
    tests: tuple[Excess, ...]
    exact: bool
    length: int  # ops of the region that compute
    noise_floor: float  # relative L2 that a correct engine may make
    cumulative: float  # relative L2 against the reference's own run
    cumulative_index: int  # flat index of the largest difference to the reference's own run
    cumulative_limit: float

    @property
    def step(self) -> str:
        return self.pair.reference.step

    @property
    def name(self) -> str:
        return self.pair.reference.name

    @property
    def worst(self) -> Excess:
        return self.tests[0]

    @property
    def bad(self) -> bool:
        return any(t.bad for t in self.tests)

    @property
    def cumulative_bad(self) -> bool:
        return not self.cumulative <= self.cumulative_limit


@dataclass(frozen=True)
class Local:
    """Everything measured: judged values in execution order, and inputs compared bit by bit (name → equal)."""

    values: tuple[Judged, ...]
    inputs: Mapping[tuple[str, str], bool]
    pools: Mapping[str, Pool]


def kind_of(op: Op, length: int = 1) -> str:
    """The kind of op by which twin errors are pooled; a region of several ops is no measure of a single one."""
    kind = op.kind.rpartition(".")[0] or op.kind
    return kind if length <= 1 else f"{kind} after others"


@dataclass(frozen=True)
class _Measured:
    pair: Pair
    op: Op
    sums: Sums
    sequential: Sequential | None
    exact: bool
    length: int
    order: float
    cumulative: float
    cumulative_index: int
    from_twin: float | None = None  # screened: rms distance from the twin; its size in `sums` is a sample's
    sample: Sums | None = None  # screened: some of its rows in float64

    @property
    def screened(self) -> bool:
        return self.from_twin is not None


def measure(
    reference: Trace,
    candidate: Trace,
    alignment: Alignment,
    executor: Executor,
    *,
    judged: Callable[[Value], bool] = lambda _: True,
    progress: Callable[[str], None] = lambda _: None,
    screening: bool = True,
) -> Local:
    """Judges every aligned value of two traces (of those, the `judged` ones: the others are only given to readers).

    Reads both by memory map; holds one value of each at a time. `screening`: large values are replayed in float64 only
    where a test leaves a doubt, the errors of the others are those of a sample of their rows (screen.py).
    """
    inputs = {}
    given = giver(reference, candidate, alignment)
    for pair in alignment.pairs:
        if pair.reference.kind == "input":
            own = pair.layout.apply(candidate.array(pair.candidate))
            inputs[pair.reference.step, pair.reference.name] = _equal(own, reference.array(pair.reference))
    inputs.update(_by_hash(reference.graph, candidate.graph, alignment))
    wanted = frozenset(p.reference.id for p in alignment.pairs if p.reference.op >= 0 and judged(p.reference))
    u = max((ROUNDOFF.get(p.candidate.dtype, 0.0) for p in alignment.pairs), default=0.0) or ROUNDOFF["float32"]
    orders: dict[str, list[Sequential | None]] = {}

    sites: dict[str, dict[int, int]] = {}

    def samples(op: Op) -> int:
        seen = sites.setdefault(op.name, {})
        site = seen.setdefault(op.id, len(seen))
        return SAMPLES if site < ORDER_SITES or site.bit_count() == 1 else 0

    through = passing(reference.graph, candidate.graph, alignment)

    def measured_of(ids: frozenset[int], samples: Callable[[Op], int], screening: bool) -> Iterator[_Measured]:
        seen, unasked, spare, blocks = 0, 0, Spare(), takes_blocks()
        for replayed in sweep(
            reference.graph,
            executor,
            given,
            ids,
            samples=samples,
            u=u,
            in_blocks=blocks,
            passing=through,
            screening=screening and blocks,
        ):
            pair = alignment.by_reference[replayed.value.id]
            progress(pair.reference.name)
            yield _measure(reference, candidate, pair, replayed, orders)
            del replayed
            nbytes = 4 * math.prod(pair.reference.shape)
            seen, unasked = seen + nbytes, unasked + nbytes
            if unasked > ASK:
                unasked = 0
                spare.give_back()
            if seen > RELEASE:
                seen = 0
                reference.release()
                candidate.release()

    with frozen():
        measured = list(measured_of(wanted, samples, screening))
    while True:
        pooled = pools((kind_of(m.op, m.length), m.sums) for m in measured if not m.exact)
        found = tuple(_judged(reference.graph, measured, pooled))
        bad = frozenset(j.pair.reference.id for j in found if j.bad)
        unsure = frozenset(m.pair.reference.id for m in measured if m.screened) & bad
        if not unsure:
            break
        full = {m.pair.reference.id: m for m in measured_of(unsure, lambda _: 0, False)}
        measured = [full.get(m.pair.reference.id, m) for m in measured]
    doubted = frozenset(j.pair.reference.id for j in found if _doubted(j))
    if doubted:
        # Some sums of one value drift further than a sample of them shows: these are summed in order, each of them.
        again = sweep(reference.graph, executor, given, doubted, samples=lambda _: EVERY, u=u, passing=through)
        every = {r.value.id: r for r in again}
        measured = [_in_full(m, every[m.pair.reference.id]) if m.pair.reference.id in every else m for m in measured]
        found = tuple(_judged(reference.graph, measured, pooled))
    return Local(found, inputs, pooled)


def _doubted(judged: Judged) -> bool:
    """Whether a value fails by so little, and in slices alone, that the order of its sums may be all."""
    failed = [t for t in judged.tests if t.bad]
    return bool(failed) and all(t.test in SLICES and t.seen <= NEAR * t.limit for t in failed)


def _in_full(measured: _Measured, replayed: Replayed) -> _Measured:
    """With the worst declared order of every element instead of a few."""
    u = ROUNDOFF.get(measured.pair.candidate.dtype, ROUNDOFF["float32"])
    return replace(measured, sequential=_worst_of([measured.sequential, sequential_of(u, replayed)]))


def _by_hash(reference: Graph, candidate: Graph, alignment: Alignment) -> Iterator[tuple[tuple[str, str], bool]]:
    """Inputs whose content was not asked of the candidate: the hashes of both sides tell whether they are equal."""
    for value in reference.values:
        other = candidate.by_key.get((value.step, value.name)) if value.kind == "input" else None
        if other is not None and value.id not in alignment.by_reference and value.hash and other.hash:
            yield (value.step, value.name), value.hash == other.hash


LOWEST_HALF = -65504.0


def giver(reference: Trace, candidate: Trace, alignment: Alignment) -> Callable[[Value], NDArray[Any] | None]:
    """What stands for a value before it is replayed: the candidate's array, or the reference's own input."""

    def given(value: Value) -> NDArray[Any] | None:
        pair = alignment.by_reference.get(value.id)
        if pair is not None:
            return pair.layout.apply(candidate.array(pair.candidate))
        if value.kind in ("input", "constant"):
            return reference.array(value)
        return None

    return given


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return bool(np.array_equal(a, b, equal_nan=np.issubdtype(b.dtype, np.floating)))


def sums_of(candidate: NDArray[Any], replayed: Replayed, dtype: str, heads: int = 1) -> Sums:
    """The sums of a candidate's array against what it should have been; what lies at padding counts as right.

    `heads`: blocks of columns whose gain is judged alone, where the value has no axis for them.
    """
    candidate = without(candidate, replayed.ignored, replayed.expected)
    if not np.issubdtype(replayed.expected.dtype, np.floating):
        return _discrete(candidate, replayed.expected)
    if replayed.exact and np.array_equal(candidate, replayed.expected, equal_nan=True):
        return equal(candidate.shape)
    expected = np.asarray(replayed.expected, np.float64)
    scale = replayed.scale
    if replayed.exact:
        scale = np.zeros(1, np.float32)
    elif scale is None:
        scale = _size(expected)
    scale = np.broadcast_to(scale, expected.shape) if scale.size > 1 else scale
    u = ROUNDOFF.get(dtype, ROUNDOFF["float32"])
    own = np.asarray(candidate, np.float32)
    return judge(own, expected, replayed.twin, scale, u=u, exact=replayed.exact, heads=1 if replayed.exact else heads)


def as_computed(replayed: Replayed, layout: Layout) -> Replayed:
    """What the engine did not compute is not judged."""
    missing = layout.missing
    if missing is None:
        return replayed
    return replace(replayed, ignored=missing if replayed.ignored is None else replayed.ignored | missing)


def _masked_twice(replayed: Replayed, array: NDArray[Any], own: NDArray[Any]) -> Replayed:
    """float16's lowest and a little less is -inf there: as masked as the lowest, where the reference masks too."""
    if not np.issubdtype(array.dtype, np.floating) or array.shape != own.shape:
        return replayed
    twice = np.isneginf(array) & (own < -MASKED) & (replayed.expected < LOWEST_HALF)
    if not twice.any():
        return replayed
    return replace(replayed, ignored=twice if replayed.ignored is None else replayed.ignored | twice)


def _size(expected: NDArray[np.float64]) -> NDArray[np.float32]:
    """The scale where no condition is known: the element's own size and the root mean square of the value."""
    number = np.abs(expected) < MASKED  # a NaN is none
    own = np.where(number, expected, 0.0)
    rms = math.sqrt(float(np.sum(own**2)) / max(1, int(number.sum())))
    return np.asarray(np.abs(own) + (rms or 1.0), np.float32)


def _discrete(candidate: NDArray[Any], expected: NDArray[Any]) -> Sums:
    """Integers and booleans are equal or not; judged as an exact value of 0 and 1, in blocks of rows."""
    shape = expected.shape
    rows = Rows(shape, 1.0, exact=True)
    C = shape[-1] if shape else 1
    own, other = (np.asarray(a).reshape(-1, max(C, 1)) for a in (candidate, expected))
    step = max(1, BLOCK // max(C, 1)) if takes_blocks() else len(own) or 1
    for start in range(0, len(own) or 1, step):
        different = (own[start : start + step] != other[start : start + step]).astype(np.float32)
        if not takes_blocks():
            different = different.reshape(shape)
        zeros = np.zeros(different.shape)
        rows.add(start, different, zeros, zeros.astype(np.float32), np.zeros(1, np.float32))
    return rows.sums()


def sequential_of(candidate_u: float, replayed: Replayed) -> Sequential | None:
    """The worst declared order's error on the sampled elements, in units of u x condition."""
    if replayed.sequential is None or replayed.scale is None:
        return None
    at, _ = replayed.sequential
    expected = np.asarray(replayed.expected, np.float64).reshape(-1)[at]
    scale = replayed.scale
    if scale.shape == replayed.expected.shape:
        scale = scale.reshape(-1)[at]
    else:
        scale = np.broadcast_to(scale, replayed.expected.shape)[np.unravel_index(at, replayed.expected.shape)]
    return _sequential(candidate_u, *replayed.sequential, expected, scale, replayed.expected.shape[-1])


def _sequential(
    u: float, at: NDArray[Any], values: NDArray[Any], expected: NDArray[Any], scale: NDArray[Any], columns: int
) -> Sequential | None:
    number = np.isfinite(expected) & np.isfinite(values) & (scale > 0)
    if not number.any():
        return None
    q = np.where(number, (values - expected) / (u * np.where(number, scale, 1) + 1e-38), 0.0)
    rows = at // columns
    same_row = np.unique(rows).size * columns == at.size  # whole rows were sampled
    row = math.sqrt(float((q.reshape(-1, columns) ** 2).mean(1).max())) if same_row else 0.0
    return Sequential(math.sqrt(float((q**2).mean())), float(np.abs(q).max()), row)


def _in_pieces(candidate: NDArray[Any], replayed: Replayed, dtype: str, heads: int) -> tuple[Sums, Sequential | None]:
    """`sums_of` and `sequential_of` of a large value, a block of rows at a time; of a screened one against the twin."""
    assert replayed.pieces is not None
    u = ROUNDOFF.get(dtype, ROUNDOFF["float32"])
    shape, C = candidate.shape, candidate.shape[-1]
    judging = Rows(shape, u, heads=heads)
    at, values = replayed.sequential or (np.empty(0, np.int64), np.empty(0))
    expected, scale = np.zeros(at.size), np.zeros(at.size, np.float32)
    own = candidate.reshape(-1, C)
    ignored = None if replayed.ignored is None else np.broadcast_to(replayed.ignored, shape).reshape(-1, C)
    for piece in replayed.pieces:
        t = piece.twin.reshape(-1, C)
        y = None if piece.expected is None else np.asarray(piece.expected, np.float64).reshape(-1, C)
        s = piece.scale if piece.scale.size == 1 else np.broadcast_to(piece.scale, piece.twin.shape).reshape(-1, C)
        rows = slice(piece.start, piece.start + len(t))
        c = without(own[rows], None if ignored is None else ignored[rows], t if y is None else y)
        judging.add(piece.start, c, y, t, s)
        if y is not None:
            here = (at >= piece.start * C) & (at < rows.stop * C)
            local = at[here] - piece.start * C
            expected[here] = y.reshape(-1)[local]
            scale[here] = np.broadcast_to(s, y.shape)[np.unravel_index(local, y.shape)]
    found = None if replayed.sequential is None else _sequential(u, at, values, expected, scale, C)
    return judging.sums(), found


def _screened(
    candidate: NDArray[Any], replayed: Replayed, dtype: str, heads: int
) -> tuple[Sums, Sequential | None, float, Sums]:
    """The sums of a screened value as its tests see them, but for the error that it is said to have: the sample's.

    Then the order of its sums, how far it is from the twin, and the sums of the sample.
    """
    assert replayed.rows is not None
    against_twin, _ = _in_pieces(candidate, replace(replayed, sequential=None), dtype, heads)
    ignored = replayed.ignored
    if ignored is not None:
        ignored = np.broadcast_to(ignored, candidate.shape)[..., replayed.rows, :]
    some = replace(replayed, ignored=ignored, pieces=None)
    sample = sums_of(candidate[..., replayed.rows, :], some, dtype)
    ordered = sequential_of(ROUNDOFF.get(dtype, ROUNDOFF["float32"]), some)
    seen = screen.seen(against_twin, sample)
    return replace(seen, candidate=sample.candidate), ordered, against_twin.candidate, sample


def _worst_of(sites: Iterable[Sequential | None]) -> Sequential | None:
    """Of one op's sites: a decode step has a row a head, and each is lucky or not."""
    known = [s for s in sites if s is not None]
    if not known:
        return None
    rms = math.sqrt(sum(s.rms**2 for s in known) / len(known))
    return Sequential(rms, max(s.worst for s in known), max(s.row for s in known))


def _measure(
    reference: Trace, candidate: Trace, pair: Pair, replayed: Replayed, orders: dict[str, list[Sequential | None]]
) -> _Measured:
    array = pair.layout.apply(candidate.array(pair.candidate))
    own = reference.array(pair.reference)
    replayed = as_computed(replayed, pair.layout)
    if pair.candidate.dtype == "float16" and replayed.pieces is None:
        replayed = _masked_twice(replayed, array, own)
    heads = heads_near(reference.graph, [(pair.reference.id, 0)], 1)
    u = ROUNDOFF.get(pair.candidate.dtype, ROUNDOFF["float32"])
    from_twin, sample = None, None
    if replayed.rows is not None:
        sums, ordered, from_twin, sample = _screened(array, replayed, pair.candidate.dtype, heads)
    elif replayed.pieces is not None:
        sums, ordered = _in_pieces(array, replayed, pair.candidate.dtype, heads)
    else:
        sums = sums_of(array, replayed, pair.candidate.dtype, heads)
        ordered = sequential_of(u, replayed) if replayed.sequential is not None and not replayed.exact else None
    op = reference.graph.ops[pair.reference.op]
    known = orders.setdefault(op.name, [])
    if replayed.sequential is not None and not replayed.exact:
        known.append(ordered)
    sequential = _worst_of(known)
    cumulative, at = distance(without(array, replayed.ignored, own), own)
    return _Measured(
        pair, op, sums, sequential, replayed.exact, replayed.length, replayed.order, cumulative, at, from_twin, sample
    )


def _judged(graph: Graph, measured: list[_Measured], pooled: Mapping[str, Pool]) -> Iterator[Judged]:
    by_id = {m.pair.reference.id: m for m in measured}
    inherited: dict[int, float] = {}  # value id -> relative noise that reached it along the graph
    for op in graph.ops:
        before = max((inherited.get(read.value, 0.0) for read in op.reads), default=0.0)
        for written in op.writes:
            inherited[written] = before
            if written in by_id:
                judged = _judge(by_id[written], pooled, before)
                inherited[written] += judged.noise_floor
                yield judged


def _in_order(sums: Sums, sequential: Sequential | None, order: float) -> Sequential | None:
    """The worst declared order, where the earlier ops of the region may have summed in it too: so much noisier."""
    if order <= 1:
        return sequential
    own = sequential or Sequential(0.0, 0.0, 0.0)
    return Sequential(
        max(own.rms, order * sums.twin),
        max(own.worst, order * sums.element_twin),
        max(own.row, order * sums.rows.twin),
    )


def limits_of(sums: Sums, replayed: Replayed, pool: Pool, dtype: str) -> Floor:
    """The noise floor of one value that was replayed alone, over a region of any length."""
    u = ROUNDOFF.get(dtype, ROUNDOFF["float32"])
    sequential = None if replayed.exact else sequential_of(u, replayed)
    return floor(sums, pool, _in_order(sums, sequential, replayed.order))


def _judge(m: _Measured, pooled: Mapping[str, Pool], inherited: float) -> Judged:
    pool = pooled.get(kind_of(m.op, m.length), Pool())
    floor_ = floor(m.sums, pool, _in_order(m.sums, m.sequential, m.order))
    # The floor is in units of u x condition; the twin links it to a relative error.
    relative = m.sums.twin_error * (floor_.whole / m.sums.twin) if m.sums.twin > 0 else ROUNDOFF["float32"]
    noise_floor = 0.0 if m.exact else relative
    tests = excesses(m.sums, floor_, exact=m.exact)
    if m.from_twin is not None:
        tests = excesses(replace(m.sums, candidate=m.from_twin), floor_, exact=False, factor=screen.STRICT)
        if m.sample is not None and not any(t.bad for t in tests):
            # What passes is said to be as far off as its sample is: from the twin it is the twin's error further. A
            # sample that fails leaves a doubt, too.
            own = floor(m.sample, pool, _in_order(m.sample, m.sequential, m.order))
            tests = excesses(m.sample, own, exact=False)
    return Judged(
        pair=m.pair,
        op=m.op,
        sums=m.sums,
        floor=floor_,
        tests=tuple(tests),
        exact=m.exact,
        length=m.length,
        noise_floor=noise_floor,
        cumulative=m.cumulative,
        cumulative_index=m.cumulative_index,
        cumulative_limit=max(CUMULATIVE_FLOOR, FACTOR * (inherited + noise_floor)),
    )
