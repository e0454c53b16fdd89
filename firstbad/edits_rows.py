"""Edits in which a row, a head or a whole operand has what belongs to others.

The statistics of a norm are those of another row; a head of a product meets another head of its operand (which one is
found head by head); an operand is replaced by its own mean or by one of its slices; some columns or rows of the output
have another one added to them. What is chosen from the wrong values counts as fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, LOOSE, After, Edit, value
from firstbad.edits_constant import nice
from firstbad.edits_layout import heads_of, shown
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import Op
from firstbad.signature import runs
from firstbad.statement import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROBE = 64
"""Rows of a head on which its partner is sought."""

MOST_HEADS = 64

NEAR = 1e-3
"""Share of a slice's square that may be left over: only a gate before the replay."""


def statistics(case: Case) -> Iterator[Edit]:
    """The mean, the deviation, or both, of another row."""
    for op in case.ops:
        if word_of(op) not in ("layer_norm", "native_layer_norm") or len(op.attrs["args"]) < 5:
            continue
        rows = case.reference.graph.values[op.writes[0]].shape
        T = rows[-2] if len(rows) > 1 else 1
        if len(op.attrs["args"][1]) != 1 or T < 2:
            continue
        at = np.arange(T)
        maps = {"row before": np.maximum(at - 1, 0), "row after": np.minimum(at + 1, T - 1), "first row": at * 0}
        maps |= {"last row": at * 0 + T - 1, "row before, wrapped round": (at - 1) % T}
        for how, chosen in maps.items():
            for which in ("mean", "deviation", "mean and deviation"):
                index = next(case.fresh)
                detail = {"variant": f"the norm with the {which} of the {how}", "model": "that of each row"}
                made = _normed(case, op, index, which, len(rows) - 2)
                yield Edit("wrong_variant", detail, {index: chosen}, {op.id: made})


def _normed(case: Case, op: Op, index: int, which: str, axis: int) -> tuple[Op, ...]:
    x, _, gain, offset, eps, *_ = op.attrs["args"]
    chain = Chain(case, op, [])
    mean = chain("mean.dim", Id(x["v"]), [-1], True)
    centred = chain("sub.Tensor", Id(x["v"]), Id(mean))
    second = chain("mean.dim", Id(chain("square.default", Id(centred))), [-1], True)
    root = chain("sqrt.default", Id(chain("add.Tensor", Id(second), float(eps))))
    if "mean" in which:
        other = chain("index_select.default", Id(mean), axis, Id(index))
        centred = chain("sub.Tensor", Id(x["v"]), Id(other))
    if "deviation" in which:
        root = chain("index_select.default", Id(root), axis, Id(index))
    y = chain("div.Tensor", Id(centred), Id(root))
    for kind, parameter in (("mul.Tensor", gain), ("add.Tensor", offset)):
        if isinstance(parameter, dict):
            y = chain(kind, Id(y), parameter)
    chain("alias.default", Id(y), last=True)
    return tuple(chain.made)


def operands(case: Case) -> Iterator[Edit]:
    """An operand of a product, or the input of a norm or softmax, is its own mean or one slice everywhere."""
    op = case.ops[-1]
    if word_of(op) not in ("matmul", "bmm", "mul", "add", "linear") or not case.floats:
        return
    for argument in op.attrs["args"][:2]:
        i = argument["v"] if isinstance(argument, dict) and "v" in argument else None
        held = case.preview_value(i) if i is not None else None
        if i is None or held is None or held.ndim < 2 or not np.issubdtype(held.dtype, np.floating):
            continue
        if case.reference.graph.values[i].kind == "weight" or not np.isfinite(held).all():
            continue
        for axis in range(max(0, held.ndim - 3), held.ndim):
            n = held.shape[axis]
            if n < 2:
                continue
            name = {-1: "columns", -2: "rows", -3: "heads"}[axis - held.ndim]
            mean = held.astype(np.float64).mean(axis, keepdims=True)
            detail = {"variant": f"with the mean over the {name} of", "input": shown(case, i)}
            yield Edit("wrong_variant", detail, {i: np.broadcast_to(mean, held.shape)})
            for word, k in (("first", 0), ("last", n - 1)):
                detail = {"variant": f"with the {word} of the {name} everywhere of", "input": shown(case, i)}
                yield Edit("wrong_variant", detail, {i: np.broadcast_to(held.take([k], axis), held.shape)})


