"""A replay that rounds where the candidate rounds: an Executor seen through the dtypes of the candidate's values.

Weights are rounded as the candidate holds them, before anything is computed from them. The twin (asked for as float32)
computes in the dtype in which the candidate stores the op's output; what the candidate does not store is computed in
float32 and not rounded, since a fused kernel keeps it in a register: a twin that rounds there hides faults. A cast to a
narrow type that only the candidate has (a float32 residual stream before a bfloat16 norm) is made on the way, exactly.

Leaves out quantised weights: they have no dtype to round to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import Alignment
from firstbad.graph import Graph, Op, Value
from firstbad.noise import ROUNDOFF
from firstbad.replay import Executor, moves_only

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOW = ("bfloat16", "float16")


@dataclass(frozen=True)
class _How:
    compute: str  # dtype of the twin's arithmetic
    stored: str  # dtype in which the candidate keeps the output; "": it is computed on the way


def as_candidate(executor: Executor, reference: Graph, candidate: Graph, alignment: Alignment) -> Executor:
    """The executor itself for an engine in float32, else one that rounds as the candidate does."""
    weights = {v.name: v.dtype for v in candidate.values if v.kind == "weight" and v.dtype in LOW}
    low = {p.candidate.dtype for p in alignment.pairs if p.candidate.dtype in LOW}
    if not weights and not low:
        return executor
    return _AsCandidate(executor, reference, candidate, alignment, weights)


class _AsCandidate:
    """See the protocol in firstbad/replay.py."""

    def __init__(
        self,
        executor: Executor,
        reference: Graph,
        candidate: Graph,
        alignment: Alignment,
        weights: Mapping[str, str],
    ) -> None:
        self._executor = executor
        self._how = {op.id: how for op, how in _plan(reference, candidate, alignment)}
        self._lowest = max(
            (ROUNDOFF[p.candidate.dtype] for p in alignment.pairs if p.candidate.dtype in LOW), default=0
        )
        self._dtypes = {v.id: weights[v.name] for v in reference.values if v.kind == "weight" and v.name in weights}
        self._names = {i: reference.values[i].name for i in self._dtypes}
        self._rounded: dict[tuple[int, str], NDArray[Any]] = {}
        self._casts = _casts(reference, candidate, alignment)

    def run(self, op: Op, inputs: Mapping[int, NDArray[Any]], dtype: str) -> list[NDArray[Any]]:
        inputs = self._cast(op, inputs)
        if dtype != "float32":
            return self._executor.run(op, self._with_weights(op, inputs, dtype), dtype)
        how = self._how.get(op.id, _How("float32", ""))
        outputs = self._executor.run(op, self._with_weights(op, inputs, how.compute), how.compute)
        return [rounded(o, how.stored) for o in outputs] if how.stored != how.compute else outputs

    def scale(self, op: Op, inputs: Mapping[int, NDArray[Any]], output: NDArray[Any]) -> NDArray[Any] | None:
        scale = self._executor.scale(op, self._with_weights(op, self._cast(op, inputs), "float32"), output)
        how = self._how.get(op.id)
        if scale is not None and how is not None and not how.stored and self._lowest:
            # computed on the way in float32: a part of one rounding of the candidate's dtype
            scale = np.asarray(scale * np.float32(ROUNDOFF["float32"] / self._lowest), np.float32)
        return scale

    def sequential(
        self, op: Op, inputs: Mapping[int, NDArray[Any]], samples: int, seed: int
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        inputs = self._with_weights(op, self._cast(op, inputs), "float32")
        found = self._executor.sequential(op, inputs, samples, seed)
        how = self._how.get(op.id)
        return (found[0], rounded(found[1], how.stored)) if found is not None and how is not None else found

    def weight(self, name: str) -> NDArray[Any]:
        return self._executor.weight(name)

    @property
    def plain(self) -> Executor:
        """What computes the reference's own values: nothing is rounded."""
        plain: Executor = getattr(self._executor, "plain", self._executor)
        return plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)  # what an executor may have beyond the protocol

    def _cast(self, op: Op, inputs: Mapping[int, NDArray[Any]]) -> Mapping[int, NDArray[Any]]:
        casts = self._casts.get(op.id)
        if not casts:
            return inputs
        return {i: rounded(a, casts[i]).astype(a.dtype) if i in casts else a for i, a in inputs.items()}

    def _with_weights(self, op: Op, inputs: Mapping[int, NDArray[Any]], dtype: str) -> Mapping[int, NDArray[Any]]:
        read = [r.value for r in op.reads if r.value in self._dtypes and r.value not in inputs]
        if not read:
            return inputs
        wide = "float64" if dtype == "float64" else "float32"
        return {**inputs, **{value: self._weight(value, wide) for value in read}}

    def _weight(self, value: int, wide: str) -> NDArray[Any]:
        if (value, wide) not in self._rounded:
            array = rounded(self._executor.weight(self._names[value]), self._dtypes[value])
            self._rounded[value, wide] = array.astype(wide)
        return self._rounded[value, wide]


