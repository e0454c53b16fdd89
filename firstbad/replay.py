"""Replay: the reference's graph executed on the candidate's own values, in float64 and in the candidate's dtype.

One sweep over the graph judges every value: an op reads the candidate's values where the candidate has them, and
what the sweep itself computed where it has not. Nothing is executed twice, however many values a region spans.
Leaves out the judging (noise.py) and the arithmetic (an Executor, made by the model room).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from firstbad import blocks, screen, stack
from firstbad.graph import Graph, Op, Value
from firstbad.padding import Padding

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

LINEAR = frozenset("add sub mul div linear matmul mm bmm addmm baddbmm conv1d conv2d sum mean".split())
"""Ops in which the rounding of an input shows in the output as |.| of the op itself does."""

POINTWISE = frozenset("silu gelu sigmoid tanh exp erf softplus".split())
"""Functions of one number: the rounding of an input shows in the output by their slope."""

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


def _copies(op: Op) -> bool:
    """Whether the op gives its last input as it is."""
    return bool(op.reads) and op.kind.removeprefix("aten.").partition(".")[0] in ("copy", "to", "_to_copy", "clone")


def call_arguments(op: Op) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The recorded call of a reference op as (args, kwargs) templates; see reference/call.py."""
    return op.attrs.get("args", ()), op.attrs.get("kwargs", {})


@dataclass(frozen=True)
class Piece:
    """Some rows of a value that is replayed in blocks; see `Replayed`."""

    start: int  # number of the first row, seen as [rows, last axis]
    expected: NDArray[Any] | None  # None where the value is screened: the twin alone
    twin: NDArray[Any]
    scale: NDArray[np.float32]


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
    order: float = 1.0  # how many times noisier the worst declared order makes what the region computes on the way
    ignored: NDArray[np.bool_] | None = None  # elements at padding, broadcastable; None: all count
    pieces: Iterator[Piece] | None = None  # a large value, to be taken before the next; then the arrays above are empty
    rows: slice | None = None  # a screened value: its pieces have no `expected`, the arrays above are of these rows


@dataclass(frozen=True)
class _Known:
    """A value in the sweep: the candidate's own (both arrays are one), or computed on the way."""

    precise: NDArray[Any]
    twin: NDArray[Any]
    noise: float = 0.0  # relative size of its own rounding, in units of u; 0: it is the candidate's own
    length: int = 0
    order: float = 1.0
    scale: Callable[[], NDArray[np.float32] | None] | None = None  # of what was computed on the way


def sweep(
    graph: Graph,
    executor: Executor,
    given: Callable[[Value], NDArray[Any] | None],
    wanted: frozenset[int],
    *,
    dtype: str = "float32",
    samples: Callable[[Op], int] = lambda _: 512,
    u: float = 2.0**-24,
    in_blocks: bool = False,
    passing: frozenset[int] = frozenset(),
    screening: bool = False,
) -> Iterator[Replayed]:
    """Replays what the wanted values need of the reference graph, once, and yields each of them.

    `given(value)`: the array that stands for a value before it is replayed: the candidate's (in the reference's
    layout) or, for inputs and constants that the candidate has not, the reference's own; None: compute it.
    `samples(op)`: how many elements are computed in the worst declared order of summation; 0: none.
    `wanted`: ids of the values to be yielded; a wanted value is replayed from its inputs, then given to its readers.
    `u`: unit roundoff of the candidate's dtype, in which the noise of what is computed on the way is counted.
    `in_blocks`: large values whose op allows it come in pieces; `screening`: and without float64 but for a sample of
    their rows (screen.py says what that is worth).
    `passing`: values that are given to readers of their own step only (passing.py).
    """
    ops = _needed(graph, given, wanted)
    left: dict[int, int] = {}
    for op in ops:
        for read in op.reads:
            left[read.value] = left.get(read.value, 0) + 1
    running = _Sweep(graph, executor, given, wanted, dtype, samples, u, in_blocks, passing, screening=screening)
    if getattr(type(executor), "stacks", False):
        running.alike.update(stack.alike(graph, ops))
    padding = Padding(graph, given)
    for op in ops:
        for replayed in running.execute(op):
            yield replace(replayed, ignored=padding.of(replayed.value))
            del replayed  # its arrays: the next op makes its own
        for written in op.writes:
            if written not in left:
                running.known.pop(written, None)
                running.later.pop(written, None)
        for read in op.reads:
            left[read.value] -= 1
            if left[read.value] <= 0:
                running.known.pop(read.value, None)
                running.later.pop(read.value, None)


