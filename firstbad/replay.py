"""Replay: the reference's graph executed on the candidate's own values, in float64 and in the candidate's dtype.

One sweep over the graph judges every value: an op reads the candidate's values where the candidate has them, and
what the sweep itself computed where it has not. Nothing is executed twice, however many values a region spans.
Leaves out the judging (noise.py) and the arithmetic (an Executor, made by the model room).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from firstbad.graph import Graph, Op, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOVES = frozenset(
    "view reshape _unsafe_view _reshape_alias transpose t permute contiguous clone alias detach detach_ lift_fresh "
    "expand expand_as repeat repeat_interleave unsqueeze squeeze slice select narrow split split_with_sizes chunk "
    "unbind flatten unflatten movedim swapaxes cat stack concat index index_select gather embedding take flip roll "
    "dropout where masked_fill triu tril zeros ones full empty arange zeros_like ones_like full_like new_zeros "
    "new_ones new_full index_copy index_put scatter copy copy_ slice_scatter select_scatter pad constant_pad_nd "
    "as_strided argmax argmin eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or isnan "
    "__and__ __or__ isinf max_pool1d max_pool2d relu neg abs sort topk unfold diagonal one_hot".split()
)
"""ATen ops that compute nothing that could round: their output must be exact."""

MASKED = 1e30
"""A score of this size is a mask (a dtype's lowest number), whose rounding says nothing about its neighbours."""


NEUTRAL = {"mul": 1, "div": 1, "add": 0, "sub": 0}
"""Arithmetic with a number that changes nothing (scores scaled by 1.0): as exact as a copy."""


def moves_only(op: Op) -> bool:
    """Whether the op only moves or selects what it read."""
    name = op.kind.removeprefix("aten.").partition(".")[0]
    if name in MOVES or name.rstrip("_") in MOVES:
        return True
    if name in ("to", "_to_copy"):
        return not op.attrs.get("rounds")
    args, _ = call_arguments(op)
    return len(args) > 1 and name in NEUTRAL and isinstance(args[1], int | float) and args[1] == NEUTRAL[name]


class Executor(Protocol):
    """Executes one op of a recorded reference graph with any inputs, in any floating-point dtype.

    Arrays cross this line as NumPy arrays (no copies: torch.from_numpy and .numpy()); read-only inputs are never
    written; outputs are logical arrays of any strides.
    """

    def run(self, op: Op, inputs: Mapping[int, np.ndarray], dtype: str) -> list[np.ndarray]:
        """The op's outputs in the order of `op.writes`, computed in `dtype` ("float64", "float32", "bfloat16" ...).

        Floating inputs are cast to `dtype` first, as are floating dtype arguments of the call; weights are taken from
        the model where `inputs` has no entry for them. bfloat16 and float16 results come back as float32 arrays.
        """
        ...

    def scale(self, op: Op, inputs: Mapping[int, np.ndarray], output: np.ndarray) -> np.ndarray | None:
        """Element-wise error scale of the op's first output for u = 1: its condition, float32, broadcastable to it.

        linear, matmul, conv: |x||w| + |b|; add: |a| + |b|; ... None where no condition is known.
        """
        ...

    def sequential(
        self, op: Op, inputs: Mapping[int, np.ndarray], samples: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The worst declared order: float32 with every sum taken one term after the other, on sampled elements.

        Returns (flat indices into the first output, their values as float32); whole rows of the last axis are sampled
        for softmax and layer_norm, single outputs for sums of products. None: the op has no sum.
        """
        ...

    def weight(self, name: str) -> np.ndarray:
        """A weight by its parameter name."""
        ...


def call_arguments(op: Op) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The recorded call of a reference op as (args, kwargs) templates; see reference/call.py."""
    return op.attrs.get("args", ()), op.attrs.get("kwargs", {})


@dataclass(frozen=True)
class Replayed:
    """What one value should have been, given the candidate's own inputs of its region."""

    value: Value
    expected: NDArray[Any]  # float64 (integers as they are)
    twin: NDArray[Any]  # the same in the candidate's dtype, as float32
    scale: NDArray[np.float32] | None  # condition of each element for u = 1; None: not known
    sequential: tuple[NDArray[Any], NDArray[Any]] | None  # sampled flat indices, values in the worst declared order
    exact: bool  # the region only moves values: nothing may differ
    length: int  # ops in the region that compute


@dataclass(frozen=True)
class _Known:
    """A value in the sweep: the candidate's own (both arrays are one), or computed on the way."""

    precise: NDArray[Any]
    twin: NDArray[Any]
    noise: float = 0.0  # relative size of its own rounding, in units of u; 0: it is the candidate's own
    length: int = 0


def sweep(
    graph: Graph,
    executor: Executor,
    given: Callable[[Value], NDArray[Any] | None],
    wanted: frozenset[int],
    *,
    dtype: str = "float32",
    samples: Callable[[Op], int] = lambda _: 512,
) -> Iterator[Replayed]:
    """Replays the whole reference graph once and yields each wanted value.

    `given(value)`: the array that stands for a value before it is replayed: the candidate's (in the reference's
    layout) or, for inputs and constants that the candidate has not, the reference's own; None: compute it.
    `samples(op)`: how many elements are computed in the worst declared order of summation; 0: none.
    `wanted`: ids of the values to be yielded; a wanted value is replayed from its inputs, then given to its readers.
    """
    left = {value: len(ops) for value, ops in graph.readers.items()}
    known: dict[int, _Known] = {}

    def look_up(value: int) -> _Known | None:
        if value not in known:
            array = given(graph.values[value])
            if array is None:
                return None
            known[value] = _Known(array, array)
        return known[value]

    for op in graph.ops:
        inputs = {r.value: k for r in op.reads if r.value >= 0 and (k := look_up(r.value)) is not None}
        if any(w in wanted or left.get(w, 0) > 0 for w in op.writes):
            yield from _execute(graph, executor, op, inputs, given, wanted, known, dtype, samples)
        for read in {r.value for r in op.reads}:
            left[read] = left.get(read, 1) - sum(r.value == read for r in op.reads)
            if left[read] <= 0:
                known.pop(read, None)


def _execute(
    graph: Graph,
    executor: Executor,
    op: Op,
    inputs: Mapping[int, _Known],
    given: Callable[[Value], NDArray[Any] | None],
    wanted: frozenset[int],
    known: dict[int, _Known],
    dtype: str,
    samples: Callable[[Op], int],
) -> Iterator[Replayed]:
    exact = moves_only(op)
    shared = all(k.precise is k.twin for k in inputs.values())
    noise = max((k.noise for k in inputs.values()), default=0.0)
    length = max((k.length for k in inputs.values()), default=0) + (not exact)
    precise_inputs = {i: k.precise for i, k in inputs.items()}
    twin_inputs = {i: k.twin for i, k in inputs.items()}
    if exact and shared:
        precise = twin = executor.run(op, precise_inputs, dtype)
    else:
        precise = executor.run(op, precise_inputs, "float64")
        twin = executor.run(op, twin_inputs, dtype)
    for n, written in enumerate(op.writes):
        value = graph.values[written]
        own = given(value)
        scale = None
        if not exact and (written in wanted or own is None):
            scale = executor.scale(op, precise_inputs, precise[n]) if n == 0 else None
            scale = _with_noise(scale, noise)
        if written in wanted:
            sampled = samples(op) if n == 0 and not exact else 0
            sequential = executor.sequential(op, twin_inputs, sampled, written) if sampled else None
            yield Replayed(value, precise[n], twin[n], scale, sequential, exact and noise == 0, length)
        if own is not None:
            known[written] = _Known(own, own)
        elif exact:
            known[written] = _Known(precise[n], twin[n], noise, length)
        else:
            known[written] = _Known(precise[n], twin[n], _relative(scale, precise[n]), length)


def _with_noise(scale: NDArray[np.float32] | None, noise: float) -> NDArray[np.float32] | None:
    """The condition of an op whose inputs were themselves rounded on the way: theirs is added, relative to its own."""
    if scale is None or noise == 0:
        return scale
    with np.errstate(over="ignore"):  # a masked element's: it is not judged by size
        return np.asarray(scale * np.float32(1 + noise), np.float32)


def _relative(scale: NDArray[np.float32] | None, output: NDArray[Any]) -> float:
    """Rounding of a value computed on the way, relative to its size, in units of u."""
    if scale is None or output.size == 0 or not np.issubdtype(output.dtype, np.floating):
        return 1.0
    numbers = np.abs(output) < MASKED
    size = float(np.linalg.norm(np.where(numbers, output, 0).astype(np.float64).ravel()))
    if size == 0 or not np.isfinite(size):
        return 1.0
    own = np.where(numbers, np.broadcast_to(scale, output.shape), 0).astype(np.float64)
    return float(np.linalg.norm(own.ravel())) / size