def partners(case: Case) -> Iterator[Edit]:
    """The wrong heads of a product, each with the head of one operand that makes it."""
    op = case.ops[-1]
    if word_of(op) not in ("matmul", "bmm") or not case.floats or case.signature.groups.all():
        return
    ids = [a["v"] for a in op.attrs["args"][:2] if isinstance(a, dict)]
    held = [case.preview_value(i) for i in ids]
    if len(held) != 2 or held[0] is None or held[1] is None or held[0].ndim < 3 or held[1].ndim < 3:
        return
    a, b = (np.asarray(x, np.float64) for x in held if x is not None)
    G = case.signature.shape[0]
    if a.shape[:-2] != b.shape[:-2] or not 1 < G <= MOST_HEADS:
        return
    a, b = a.reshape(G, *a.shape[-2:]), b.reshape(G, *b.shape[-2:])
    rows = np.linspace(0, a.shape[1] - 1, min(PROBE, a.shape[1])).astype(int)
    own = np.asarray(case.signature.own, np.float64)
    wrong = np.flatnonzero(case.signature.groups)
    for which in (1, 0):
        chosen = np.arange(G)
        for g in wrong:
            far = [
                float(np.linalg.norm((a[g, rows] @ b[j] if which else a[j][rows] @ b[g]) - own[g, rows]))
                for j in range(G)
            ]
            chosen[g] = int(np.argmin(far))
        if np.array_equal(chosen, np.arange(G)):
            continue
        said = ", ".join(f"{g} with {chosen[g]}" for g in wrong[:6])
        detail = {"what": "heads", "input": shown(case, ids[which]), "how": f"exchanged: {said}"}
        content = held[which]
        assert content is not None
        moved = content.reshape(G, *content.shape[-2:])[chosen].reshape(content.shape)
        yield Edit("heads", detail, {ids[which]: moved}, cost=FITTED)


def neighbours(case: Case) -> Iterator[Edit]:
    """Some columns (rows) have another one added, a fixed distance away and times a factor; or are that one."""
    s = case.signature
    if not case.floats or s.total == 0 or not np.isfinite(np.asarray(s.own, np.float64)).all():
        return
    y = np.asarray(s.expected, np.float64)
    heads = heads_of(case)
    for axis, name, mask in ((2, "columns", s.columns), (1, "rows", s.rows)):
        n = s.shape[axis]
        places = np.flatnonzero(mask)
        if n < 3 or places.size in (0, n):
            continue
        width = {n // heads, -(n // heads)} if axis == 2 and 1 < heads < n else set()
        for k in (*(j for m in range(1, 5) for j in (m, -m)), *sorted(width - {0})):
            inside = (places + k >= 0) & (places + k < n)
            there = np.clip(places + k, 0, n - 1)
            d, other = np.take(s.difference, places, axis), np.take(y, there, axis)
            size = np.moveaxis(other, axis, 0)[inside].ravel()
            off = np.moveaxis(d, axis, 0)[inside].ravel()
            power = float(size @ size)
            if power <= 0:
                continue
            factor = float(off @ size) / power
            left = off - factor * size
            if float(left @ left) > NEAR * float(off @ off):
                continue
            number = nice(factor, 1e-5)
            detail = {"op": "add", "adds_slice": f"{name} {k:+d}", name: spans(runs(mask)), "number": number}
            after = _added(places[inside], k, number, axis, s.shape)
            yield Edit("extra_op", detail, after=(after,), computes=True, cost=LOOSE)


def _added(places: NDArray[Any], k: int, factor: float, axis: int, folded: tuple[int, int, int]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.array(y).reshape(folded)
        where: list[Any] = [slice(None)] * 3
        where[axis] = places
        more = np.take(np.asarray(y).reshape(folded), places + k, axis) * np.asarray(factor, made.dtype)
        made[tuple(where)] += more
        return made.reshape(y.shape)

    return after


def choices(case: Case) -> Iterator[Edit]:
    """Another choice than the largest: the next one, the least, the best of a part only."""
    op = case.ops[-1]
    if word_of(op) not in ("argmax", "argmin") or not op.reads:
        return
    source = op.reads[0].value
    scores = case.preview_value(source)
    args = op.attrs["args"]
    if scores is None or len(args) < 2 or not isinstance(args[1], int) or scores.ndim == 0:
        return
    axis, V, word = args[1] % scores.ndim, scores.shape[args[1] % scores.ndim], word_of(op)
    graph = case.reference.graph
    for k in range(2, min(V, 6)):
        chain = Chain(case, op, [])
        ordered = chain("argsort.default", Id(source), axis, word == "argmax")
        chain("select.int", value(ordered), axis, k - 1, last=True)
        detail = {"variant": f"the place of number {k} in order", "model": "of the first"}
        yield Edit("wrong_variant", detail, ops={op.id: tuple(chain.made)})
    for how, a, z in (("first half", 0, V // 2), ("second half", V // 2, V)):
        part = np.arange(V).reshape([-1 if i == axis else 1 for i in range(scores.ndim)])
        lowest = np.where((part >= a) & (part < z), scores, -np.inf if word == "argmax" else np.inf)
        detail = {"what": "input", "input": graph.values[source].name, "variant": f"only looks at the {how} of"}
        yield Edit("wrong_variant", detail, {source: lowest.astype(scores.dtype)})
    chain = Chain(case, op, [])
    chain(f"{'argmin' if word == 'argmax' else 'argmax'}.default", Id(source), args[1], *args[2:], last=True)
    yield Edit(
        "wrong_variant", {"variant": "the place of the least", "model": "the largest"}, ops={op.id: tuple(chain.made)}
    )
