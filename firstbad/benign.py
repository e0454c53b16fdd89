"""Benign differences: values that are not the model's and that nothing downstream can tell from it.

A bias on keys, a factor moved from q to k, the attention scale folded into a weight: softmax and products do not see
them. Proved by three replays at every value where the difference ends: it is right given the *true* inputs of what
differs; it stays right when everything that meets the difference on the way holds other numbers, so that no mask and
no zero hid it; and a change of the same size with signs at random would have been seen. Leaves out what ends in an op
that forgets (an activation, a norm with its eps, a choice): what does not show there on this input may show on another.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import Alignment
from firstbad.edit import NOTHING, Edit
from firstbad.errors import CompareError
from firstbad.judge import MASKED
from firstbad.local import Judged, Local, kind_of, limits_of, sums_of
from firstbad.noise import Pool, excesses
from firstbad.region import Given, region_of, replay_region, run_region
from firstbad.replay import Executor, Replayed, moves_only

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.faults import Fault
    from firstbad.graph import Op, Value
    from firstbad.trace import Trace

PRODUCTS = frozenset("linear matmul mm bmm addmm baddbmm add sub mul div neg scaled_dot_product_attention".split())
NORMALISED = frozenset("softmax _softmax _safe_softmax log_softmax _log_softmax".split())
FORGETS = frozenset(
    "argmax argmin sort topk relu abs where masked_fill triu tril max_pool1d max_pool2d index gather embedding eq ne "
    "lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or isnan isinf one_hot index_copy "
    "scatter".split()
)
"""Moves that a difference may end in on this input only."""

FAULTS, REACH, TESTS = 6, 60, 40
"""Faults that are looked at, ops that a difference is followed through, replays that are spent."""

SEEN = 4.0
"""Limits by which a change at random must be seen where the difference is not."""


@dataclass(frozen=True)
class Benign:
    """Values that differ without effect: of which faults, by how much, and where the difference is gone."""

    faults: tuple[str, ...]
    values: frozenset[int]  # reference ids: what differs, and all up to where it is gone
    gone_at: tuple[str, ...]
    off_by: float  # the largest local error
    seen_by: float  # the least that a change at random would have had, in limits


def benign(
    faults: Sequence[Fault],
    local: Local,
    alignment: Alignment,
    reference: Trace,
    candidate: Trace,
    executor: Executor,
    given: Given,
) -> list[Benign]:
    """The faults, alone or in twos, whose differences end before any op that forgets."""
    search = _Search(reference, candidate, alignment, executor, given, local, tuple(faults))
    found: list[Benign] = []
    for count in (1, 2):
        for some in itertools.combinations(faults[:FAULTS], count):
            taken = {name for b in found for name in b.faults}
            if not taken & {f.name for f in some}:
                proved = search.proved(some)
                if proved is not None:
                    found.append(proved)
    return found


class _Search:
    """The run under judgement, and how many replays were spent."""

    def __init__(
        self,
        reference: Trace,
        candidate: Trace,
        alignment: Alignment,
        executor: Executor,
        given: Given,
        local: Local,
        faults: tuple[Fault, ...],
    ) -> None:
        self.reference, self.candidate, self.alignment = reference, candidate, alignment
        self.executor, self.given, self.local = executor, given, local
        self.judged = {j.pair.reference.id: j for j in local.values}
        self.reached = _reached(reference, {s.pair.reference.id: f.name for f in faults for s in f.sites})
        self.tests = 0

    def proved(self, faults: tuple[Fault, ...]) -> Benign | None:
        sites = {s.pair.reference.id: s for f in faults for s in f.sites}
        if not all("float" in s.pair.reference.dtype and np.isfinite(s.sums.local_error) for s in sites.values()):
            return None
        walked = self._walk(sites, {f.name for f in faults})
        if walked is None:
            return None
        hidden, ends = walked
        try:
            seen = [s for end in ends for s in self._proofs(end, sites, hidden)]
        except (CompareError, StopIteration):
            return None
        if not seen or None in seen:
            return None
        also = {end.pair.reference.id for end in ends if end.bad}
        return Benign(
            tuple(f.name for f in faults) + tuple(dict.fromkeys(e.name for e in ends if e.bad)),
            frozenset(hidden | also),
            tuple(dict.fromkeys(end.name for end in ends)),
            max(s.sums.local_error for s in sites.values()),
            min(s for s in seen if s is not None),
        )

    def _walk(self, sites: Mapping[int, Judged], names: set[str]) -> tuple[set[int], list[Judged]] | None:
        """What the difference reaches before it is gone, and the values where it is; None: it is not, or not so."""
        graph = self.reference.graph
        hidden, ends = set(sites), dict[int, Judged]()
        due = sorted({reader for site in sites for reader in graph.readers.get(site, ())})  # a heap, in execution order
        count = 0
        while due:
            op = graph.ops[heapq.heappop(due)]
            count += 1
            if count > REACH * len(graph.steps) or not _remembers(op):
                return None
            for written in op.writes:
                if written in hidden or written in ends:
                    continue
                judged = self.judged.get(written)
                if judged is not None and self._right(judged, hidden, names):
                    ends[written] = judged
                elif judged is not None and judged.bad:
                    return None
                else:
                    hidden.add(written)
                    for reader in graph.readers.get(written, ()):
                        if reader not in due:
                            heapq.heappush(due, reader)
        return (hidden, list(ends.values())) if ends and all(self._reads_on(s, ends) for s in sites) else None

    def _reads_on(self, site: int, ends: Iterable[int]) -> bool:
        """Whether the difference of a site goes anywhere at all."""
        stack, seen = [site], {site}
        while stack:
            for reader in self.reference.graph.readers.get(stack.pop(), ()):
                for written in self.reference.graph.ops[reader].writes:
                    if written in ends:
                        return True
                    if written not in seen:
                        seen.add(written)
                        stack.append(written)
        return False

    def _right(self, judged: Judged, hidden: set[int], names: set[str]) -> bool:
        """Whether a value is what the true inputs of all that differs before it give."""
        own = judged.pair.reference.id
        if judged.cumulative_bad and not self.reached.get(own, set()) - names:
            return False  # damage, and of nothing else
        if "float" not in judged.pair.reference.dtype or self.tests >= TESTS:
            return False
        self.tests += 1
        return self._excess(judged, self._array(judged), self._replay(judged, hidden)) <= 1

    def _proofs(self, end: Judged, sites: Mapping[int, Judged], hidden: set[int]) -> Iterator[float | None]:
        """By how many limits a change at random would be seen at this end; None: with other numbers beside it, or with
        all that differs known by now, the value is not right."""
        truly = self._replay(end, hidden)
        if not self._excess(end, self._array(end), truly) <= 1:
            yield None
        graph, given = self.reference.graph, self._without(hidden - set(sites))
        inner = region_of(graph, end.pair.reference, given)
        own = {i: self._array(sites[i]).astype(np.float64) for i in inner.inputs if i in sites}
        reads = {i for s in sites.values() for i in self._inputs(s.pair.reference, hidden)}
        meets = (set(inner.inputs) | set(inner.weights)) - set(sites) - reads
        other = {i: _other(array) for i in meets if (array := self._held(i)) is not None}

        def run(replaced: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
            return run_region(graph, inner, self.executor, given, Edit("", {}, replaced), dtype="float64")

        # an end that is wrong itself makes up for the difference, which the reference's op would not do
        if not end.bad and not self._excess(end, run(other | own), self._replay(end, hidden, Edit("", {}, other))) <= 1:
            yield None
        rng = np.random.default_rng(7)
        true = {i: self._replay(sites[i], hidden).expected for i in own}
        with np.errstate(invalid="ignore"):  # of infinities; what comes of them is never seen to be benign
            shaken = {i: y + (own[i] - y) * rng.choice([-1.0, 1.0], y.shape) for i, y in true.items()}
        times = self._excess(end, run(shaken), truly)
        yield times if times > SEEN else None

    def _inputs(self, value: Value, hidden: set[int]) -> Iterator[int]:
        region = region_of(self.reference.graph, value, self._without(hidden))
        yield from (*region.inputs, *region.weights)

    def _held(self, i: int) -> NDArray[Any] | None:
        value = self.reference.graph.values[i]
        return self.executor.weight(value.name) if value.kind == "weight" else self.given(value)

    def _array(self, judged: Judged) -> NDArray[Any]:
        return judged.pair.layout.apply(self.candidate.array(judged.pair.candidate))

    def _without(self, hidden: set[int]) -> Given:
        return lambda value: None if value.id in hidden else self.given(value)

    def _replay(self, judged: Judged, hidden: set[int], edit: Edit = NOTHING) -> Replayed:
        hidden = hidden - {judged.pair.reference.id}
        given = self._without(hidden)
        region = region_of(self.reference.graph, judged.pair.reference, given)
        return replay_region(self.reference.graph, region, self.executor, given, edit)

    def _excess(self, judged: Judged, array: NDArray[Any], replayed: Replayed) -> float:
        """The worst test of a value in limits; at most 1 is clean."""
        dtype = judged.pair.candidate.dtype
        sums = sums_of(np.asarray(array, np.float32), replayed, dtype)
        pool = self.local.pools.get(kind_of(judged.op, replayed.length), Pool())
        tests = excesses(sums, limits_of(sums, replayed, pool, dtype), exact=replayed.exact)
        if any(t.bad and not t.limit for t in tests):
            return np.inf
        return max(t.seen / t.limit for t in tests if t.limit > 0 and not np.isnan(t.seen))


def _remembers(op: Op) -> bool:
    """Whether what the op gives tells what it was given, but for what a softmax is known not to see."""
    word = op.kind.removeprefix("aten.").partition(".")[0]
    return (
        word in PRODUCTS or word in NORMALISED or (moves_only(op) and word not in FORGETS) or word in ("to", "_to_copy")
    )


def _other(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in another order, and no mask: what meets the difference on another input."""
    if not np.issubdtype(array.dtype, np.floating):
        return array
    if array.size and (array <= MASKED).any():
        return np.zeros_like(array)
    numbers = np.array(array).reshape(-1)  # a copy: what is mapped from a file cannot be shuffled
    np.random.default_rng(11).shuffle(numbers)
    return numbers.reshape(array.shape)


def _reached(reference: Trace, own: Mapping[int, str]) -> Mapping[int, set[str]]:
    """Reference id → names of all faults that reach the value through the graph."""
    reached: dict[int, set[str]] = {}
    for op in reference.graph.ops:
        names = set().union(*(reached.get(read.value, set()) for read in op.reads))
        for written in op.writes:
            found = names | ({own[written]} if written in own else set())
            if found:
                reached[written] = found
    return reached


def words(found: Iterable[Benign], number: Callable[[float], str]) -> Iterator[str]:
    """For people: a line for each."""
    for b in found:
        several, ends = len(b.faults) > 1, len(b.gone_at) > 1
        yield (
            f"benign: {' and '.join(b.faults)} {'differ' if several else 'differs'} by {number(b.off_by)} without "
            f"effect: {', '.join(b.gone_at[:3])} {'are' if ends else 'is'} what the true values give, also with "
            "other numbers beside them"
        )