def _needed(graph: Graph, given: Callable[[Value], NDArray[Any] | None], wanted: frozenset[int]) -> list[Op]:
    """The ops that the wanted values follow from, back to what is given, in execution order."""
    producer = {written: op for op in graph.ops for written in op.writes}
    found: set[tuple[int, ...]] = set()  # by what they write: the ops of an edit share the id of the one they replace
    stack = [producer[value] for value in wanted if value in producer]
    seen = set(wanted)
    while stack:
        op = stack.pop()
        if op.writes in found:
            continue
        found.add(op.writes)
        for read in op.reads:
            if read.value in seen or read.value not in producer:
                continue
            seen.add(read.value)
            if given(graph.values[read.value]) is None:
                stack.append(producer[read.value])
    return [op for op in graph.ops if op.writes in found]


@dataclass(frozen=True)
class _Sweep:
    """One sweep under way: what is known so far, and how to go on."""

    graph: Graph
    executor: Executor
    given: Callable[[Value], NDArray[Any] | None]
    wanted: frozenset[int]
    dtype: str
    samples: Callable[[Op], int]
    u: float
    in_blocks: bool = False
    passing: frozenset[int] = frozenset()
    later: dict[int, _Known] = field(default_factory=dict)  # what later steps are given in the place of a value
    screening: bool = False
    known: dict[int, _Known] = field(default_factory=dict)
    alike: dict[tuple[int, ...], list[Op]] = field(default_factory=dict)  # see stack.py
    made: dict[tuple[int, ...], stack.Made] = field(default_factory=dict)  # ahead, with an op that is alike
    orders: dict[str, float] = field(default_factory=dict)  # op's name → noise of its worst declared order

    def execute(self, op: Op) -> Iterator[Replayed]:
        """Runs one op in both precisions; its values are known afterwards."""
        inputs = {r.value: k for r in op.reads if r.value >= 0 and (k := self._look_up(r.value, op.step)) is not None}
        exact = moves_only(op)
        shared = all(k.precise is k.twin for k in inputs.values())
        noise = max((k.noise for k in inputs.values()), default=0.0)
        order = max((k.order for k in inputs.values()), default=1.0)
        length = max((k.length for k in inputs.values()), default=0) + (not exact)
        precise_inputs = {i: k.precise for i, k in inputs.items()}
        if self.in_blocks and not exact and shared and noise == 0:
            pieces = self._pieces(op, precise_inputs)
            if pieces is not None:
                yield pieces
                return
        twin_inputs = {i: k.twin for i, k in inputs.items()}
        ready = self._ready(op) if shared and noise == 0 and not exact else None
        if ready is not None:
            precise, twin = [ready.precise], [ready.twin]
        else:
            precise, twin = self._run(op, precise_inputs, None if exact and shared else twin_inputs)
        for n, written in enumerate(op.writes):
            value = self.graph.values[written]
            if written in self.wanted:
                scale = sequential = None
                if exact:
                    scale = self._copied_scale(op, precise[n])
                elif n == 0:
                    scale = self._scale(op, inputs, precise[n], noise) if ready is None else ready.scale
                    sampled = self.samples(op)
                    sequential = self.executor.sequential(op, twin_inputs, sampled, written) if sampled else None
                yield Replayed(value, precise[n], twin[n], scale, sequential, exact and noise == 0, length, order)
            own = self.given(value)
            if own is not None:
                self.known[written] = _Known(own, own)
                self._keep(written, own, _Known(precise[n], twin[n]))
            elif exact:
                copied = self._copied(op)
                through = None if copied is None else copied.scale
                self.known[written] = _Known(precise[n], twin[n], noise, length, order, through)
            else:
                own_scale = functools.partial(self._scale, op, inputs, precise[n], noise) if n == 0 else None
                noise_here = _measured(precise[n], twin[n], self.u)
                made = _Known(precise[n], twin[n], noise_here, length, scale=own_scale)
                own_order = self._order(op, twin_inputs, made, written) if n == 0 else 1.0
                self.known[written] = replace(made, order=max(order, own_order))

        if exact and self.later.keys() & inputs.keys() - self._across(op):
            self._hand_on(op, inputs)

    def _keep(self, value: int, own: NDArray[Any], made: _Known) -> None:
        """For later steps, where they are not to see the candidate's own."""
        if value in self.passing and not np.array_equal(own, made.precise):
            self.later[value] = made

    def _run(
        self, op: Op, inputs: Mapping[int, NDArray[Any]], twin_inputs: Mapping[int, NDArray[Any]] | None
    ) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """The outputs in both precisions; without inputs of the twin's own both are one."""
        if twin_inputs is not None:
            return self.executor.run(op, inputs, "float64"), self.executor.run(op, twin_inputs, self.dtype)
        same = self._unchanged(op, inputs)
        made = self.executor.run(op, inputs, self.dtype) if same is None else [same]
        return made, made

    def _across(self, op: Op) -> set[int]:
        """What an op reads of earlier steps."""
        return {r.value for r in op.reads if r.value >= 0 and self.graph.values[r.value].step != op.step}

    def _hand_on(self, op: Op, inputs: Mapping[int, _Known]) -> None:
        """What an op moves for later steps: it is of what these are given."""
        for written, made in zip(
            op.writes,
            self.executor.run(op, {i: self.later.get(i, k).precise for i, k in inputs.items()}, self.dtype),
            strict=True,
        ):
            if self.given(self.graph.values[written]) is None:
                self.later[written] = _Known(made, made)

    def _unchanged(self, op: Op, inputs: Mapping[int, NDArray[Any]]) -> NDArray[Any] | None:
        """The only input of arithmetic with a number that changes nothing: no copy is made of it."""
        if op.kind.removeprefix("aten.").partition(".")[0] not in NEUTRAL or len(op.reads) != 1:
            return None
        array = inputs.get(op.reads[0].value)
        value = self.graph.values[op.writes[0]]
        same = array is not None and array.shape == value.shape and str(array.dtype) == self.dtype == value.dtype
        return array if same else None

    def _ready(self, op: Op) -> stack.Made | None:
        """What the op makes, where it can be made together with those of later steps."""
        if op.writes not in self.made and op.writes in self.alike:
            self.made.update(stack.together(self.executor, self.graph, self.alike[op.writes], self.given, self.dtype))
        return self.made.pop(op.writes, None)

    def _pieces(self, op: Op, inputs: Mapping[int, NDArray[Any]]) -> Replayed | None:
        """A large value in blocks of rows; None where its op or its size does not ask for it."""
        value = self.graph.values[op.writes[0]]
        sample = self._sampled_rows(op, value, inputs)
        least = 2 * blocks.BLOCK if sample is None else 0
        if math.prod(value.shape) < least or value.id not in self.wanted or "float" not in value.dtype:
            return None
        found = blocks.cut(self.graph, op, value.shape)
        own = self.given(value)
        if found is None or own is None or not found[1].keys() <= inputs.keys():
            return None
        axis, axes = found
        step, rows = blocks.size(value.shape, axis)

        def piece(start: int) -> Piece | None:
            mine = _part(inputs, axes, slice(start, start + step))
            precise = self.executor.run(op, mine, "float64")[0] if sample is None else None
            twin = self.executor.run(op, mine, self.dtype)[0]
            scale = self.executor.scale(op, mine, twin if precise is None else precise)
            return None if scale is None else Piece(start * rows, precise, twin, scale)

        first = piece(0)
        if first is None:
            return None
        self.known[value.id] = _Known(own, own)
        more = (p for start in range(step, value.shape[axis], step) if (p := piece(start)) is not None)
        pieces = itertools.chain([first], more)
        count = self.samples(op)
        if sample is None:
            sequential = self.executor.sequential(op, inputs, count, value.id) if count else None
            nothing = np.empty(0)
            return Replayed(value, nothing, nothing, None, sequential, False, 1, pieces=pieces)
        rows_, mine = sample
        precise = self.executor.run(op, mine, "float64")[0]
        twin, scale = self.executor.run(op, mine, self.dtype)[0], self.executor.scale(op, mine, precise)
        sequential = self.executor.sequential(op, mine, count, value.id) if count else None
        return Replayed(value, precise, twin, scale, sequential, False, 1, pieces=pieces, rows=rows_)

    def _sampled_rows(
        self, op: Op, value: Value, inputs: Mapping[int, NDArray[Any]]
    ) -> tuple[slice, Mapping[int, NDArray[Any]]] | None:
        """Which rows of a value that is to be screened are replayed in float64, and the inputs of these alone."""
        every = screen.every(value.shape) if self.screening else 1
        found = blocks.cut(self.graph, op, value.shape, rows=True) if every > 1 else None
        if found is None or not found[1] or not found[1].keys() <= inputs.keys():
            return None
        rows = slice(value.id % every, None, every)
        # in rows as the whole has them: PyTorch computes what has gaps in another way, with another error
        return rows, {i: np.ascontiguousarray(a) for i, a in _part(inputs, found[1], rows).items()}

    def _scale(
        self, op: Op, inputs: Mapping[int, _Known], output: NDArray[Any], noise: float
    ) -> NDArray[np.float32] | None:
        """The op's condition; what its inputs were rounded by on the way is added, for linear ops and functions of one
        number element by element: a small element of a sum computed on the way has the noise of its neighbours."""
        plain = {i: k.precise for i, k in inputs.items()}
        scale = self.executor.scale(op, plain, output)
        word = op.kind.split(".")[1]
        if scale is None or noise == 0 or word not in LINEAR | POINTWISE:
            return _with_noise(scale, noise)
        if word in POINTWISE:
            return self._by_slope(op, inputs, output, _with_noise(scale, noise))
        spread = self.executor.scale(op, {i: _spread(k) if k.noise else k.precise for i, k in inputs.items()}, output)
        with np.errstate(over="ignore"):  # a masked element's: it is not judged by size
            return scale if spread is None else np.asarray(scale + spread, np.float32)

    def _by_slope(
        self, op: Op, inputs: Mapping[int, _Known], output: NDArray[Any], scale: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """At least by how much the output moves where the input moves by its noise, either way."""
        if scale is None or len(inputs) != 1 or not np.issubdtype(output.dtype, np.floating):
            return scale
        ((i, known),) = inputs.items()
        moved = self.u * _spread(known)
        for by in (moved, -moved):
            other = self.executor.run(op, {i: known.precise + by}, "float64")[0]
            with np.errstate(invalid="ignore"):  # a masked score less itself
                scale = np.fmax(scale, np.abs(other - output) / self.u).astype(np.float32)
        return scale

    def _copied(self, op: Op) -> _Known | None:
        return self.known.get(op.reads[-1].value) if _copies(op) else None

    def _copied_scale(self, op: Op, output: NDArray[Any]) -> NDArray[np.float32] | None:
        """Of a copy of what was computed on the way: that of the original."""
        source = self._copied(op)
        if source is None or source.scale is None or source.precise.shape != output.shape:
            return None
        return source.scale()

    def _look_up(self, value: int, step: str) -> _Known | None:
        if value in self.later and self.graph.values[value].step != step:
            return self.later[value]
        if value not in self.known:
            array = self.given(self.graph.values[value])
            if array is None:
                return None
            self.known[value] = _Known(array, array)
        return self.known[value]

    def _order(self, op: Op, inputs: Mapping[int, NDArray[Any]], made: _Known, written: int) -> float:
        """The worst declared order's noise against the twin's, on samples; at later sites that of the last one."""
        count = self.samples(op)
        if count or op.name not in self.orders:
            self.orders[op.name] = _order(self.executor.sequential(op, inputs, count or 512, written), made, self.u)
        return self.orders[op.name]


def _part(inputs: Mapping[int, NDArray[Any]], axes: Mapping[int, int], part: slice) -> dict[int, NDArray[Any]]:
    """The inputs with those that are cut cut, each along its own axis."""
    return {i: a[(slice(None),) * axes[i] + (part,)] if i in axes else a for i, a in inputs.items()}


def _with_noise(scale: NDArray[np.float32] | None, noise: float) -> NDArray[np.float32] | None:
    """The condition of an op whose inputs were themselves rounded on the way: theirs is added, relative to its own."""
    if scale is None or noise == 0:
        return scale
    with np.errstate(over="ignore"):  # a masked element's: it is not judged by size
        return np.asarray(scale * np.float32(1 + noise), np.float32)


def _spread(known: _Known) -> NDArray[Any]:
    """How far rounding may have moved each element of a value computed on the way, in units of u."""
    size = np.abs(known.precise)
    numbers = size < MASKED
    rms = math.sqrt(float(np.mean(np.where(numbers, size, 0.0) ** 2))) if size.size else 0.0
    return np.where(numbers, np.maximum(size, rms), 0.0) * known.noise


def _measured(precise: NDArray[Any], twin: NDArray[Any], u: float) -> float:
    """Rounding of a value computed on the way: the twin's own, relative to the value's size, in units of u.

    Measured and not bounded: a bound is multiplied by |x||w| / |xw| at every op, and says nothing after a few of them.
    """
    if precise.size == 0 or not np.issubdtype(precise.dtype, np.floating):
        return 1.0
    error, size = _rms_of(precise, twin)
    return max(1.0, error / (u * size)) if size > 0 and np.isfinite(error) else 1.0


def _order(sampled: tuple[NDArray[Any], NDArray[Any]] | None, made: _Known, u: float) -> float:
    """The worst declared order's error over the noise of the value, on sampled elements; at least 1."""
    if sampled is None or made.precise.size == 0:
        return 1.0
    at, values = sampled
    error, size = _rms_of(np.asarray(made.precise).reshape(-1)[at], values)
    return max(1.0, error / (u * size * made.noise)) if size > 0 and np.isfinite(error) else 1.0


def _rms_of(precise: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """(norm of the difference, norm of the value), over what are numbers and no masks."""
    flat = np.asarray(precise, np.float64).ravel()
    numbers = np.abs(flat) < MASKED  # a NaN is none
    flat = np.where(numbers, flat, 0.0)
    difference = np.where(numbers, np.asarray(other).ravel() - flat, 0.0)
    return float(np.linalg.norm(difference)), float(np.linalg.norm(flat))
