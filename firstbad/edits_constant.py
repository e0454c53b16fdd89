"""Edits of kind `wrong_constant`: one number of the op is another, and which one is solved for.

A number in the op's call (eps, a scale, a factor), a factor on the output, on an input or on a weight, a constant
added, a cap: whatever the output depends on smoothly, by Gauss-Newton on the sample, in float64. The number is then
rounded to the shortest one within its own uncertainty, and the edit stands for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, After, Edit, call
from firstbad.edits_variant import word_of
from firstbad.errors import CompareError
from firstbad.graph import Op
from firstbad.judge import MASKED
from firstbad.signature import runs
from firstbad.statement import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS = 16
SIGMAS = 4.0

SMALL, SEEN = 1e-8, 1e-12
"""A step of a number that can be seen, and the least relative change that counts as seen in float64."""

FEWEST = 8
"""Elements that a factor or an offset must hold for: of fewer it would only be another way to write them down."""

Make = Callable[[float], Edit]

_SHAPES = ("view", "reshape", "arange", "full", "zeros", "ones", "where", "masked_fill", "argmax", "embedding")


def call_numbers(case: Case) -> Iterator[Edit]:
    """A floating-point number in the recorded call of an op."""
    for op in case.ops:
        if word_of(op) in _SHAPES:
            continue
        args, kwargs = list(op.attrs.get("args", ())), dict(op.attrs.get("kwargs", {}))
        for where, number in [*enumerate(args), *kwargs.items()]:
            usual = isinstance(number, float) or (where == "alpha" and isinstance(number, int))
            if usual and not isinstance(number, bool) and math.isfinite(number):
                yield from solved(case, _in_call(case, op, args, kwargs, where), float(number))


def _in_call(case: Case, op: Op, args: list[Any], kwargs: Mapping[str, Any], where: int | str) -> Make:
    name = where if isinstance(where, str) else _argument(op, where)
    model = kwargs[where] if isinstance(where, str) else args[where]

    def make(number: float) -> Edit:
        if isinstance(where, str):
            new = call(case.reference.graph, op, op.kind, args, op.writes[0], {**kwargs, where: number})
        else:
            changed = [*args[:where], number, *args[where + 1 :]]
            new = call(case.reference.graph, op, op.kind, changed, op.writes[0], kwargs)
        detail = {"what": name, "op": word_of(op), "number": number, "model": model}
        return Edit("wrong_constant", detail, ops={op.id: (replace(new, writes=op.writes),)}, cost=FITTED)

    return make


def _argument(op: Op, at: int) -> str:
    known = {("layer_norm", 4): "eps", ("rms_norm", 3): "eps", ("group_norm", 4): "eps", ("batch_norm", 7): "eps"}
    return known.get((word_of(op), at), "factor" if word_of(op) in ("mul", "div") else f"argument {at}")


def input_factors(case: Case) -> Iterator[Edit]:
    """A factor on one input or one weight, where that is not a factor on the output."""
    several = len(case.region.inputs) + len(case.region.weights) > 1
    curved = word_of(case.ops[-1]) not in ("linear", "matmul", "add", "sub", "mul", "conv1d", "bmm")
    if not (several or curved) or not case.floats:
        return
    for i in (*case.region.inputs, *case.region.weights):
        held, known = case.array(i), case.reference.graph.values[i]
        if held is None or not np.issubdtype(held.dtype, np.floating) or not np.isfinite(held).all():
            continue

        def make(number: float, i: int = i, held: NDArray[Any] = held, name: str = known.name) -> Edit:
            replaced = {i: np.asarray(held, np.float64) * number}
            return Edit(
                "wrong_constant",
                {"what": "factor of", "input": name, "number": number, "model": 1},
                replaced,
                cost=FITTED,
            )

        yield from solved(case, make, 1.0)


def output_factors(case: Case) -> Iterator[Edit]:
    """A factor on the output, in all of it or in the groups, rows or columns that are wrong."""
    if not case.floats or case.signature.total == 0:
        return
    s = case.signature
    for axes, part in _boxes(case):
        inside = np.zeros(s.shape, bool)
        inside[part] = True
        y = np.where(np.isfinite(s.expected) & (np.asarray(s.expected) > MASKED), s.expected, 0.0)[inside]
        d = np.where(np.isfinite(s.difference), s.difference, 0.0)[inside]
        if y @ y <= 0 or d.size < FEWEST:
            continue
        slope = float(d @ y / (y @ y))
        left = d - slope * y
        if 1 - float(left @ left) / max(float(d @ d), 1e-300) > 0.5 and slope != -1:
            spread = math.sqrt(float(left @ left) / max(1, d.size)) / math.sqrt(float(y @ y))
            number = nice(1 + slope, SIGMAS * spread)
            detail = {"what": "gain", "number": number, "model": 1, **axes}
            yield Edit("wrong_constant", detail, after=(_times(number, part, s.shape),), computes=True, cost=FITTED + 1)
        offset = float(d.mean())
        left = d - offset
        if d.size > 1 and 1 - float(left @ left) / max(float(d @ d), 1e-300) > 0.5:
            number = nice(offset, SIGMAS * math.sqrt(float(left @ left) / d.size**2))
            detail = {"what": "offset", "number": number, "model": 0, **axes}
            yield Edit("wrong_constant", detail, after=(_plus(number, part, s.shape),), computes=True, cost=FITTED + 1)


def caps(case: Case) -> Iterator[Edit]:
    """A soft cap c tanh(y / c) that the model has not."""
    size = float(np.nanmax(np.abs(case.signature.own), initial=0.0)) if case.floats else 0.0
    if not 0 < size < 1e30 or any(word_of(op) == "tanh" for op in case.ops):
        return

    def make(number: float) -> Edit:
        def capped(y: NDArray[Any]) -> NDArray[Any]:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # a mask's lowest number
                return np.asarray(number * np.tanh(y / number))

        after = (capped,)
        return Edit("extra_op", {"op": "soft cap", "number": number}, after=after, computes=True, cost=FITTED)

    yield from solved(case, make, 1.1 * size)


def _boxes(case: Case) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
    """The whole value, and the groups x rows x columns that hold every wrong element where that is less."""
    s = case.signature
    whole: tuple[dict[str, Any], tuple[Any, ...]] = ({}, np.ix_(*(np.arange(n) for n in s.shape)))
    masks = (s.groups, s.rows, s.columns)
    if not s.wrong.any() or all(m.all() for m in masks):
        return [whole]
    indices = [np.flatnonzero(m) if not m.all() else np.arange(n) for m, n in zip(masks, s.shape, strict=True)]
    words = {
        name: spans(runs(m))
        for name, m in zip(("groups", "rows", "columns"), masks, strict=True)
        if not m.all() and m.size > 1
    }
    return [(words, np.ix_(*indices)), whole]


def _times(number: float, part: tuple[Any, ...], folded: tuple[int, int, int]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.array(y).reshape(folded)
        with np.errstate(over="ignore", invalid="ignore"):  # a mask's lowest number
            made[part] = made[part] * np.asarray(number, made.dtype)
        return made.reshape(y.shape)

    return after


def _plus(number: float, part: tuple[Any, ...], folded: tuple[int, int, int]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.array(y).reshape(folded)
        made[part] = made[part] + np.asarray(number, made.dtype)
        return made.reshape(y.shape)

    return after


def solved(case: Case, make: Make, start: float) -> Iterator[Edit]:
    """The edit with the number that fits best, if any fits."""
    own = np.asarray(case.own(), np.float64).reshape(-1)[case.sample]

    def at(number: float) -> NDArray[np.float64]:
        return np.asarray(case.preview(make(number), "float64"), np.float64).reshape(-1)[case.sample]

    try:
        y = at(start)
    except CompareError:  # something else of this op is known to be wrong already
        return
    number = np.isfinite(own) & np.isfinite(y) & (own > MASKED) & (y > MASKED)
    before = float(np.sum((own[number] - y[number]) ** 2))
    x, best = start, before
    slope = np.zeros_like(own)
    for _ in range(STEPS):
        step = abs(x) * 1e-4 or 1e-8
        with np.errstate(all="ignore"):
            slope = np.where(number, (at(x + step) - y) / step, 0.0)
            if step < SMALL and float(np.abs(slope * step).max()) < SEEN * float(np.abs(y[number]).max(initial=0.0)):
                step = SMALL  # an eps of 1e-12: a ten-thousandth of it is lost in float64
                slope = np.where(number, (at(x + step) - y) / step, 0.0)
            d = np.where(number, own - y, 0.0)
            move = float(d @ slope) / max(float(slope @ slope), 1e-300)
        if not math.isfinite(move) or move == 0:
            break
        tried = x + move
        with np.errstate(all="ignore"):
            y_new = at(tried)
        left = float(np.sum((own[number] - y_new[number]) ** 2))
        if not left < best:
            break
        done = best - left < 1e-6 * best
        x, y, best = tried, y_new, left
        if done:
            break
    power = float(slope @ slope)
    if x == start or power <= 0:
        return
    spread = math.sqrt(best / max(1, int(number.sum())) / power)
    # One rounding may be shared by a whole row (of a mean, of a root): only more rows help.
    size = float(np.sum(y[number] ** 2)) / max(1, case.own().size // (case.own().shape or (1,))[-1])
    spread = max(spread, case.u * math.sqrt(size / power)) if math.isfinite(size) else spread
    if abs(x - start) < 2 * spread:
        return
    if 0 < x <= SIGMAS * spread:
        spread = 0.99 * x / SIGMAS  # not nothing, if it need not be: an eps is seldom 0
    rounded = nice(x, max(SIGMAS * spread, 1e-9 * abs(start)))
    if rounded != start:
        yield make(rounded)


def nice(number: float, slack: float) -> float:
    """The number with the fewest digits within `slack` of this one (float32 at best); well-known ones first."""
    slack = max(slack, 1.2e-7 * abs(number))
    for known in (0.0, 1.0, -1.0, 2.0, 0.5):
        if abs(number - known) <= slack:
            return known
    for root in range(2, 4097):
        if abs(number - root**-0.5) <= min(slack, 1e-4 * abs(number)):
            return float(root**-0.5)
        if number > 1.2 and abs(number - root**0.5) <= min(slack, 1e-4 * abs(number)):
            return float(root**0.5)
        if root**0.5 > number > 1.2:
            break
    if number > 0 and abs(10.0 ** round(math.log10(number)) - number) <= slack:
        return float(f"1e{round(math.log10(number))}")
    for digits in range(1, 16):
        short = float(f"{number:.{digits - 1}e}")
        if abs(short - number) <= slack:
            return short
    return number
