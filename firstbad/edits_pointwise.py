"""Edits of every element by itself: a function too many, numbers on a grid, pieces of a function cut off.

What is on a grid is seen in the numbers themselves: the largest step of which all are multiples. Beyond what its bits
can count a grid wraps round. Kinds `extra_op`, `precision`, `overflow`, `wrong_variant`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, LOOSE, After, Edit
from firstbad.edits_constant import SIGMAS, nice
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.judge import MASKED
from firstbad.noise import FACTOR, QUARTER

if TYPE_CHECKING:
    from numpy.typing import NDArray

FUNCTIONS = "abs neg relu square reciprocal round floor ceil trunc sign exp tanh sigmoid sqrt log1p sin cos".split()
POINTWISE = frozenset("gelu silu relu sigmoid tanh elu mish softplus hardswish exp sqrt rsqrt".split())
FEW = 4096
STEPS = [2.0**-k for k in range(-4, 24)] + [10.0**-k for k in range(1, 7)]
Function = Callable[["NDArray[Any]"], "NDArray[Any]"]
MODES: Mapping[str, Function] = {"nearest": np.rint, "down": np.floor, "to zero": np.trunc}
BEFORE: Mapping[str, Function] = {"abs": np.abs, "neg": np.negative, "relu": lambda x: np.maximum(x, 0)}


def functions(case: Case) -> Iterator[Edit]:
    """A function of one number on the output, or on an input before the op."""
    if not case.floats:
        return
    last, graph = case.ops[-1], case.reference.graph
    for name in FUNCTIONS:
        if name == word_of(last):
            continue
        chain = Chain(case, last, [])
        middle = next(case.fresh)
        first = replace(last, writes=(middle, *last.writes[1:]))
        chain(f"{name}.default", Id(middle), last=True)
        yield Edit("extra_op", {"op": name, "where": "after"}, ops={last.id: (first, *chain.made)})
    for i in case.region.inputs:
        held = case.array(i)
        if held is None or held.ndim == 0 or not np.issubdtype(held.dtype, np.floating):
            continue
        for name, function in BEFORE.items():
            if name == "neg" and word_of(last) in ("add", "sub"):
                continue  # told as an addend that is subtracted
            detail = {"op": name, "where": "before", "input": graph.values[i].name}
            yield Edit("extra_op", detail, {i: function(held)})


def grids(case: Case) -> Iterator[Edit]:
    """The output in whole steps, wrapped round or not; an input of a pointwise op in whole steps."""
    if not case.floats or not case.own().size:
        return
    own = np.asarray(case.own(), np.float64)
    if np.isfinite(own).all():
        step = _step(own.ravel()[case.sample])
        for mode in MODES if step else ():
            for bits in (0, 8, 16):
                yield from _on_grid(case, step, mode, bits)
    op = case.ops[-1]
    if word_of(op) not in POINTWISE or len(case.ops) != 1:
        return
    i = op.reads[0].value
    x = case.preview_value(i)
    if x is None:
        return
    seen, given = (len(np.unique(a.ravel()[case.sample])) for a in (own, x))
    if own.size > FEW and 2 * seen > given:  # of few numbers most stand alone on their step
        return
    for step, (mode, function) in itertools.product(STEPS, MODES.items()):
        detail = {"what": "input", "input": case.reference.graph.values[i].name, "number": step}
        detail["dtype"] = f"whole steps of {step:g} ({mode})"
        yield Edit("precision", detail, {i: (function(x / step) * step).astype(x.dtype)}, cost=FITTED)


def _step(own: NDArray[np.float64]) -> float:
    """The largest step of which every number is a multiple, where that is more than the numbers' own last digit."""
    top = float(np.abs(own).max(initial=0.0))
    for step in sorted(STEPS, reverse=True):
        if step < top * 2.0**-18:
            return 0.0
        off = own / step
        if top and step < 4 * top and np.all(np.abs(off - np.rint(off)) <= 1e-6 * np.maximum(1, np.abs(off))):
            return step
    return 0.0


def _on_grid(case: Case, step: float, mode: str, bits: int) -> Iterator[Edit]:
    top = step * 2.0 ** (bits - 1) if bits else math.inf
    expected = np.asarray(case.expected, np.float64)
    if bits and np.abs(expected[np.isfinite(expected)]).max(initial=0.0) < top:
        return
    own = np.asarray(case.own(), np.float64)
    scale = np.zeros(1) if case.replayed.scale is None else np.asarray(case.replayed.scale, np.float64)
    slack = case.u * scale * (FACTOR * case.judged.floor.element + QUARTER) / step

    def after(y: NDArray[Any]) -> NDArray[Any]:
        wide = np.asarray(y, np.float64)
        with np.errstate(invalid="ignore"):
            count = MODES[mode](wide / step)
            mine = own / step
            if bits:
                mine = mine + 2.0**bits * np.rint((wide / step - mine) / 2.0**bits)
            low = {"nearest": -0.5, "down": -1.0}.get(mode, 0.0) - (wide > 0) * (mode == "to zero")
            high = {"nearest": 0.5, "down": 0.0}.get(mode, 0.0) + (wide < 0) * (mode == "to zero")
            # near an edge between two steps noise decides, and the candidate's choice counts
            within = (mine - wide / step >= low - slack) & (mine - wide / step <= high + slack)
            count = np.where(within & (np.abs(mine - count) <= 1), mine, count)
            if bits:
                count = (count + 2.0 ** (bits - 1)) % 2.0**bits - 2.0 ** (bits - 1)
        return np.asarray(count * step, y.dtype).reshape(y.shape)

    detail: dict[str, Any] = {"what": "output", "dtype": f"whole steps of {step:g} ({mode})", "number": step}
    if bits:
        how = f"wrapped round ({bits} bits of {step:g})"
        detail = {"what": "output", "input": "output", "dtype": f"int{bits}", "limit": top, "how": how}
    yield Edit("overflow" if bits else "precision", detail, after=(after,), computes=True, cost=FITTED)


