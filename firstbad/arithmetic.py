"""A replay that rounds inside an op where the candidate's op does: an Executor seen through what the probe recorded.

A candidate's op may carry `attrs["arithmetic"]`: reference value → for each of its op's inputs what it is rounded to
before it is used, as [type, the reference's own factor, the engine's factor, what leads back]: the engine has not
multiplied by the first yet and has by the second when it rounds; times the fourth, which may be left out, it is the
reference's number again; a fifth and a sixth say where the blocks of such a type lie (Rounding). Engines split a
factor, as the fourth root of K taken twice, and round each half to float32: the product is another number than the
reference's, by a part of a rounding that all scores of a head have in common. A product of float16 weights so rounds
its activations, an attention its keys as they stand in a float16 cache. The rounding is exact, so what is left is noise
of the accumulation. Leaves out values that are stored in a narrow type (precision.py) and what an engine declares
(profile.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.flash import weighted_sum
from firstbad.graph import Graph, Op
from firstbad.precision import rounded
from firstbad.replay import Executor

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Rounding:
    """What happens to one input of an op before the op's own arithmetic."""

    type: str
    own: float = 1.0
    factor: float = 1.0
    back: float = 0.0  # 0: what undoes the two
    axis: int = -1  # along which the numbers of a block lie
    pairs: int = (
        0  # size of a head whose numbers the engine holds in the order of adjacent pairs; 0: in the reference's
    )

    def apply(self, x: NDArray[Any]) -> NDArray[Any]:
        """Of x's own floating dtype; each step in float32, as the engine takes it."""
        scaled = np.asarray(x if self.own == 1 else np.asarray(x, np.float64) / self.own, np.float32)
        if self.factor != 1:
            scaled = scaled * np.float32(self.factor)
        narrow = self._blocked(scaled) if self.axis != -1 or self.pairs else ROUNDINGS[self.type](scaled)
        wide = np.asarray(narrow, np.float64)
        if self.back or self.own != 1 or self.factor != 1:
            wide = wide * (self.back or self.own / float(np.float32(self.factor)))
        return wide.astype(x.dtype)

    def _blocked(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Blocks are of neighbours in the engine's memory, which need not be neighbours here."""
        rows = np.moveaxis(x, self.axis, -1)
        K = self.pairs or rows.shape[-1]
        if rows.shape[-1] % K:
            return x
        g = np.arange(rows.shape[-1])
        order = g // K * K + g % K // 2 + g % 2 * (K // 2) if self.pairs else g
        made = np.empty_like(rows)
        made[..., order] = ROUNDINGS[self.type](np.ascontiguousarray(rows[..., order]))
        return np.moveaxis(made, -1, self.axis)


def _blocks(x: NDArray[np.float32], size: int) -> NDArray[np.float32] | None:
    return x.reshape(*x.shape[:-1], -1, size) if x.shape[-1] % size == 0 else None


def q8_0(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """ggml's activations beside 4-, 5- and 8-bit weights: blocks of 32, a float16 scale, ties to even."""
    blocks = _blocks(np.asarray(x, np.float32), 32)
    if blocks is None:
        return x
    most = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(most > 0, np.float32(127) / most, 0).astype(np.float32)
    steps = np.rint(blocks * inverse)
    scale = (most / np.float32(127)).astype(np.float16).astype(np.float32)
    return np.asarray(steps * scale, np.float32).reshape(x.shape)


def q8_1_sums(x: NDArray[Any]) -> NDArray[np.float32]:
    """What q8_1 keeps of each block's sum, [..., blocks]: the scale in float32 times the sum of steps, as a float16.

    Weights with a minimum multiply it by that sum.
    """
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    most = np.abs(blocks).max(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(most > 0, np.float32(127) / most, 0).astype(np.float32)
    steps = np.rint(blocks * inverse[..., None]).sum(-1)
    scale = (most / np.float32(127)).astype(np.float32)
    return np.asarray((scale * steps).astype(np.float16), np.float32)


def q8_k(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """ggml's activations beside k-quants: blocks of 256, a float32 scale by the number of the largest size."""
    blocks = _blocks(np.asarray(x, np.float32), 256)
    if blocks is None:
        return x
    at = np.abs(blocks).argmax(-1)[..., None]
    largest = np.take_along_axis(blocks, at, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest != 0, np.float32(-127) / largest, 0).astype(np.float32)
        steps = np.minimum(np.rint(blocks * inverse), 127)
        back = np.where(inverse != 0, steps / inverse, 0)
    return np.asarray(back, np.float32).reshape(x.shape)


ROUNDINGS = {
    "float16": lambda x: rounded(x, "float16"),
    "bfloat16": lambda x: rounded(x, "bfloat16"),
    "q8_0": q8_0,
    "q8_1": q8_0,
    "q8_K": q8_k,
}


def as_recorded(executor: Executor, candidate: Graph) -> Executor:
    """The executor itself where nothing was recorded."""
    plan = _plan(candidate)
    halves = frozenset((op.step, op.name) for op in candidate.ops if op.attrs.get("accumulates") == "float16")
    angles = {op.step: float(op.attrs["base"]) for op in candidate.ops if "base" in op.attrs}
    return _Recorded(executor, plan, halves, angles) if plan or halves or angles else executor


def _plan(candidate: Graph) -> Mapping[tuple[str, str], tuple[Rounding | None, ...]]:
    plan: dict[tuple[str, str], tuple[Rounding | None, ...]] = {}
    for op in candidate.ops:
        recorded = op.attrs.get("arithmetic")
        for name, many in recorded.items() if isinstance(recorded, Mapping) else ():
            if isinstance(many, list | tuple):
                plan[op.step, str(name)] = tuple(_rounding(one) for one in many)
    return plan


def _rounding(one: Any) -> Rounding | None:
    if not isinstance(one, list | tuple) or not 3 <= len(one) <= 6 or one[0] not in ROUNDINGS:
        return None
    own, factor, back, axis, pairs = [float(number) for number in (*one[1:], *(0, -1, 0)[len(one) - 3 :])]
    made = Rounding(one[0], own, factor, back, int(axis), int(pairs))
    fits = made.own > 0 and made.factor > 0 and made.back >= 0 and made.axis in (-1, -2) and made.pairs >= 0
    return made if fits else None


class _Recorded:
    """See the protocol in firstbad/replay.py."""

    def __init__(
        self,
        executor: Executor,
        plan: Mapping[tuple[str, str], tuple[Rounding | None, ...]],
        halves: frozenset[tuple[str, str]],
        angles: Mapping[str, float],
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._halves = halves
        self._angles = angles

    @property
    def plain(self) -> Executor:
        """The reference's own arithmetic, without what the candidate rounds."""
        plain: Executor = getattr(self._executor, "plain", self._executor)
        return plain

    def run(self, op: Op, inputs: Mapping[int, NDArray[Any]], dtype: str) -> list[NDArray[Any]]:
        rounded_inputs = self._rounded(op, inputs)
        if dtype != "float64" and (op.step, op.name) in self._halves and len(op.reads) == 2:
            shares, v = (rounded_inputs.get(read.value) for read in op.reads)
            if shares is not None and v is not None:  # the noise of a sum that is rounded to float16 after each term
                return [weighted_sum(shares, v)]
        turned = self._turned(op, inputs)
        if turned is not None:
            return [turned.astype(dtype if dtype == "float64" else np.float32)]
        minima = self._minima(op)
        if minima is None:
            return self._executor.run(op, rounded_inputs, dtype)
        shifted, sums = self._in_two(op, minima, inputs, rounded_inputs)
        products = self._executor.run(op, shifted, dtype)[0]
        other = np.matmul(sums.astype(products.dtype), minima[1].T.astype(products.dtype))
        return [np.asarray(products + other, products.dtype)]

    def scale(self, op: Op, inputs: Mapping[int, NDArray[Any]], output: NDArray[Any]) -> NDArray[Any] | None:
        return self._executor.scale(op, inputs, output)

    def sequential(
        self, op: Op, inputs: Mapping[int, NDArray[Any]], samples: int, seed: int
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        minima, own = self._minima(op), self._rounded(op, inputs)
        if minima is None:
            return self._executor.sequential(op, own, samples, seed)
        shifted, sums = self._in_two(op, minima, inputs, own)
        sampled = self._executor.sequential(op, shifted, samples, seed)
        if sampled is None:
            return None
        other = np.matmul(sums, minima[1].T).reshape(-1)
        return sampled[0], np.asarray(sampled[1] + other[sampled[0]], np.float32)

    def weight(self, name: str) -> NDArray[Any]:
        return self._executor.weight(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)  # what an executor may have beyond the protocol

    def _minima(self, op: Op) -> tuple[int, NDArray[np.float32]] | None:
        """(id of the weight, its blocks' minima) of a product that is taken in two, the minima by themselves."""
        plan = self._plan.get((op.step, op.name))
        if not plan or plan[0] is None or plan[0].type != "q8_1" or not op.kind.startswith("aten.linear"):
            return None
        held: Mapping[str, NDArray[Any]] = getattr(self._executor, "minima", {})
        known = ((int(i), held[name]) for i, name in op.attrs.get("weights", {}).items() if name in held)
        return next(known, None)

    def _in_two(
        self,
        op: Op,
        minima: tuple[int, NDArray[np.float32]],
        inputs: Mapping[int, NDArray[Any]],
        own: Mapping[int, NDArray[Any]],
    ) -> tuple[Mapping[int, NDArray[Any]], NDArray[np.float32]]:
        """(inputs with the weights above their blocks' minima, the sums of blocks that the minima are multiplied by).

        Both products can be far larger than what they add up to, so this is where the noise of such a kernel is.
        """
        at, smallest = minima
        weight = inputs.get(at)
        if weight is None:
            weight = self._executor.weight(op.attrs["weights"][str(at)])
        size = weight.shape[-1] // smallest.shape[-1]
        above = np.asarray(weight, np.float32) - np.repeat(smallest, size, axis=-1)
        return {**own, at: above}, q8_1_sums(inputs[op.reads[0].value])

    def _turned(self, op: Op, inputs: Mapping[int, NDArray[Any]]) -> NDArray[np.float32] | None:
        """Angles of rotary positions, position x base^(-2 i / K), as ggml takes them: each is the one before times a
        factor, in float32. Only where these are the model's to within that rounding: another base is not modelled."""
        base = self._angles.get(op.step)
        names = [str(name) for name in op.attrs.get("weights", {}).values()]
        if (
            base is None
            or base <= 0
            or not op.kind.startswith("aten.mul.")
            or [n.rpartition(".")[2] for n in names] != ["inv_freq"]
        ):
            return None
        held = next((x for i in op.attrs["weights"] if (x := inputs.get(int(i))) is not None), None)
        own = np.asarray(self._executor.weight(names[0]) if held is None else held, np.float32)
        factor = np.float32(float(base) ** (-1.0 / own.size))
        read = (inputs.get(r.value) for r in op.reads if str(r.value) not in op.attrs["weights"])
        positions = next((np.asarray(x, np.float32) for x in read if x is not None), None)
        if positions is None:
            return None
        angles, unit = [positions], [np.float32(1)]
        for _ in range(own.size - 1):
            angles.append(angles[-1] * factor)
            unit.append(np.float32(unit[-1] * factor))
        near = np.abs(np.asarray(unit, np.float64) - own) <= 2.0**-23 * (1 + np.arange(own.size)) * own
        return np.concatenate(angles, axis=-1) if near.all() else None

    def _rounded(self, op: Op, inputs: Mapping[int, NDArray[Any]]) -> Mapping[int, NDArray[Any]]:
        plan = self._plan.get((op.step, op.name))
        if plan is None:
            return inputs
        made = dict(inputs)
        for read, rounding in zip(op.reads, plan, strict=False):
            array = inputs.get(read.value)
            if rounding is not None and array is not None and np.issubdtype(array.dtype, np.floating):
                made[read.value] = rounding.apply(array)
        return made