def _plan(graph: Graph, candidate: Graph, alignment: Alignment) -> list[tuple[Op, _How]]:
    on_the_way: set[int] = set()
    plan = []
    for op in graph.ops:
        pair = next((alignment.by_reference[w] for w in op.writes if w in alignment.by_reference), None)
        kept = pair.candidate if pair is not None else _listed(graph, candidate, op)
        stored = kept.dtype if kept is not None and kept.dtype in ROUNDOFF else ""
        inside = any(read.value in on_the_way for read in op.reads)
        if kept is None and (inside or not moves_only(op)):
            on_the_way.update(op.writes)
        compute = "float32" if inside or stored not in LOW else stored
        plan.append((op, _How(compute, stored if stored in LOW or kept is None else "float32")))
    return plan


def _casts(reference: Graph, candidate: Graph, alignment: Alignment) -> dict[int, dict[int, str]]:
    """Op of the reference → its inputs that the candidate's op read through a cast to a narrow type, with that type."""
    source: dict[int, tuple[int, str]] = {}  # candidate's value → what it was cast from, and the narrowest type between
    for op in candidate.ops:
        if len(op.reads) != 1:
            continue
        origin, cast = op.reads[0].value, op.kind.rpartition(".")[0] in ("aten.to", "aten._to_copy")
        for made in [candidate.values[w] for w in op.writes]:
            if origin in source and (cast or moves_only(op)):
                source[made.id] = source[origin]
            elif cast and made.dtype in LOW and op.attrs.get("rounds"):
                source[made.id] = (_moved_from(candidate, origin, alignment.by_candidate), made.dtype)
    if not source:
        return {}
    found: dict[int, dict[int, str]] = {}
    for pair in alignment.pairs:
        if pair.reference.op < 0 or pair.candidate.op < 0:
            continue
        theirs = {read.value for read in candidate.ops[pair.candidate.op].reads}
        narrow = {source[v][0]: source[v][1] for v in theirs if v in source}
        for read in reference.ops[pair.reference.op].reads if narrow else ():
            own = alignment.by_reference.get(_moved_from(reference, read.value, alignment.by_reference))
            if own is not None and own.candidate.id in narrow and own.candidate.id not in theirs:
                found.setdefault(pair.reference.op, {})[read.value] = narrow[own.candidate.id]
    return found


def _moved_from(graph: Graph, value: int, until: Collection[int] = ()) -> int:
    """The value that this one shows in another shape, or itself."""
    while value >= 0 and value not in until and graph.values[value].op >= 0:
        op = graph.ops[graph.values[value].op]
        if len(op.reads) != 1 or not (graph.values[value].kind == "view" or moves_only(op)):
            break
        value = op.reads[0].value
    return value


def _listed(graph: Graph, candidate: Graph, op: Op) -> Value | None:
    """The candidate's value of this op where it has one whose content was not asked for."""
    for written in op.writes:
        value = graph.values[written]
        found = candidate.by_key.get((value.step, value.name))
        if found is not None:
            return found
    return None


def rounded(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """float32 numbers, each the nearest of `dtype`; integers as they are."""
    if dtype not in LOW or not np.issubdtype(array.dtype, np.floating):
        return array
    array = np.asarray(array, np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):  # beyond its range is infinity, as in the engine
            return array.astype(np.float16).astype(np.float32)
    return (bfloat16_bits(array).astype(np.uint32) << 16).view(np.float32)


def bfloat16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest bfloat16 of each number, ties to even, as its bits."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), np.uint32(0x7FC0), nearest).astype(np.uint16)