def pieces(case: Case) -> Iterator[Edit]:
    """A function of one number that is cut off: a constant, or its own argument, beyond two thresholds."""
    op = case.ops[-1]
    if word_of(op) not in POINTWISE or len(case.ops) != 1 or case.signature.share_wrong == 0:
        return
    held = case.preview_value(op.reads[0].value)
    own = np.asarray(case.own(), np.float64)
    if held is None or held.shape != own.shape or not np.isfinite(own).all():
        return
    x = np.asarray(held, np.float64)
    wrong = case.signature.wrong.reshape(own.shape)
    found: list[tuple[str, float, float | None]] = []
    for side in ("below", "above"):
        sign = 1.0 if side == "above" else -1.0
        beyond = wrong & (sign * x > 0)
        if not beyond.any():
            continue
        edge = float((sign * x)[beyond].min())
        part = sign * x >= edge
        constant = float(own[part].flat[0])
        if np.all(own[part] == constant):
            found.append((side, _between(sign * x, edge) * sign, constant))
        elif np.allclose(own[part], x[part], rtol=1e-6, atol=0):
            found.append((side, _between(sign * x, edge) * sign, None))
        else:
            return
    if found:
        said = " and ".join(f"{'x' if c is None else f'{c:g}'} {side} {edge:g}" for side, edge, c in found)
        detail = {"variant": f"{word_of(op)} with {said}", "model": word_of(op)}
        yield Edit("wrong_variant", detail, after=(_cut(x, found),), computes=True, cost=LOOSE)


def _between(x: NDArray[Any], edge: float) -> float:
    """A threshold with few digits between the last number before `edge` and `edge`."""
    before = float(x[x < edge].max(initial=edge - 1))
    middle = (before + edge) / 2
    return nice(middle, (edge - before) / 2)


def _cut(x: NDArray[Any], found: list[tuple[str, float, float | None]]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.array(y)
        for side, edge, constant in found:
            part = x > edge if side == "above" else x < edge
            made[part] = np.asarray(x if constant is None else np.full(x.shape, constant), made.dtype)[part]
        return made

    return after


def shares(case: Case) -> Iterator[Edit]:
    """A softmax over more terms than there are: zeros of padding, or a sink with a score of its own."""
    for op in case.ops[-1:]:
        if word_of(op) not in ("softmax", "_softmax"):
            continue
        x, axis = case.preview_value(op.attrs["args"][0]["v"]), op.attrs["args"][1]
        if x is None or axis % x.ndim != x.ndim - 1:
            continue
        wide = np.where(np.asarray(x) <= MASKED, -np.inf, np.asarray(x, np.float64))
        total = np.exp(wide).sum(-1)
        own, y = np.asarray(case.own(), np.float64), np.asarray(case.expected, np.float64)
        with np.errstate(all="ignore"):
            more = total * ((y * y).sum(-1) / (own * y).sum(-1) - 1)
        size = float(np.median(more)) if more.size and np.isfinite(more).all() else 0.0
        if not size > 1e-4 or float(np.abs(more - size).max()) > 1e-2 * size + 1e-4:
            continue
        off = float(np.median(np.abs(more - size))) / math.sqrt(max(1, more.size))
        score = nice(math.log(size), max(SIGMAS * off / size, 1e-7))
        number = float(round(size)) if abs(size - round(size)) < 1e-3 * size and round(size) else math.exp(score)
        chain = Chain(case, op, [])
        # e^x / (sum e^x + n) = softmax of x with one more score, log n
        longer = chain("constant_pad_nd.default", Id(op.attrs["args"][0]["v"]), [0, 1], math.log(number))
        made = chain("softmax.int", Id(longer), x.ndim - 1, None)
        chain("slice.Tensor", Id(made), x.ndim - 1, 0, x.shape[-1], 1, last=True)
        if number == round(number):
            detail: dict[str, Any] = {"what": "padding not masked", "keys": x.shape[-1], "padding": int(number)}
            yield Edit("mask", detail, ops={op.id: tuple(chain.made)}, cost=FITTED)
        else:
            detail = {"op": "sink (a score for no key)", "number": score}
            yield Edit("extra_op", detail, ops={op.id: tuple(chain.made)}, cost=FITTED)
