"""Edits of kind `missing_op`, `extra_op` and `order`: an op left out, done twice, put in, or swapped with another.

The ops are the region's own and its neighbours in the graph: those that made its inputs, that read them too, and that
read its value. Sums of two values (residuals) are fitted as a whole: each addend may be missing, doubled or subtracted.
Leaves out ops that the model has nowhere near.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import Edit, call, value
from firstbad.edits_mask import is_mask
from firstbad.graph import Op
from firstbad.replay import moves_only

ROUND = 2e-3
"""How near to a whole number a fitted factor of an addend must be to be tried as one."""


def left_out(case: Case) -> Iterator[Edit]:
    """An op, or several in a row, gives back what it was given."""
    if not case.floats:
        return
    for n in range(1, len(case.ops) + 1):
        for first in range(len(case.ops) - n + 1):
            run = case.ops[first : first + n]
            if not _floats(case, run[-1]):
                continue  # a position or an id: told as that
            for source in _data_inputs(case, run[0]):
                new = _copy(case, run[-1], source)
                gone: dict[int, tuple[Op, ...]] = {op.id: () for op in run[:-1]}
                if any(is_mask(case, r.value) for r in run[0].reads):
                    continue  # told as a mask that is missing
                others = [_name(case, v) for v in _data_inputs(case, run[0]) if v != source]
                detail: dict[str, Any] = {"op": _word(run[0]), "keeps": _name(case, source)}
                if others:
                    detail["drops"] = others[0]
                if n > 1:
                    detail["ops"] = [_word(op) for op in run]
                absent = [name for op in run if (name := _absent(case, op))]
                kind = "missing_value" if len(absent) == n else "missing_op"
                if kind == "missing_value":
                    detail["values"] = absent
                yield Edit(kind, detail, ops=gone | {run[-1].id: (new,)})


def doubled(case: Case) -> Iterator[Edit]:
    """An op done twice: its output goes through it again."""
    for op in case.ops:
        for source in _data_inputs(case, op):
            middle = next(case.fresh)
            first = replace(op, writes=(middle, *op.writes[1:]))
            second = _with_input(case, op, source, middle)
            added = [_name(case, v) for v in _data_inputs(case, op) if v != source] if _word(op) == "add" else []
            detail = {"op": _word(op), "times": 2} | ({"adds": added[0]} if added else {})
            yield Edit("extra_op", detail, ops={op.id: (first, second)})


def sums(case: Case) -> Iterator[Edit]:
    """Addends by their fitted factors: (0, 1) residual dropped, (2, 1) doubled, (1, -1) subtracted."""
    op = case.ops[-1]
    if op.kind not in ("aten.add.Tensor", "aten.sub.Tensor") or len(op.reads) != 2:
        return
    ids = [r.value for r in op.reads]
    arrays = [case.preview_value(i) for i in ids]
    if any(a is None for a in arrays):
        return
    wide = [
        np.broadcast_to(a, case.own().shape).ravel()[case.sample].astype(np.float64) for a in arrays if a is not None
    ]
    if not all(np.isfinite(w).all() and np.any(w) for w in wide):
        return
    own = case.own().ravel()[case.sample].astype(np.float64)
    if not np.isfinite(own).all():
        return
    factors = np.linalg.lstsq(np.stack(wide, 1), own, rcond=None)[0]
    near = [float(round(f)) if abs(f - round(f)) < ROUND else float(f) for f in factors]
    if near == [1.0, 1.0]:
        return
    kind, detail = _sum_detail(case, ids, near)
    makes = []
    for i, f in zip(ids, near, strict=True):
        scaled = next(case.fresh)
        makes.append((scaled, call(case.reference.graph, op, "aten.mul.Tensor", [value(i), f], scaled)))
    joined = call(case.reference.graph, op, "aten.add.Tensor", [value(s) for s, _ in makes], op.writes[0], {"alpha": 1})
    yield Edit(kind, detail, ops={op.id: (*(m for _, m in makes), joined)}, cost=2)


def _sum_detail(case: Case, ids: list[int], factors: list[float]) -> tuple[str, dict[str, Any]]:
    whole = all(f == round(f) for f in factors)
    odd = next(i for i, f in enumerate(factors) if f != 1)
    name, other = _name(case, ids[odd]), _name(case, ids[1 - odd])
    if whole and factors[odd] == 0:
        return "missing_op", {"op": "add", "drops": name, "keeps": other}
    if whole and factors[odd] == 2:
        return "extra_op", {"op": "add", "times": 2, "adds": name}
    if whole and factors[odd] == -1:
        return "wrong_variant", {"variant": "subtracts", "input": name}
    return "wrong_constant", {"what": "factor of an addend", "input": name, "number": factors[odd], "model": 1}


def put_in(case: Case) -> Iterator[Edit]:
    """A neighbour's op on the output, on an input, or in the place of the region's own op."""
    shape, graph = case.region.value.shape, case.reference.graph
    last = case.ops[-1]
    for other in _neighbours(case):
        (source, *_) = _data_inputs(case, other)
        word = {"op": _word(other), "of": other.name}
        middle = next(case.fresh)
        first = replace(last, writes=(middle, *last.writes[1:]))
        if graph.values[other.writes[0]].shape == shape:
            after = replace(_with_input(case, other, source, middle), id=last.id, writes=last.writes[:1])
            yield Edit("extra_op", word | {"where": "after"}, ops={last.id: (first, after)})
        for own in _data_inputs(case, case.ops[0]):
            if graph.values[own].shape != graph.values[source].shape:
                continue
            middle = next(case.fresh)
            before = replace(_with_input(case, other, source, own), writes=(middle,))
            then = _with_input(case, case.ops[0], own, middle)
            detail = word | {"where": "before", "input": _name(case, own)}
            yield Edit("extra_op", detail, ops={case.ops[0].id: (before, then)})
            if len(case.ops) == 1 and graph.values[other.writes[0]].shape == shape:
                instead = replace(_with_input(case, other, source, own), id=last.id, writes=last.writes[:1])
                yield Edit(
                    "order", {"op": _word(last), "runs": word["op"], "of": other.name}, ops={last.id: (instead,)}
                )


def swapped(case: Case) -> Iterator[Edit]:
    """Two ops in a row the other way round: inside the region, or the op and the one that made its input."""
    graph = case.reference.graph
    for a, b in itertools.pairwise(case.ops):
        yield from _swap(case, a, b, b.id)
    op = case.ops[0]
    for source in _data_inputs(case, op):
        maker = graph.values[source].op
        if maker >= 0 and not moves_only(graph.ops[maker]) and len(case.ops) == 1:
            yield from _swap(case, graph.ops[maker], op, op.id)


def _swap(case: Case, a: Op, b: Op, at: int) -> Iterator[Edit]:
    for source in _data_inputs(case, a)[:1]:
        if a.writes[0] not in _data_inputs(case, b):
            return
        middle = next(case.fresh)
        first = replace(_with_input(case, b, a.writes[0], source), writes=(middle,))
        second = replace(_with_input(case, a, source, middle), writes=b.writes[:1])
        gone: dict[int, tuple[Op, ...]] = {a.id: ()} if any(a.id == op.id for op in case.region.ops) else {}
        detail = {"op": _word(b), "before": _word(a), "of": a.name}
        yield Edit("order", detail, ops=gone | {at: (first, second)})


def _neighbours(case: Case) -> list[Op]:
    """Ops around the region that compute one tensor from one other of the same shape."""
    graph = case.reference.graph
    near: dict[int, None] = {}
    for v in (*case.region.inputs, case.region.value.id):
        for reader in graph.readers.get(v, ()):
            near[reader] = None
        if v != case.region.value.id and graph.values[v].op >= 0:
            near[graph.values[v].op] = None
    own = {op.id for op in case.region.ops}
    found: dict[tuple[str, str], Op] = {}
    for i in near:
        op = graph.ops[i]
        inputs = _data_inputs(case, op)
        if i in own or moves_only(op) or len(inputs) != 1 or len(op.writes) != 1:
            continue
        if graph.values[inputs[0]].shape == graph.values[op.writes[0]].shape:
            found[op.kind, op.name] = op
    return list(found.values())


def _data_inputs(case: Case, op: Op) -> list[int]:
    """What the op reads that is no weight and has as many elements as it writes."""
    graph = case.reference.graph
    size = int(np.prod(graph.values[op.writes[0]].shape, dtype=np.int64))
    ids = dict.fromkeys(r.value for r in op.reads if r.value >= 0)
    return [
        i
        for i in ids
        if graph.values[i].kind != "weight"
        and int(np.prod(graph.values[i].shape, dtype=np.int64)) == size
        and graph.values[i].dtype == graph.values[op.writes[0]].dtype
    ]


def _absent(case: Case, op: Op) -> str:
    """The name of what the op makes, where the candidate has it in other layers or steps and not here; else ""."""
    value = case.reference.graph.values[op.writes[0]]
    theirs = case.candidate.graph.by_key
    if value.id == case.region.value.id or (value.step, value.name) in theirs:
        return ""
    like = re.sub(r"\d+", "N", value.name)
    known = any(v.name == value.name or re.sub(r"\d+", "N", v.name) == like for v in case.candidate.graph.values)
    return value.name if known and value.kind == "value" else ""


def _floats(case: Case, op: Op) -> bool:
    return "float" in case.reference.graph.values[op.writes[0]].dtype


def _with_input(case: Case, op: Op, old: int, new: int) -> Op:
    """The op with another value in the place of `old`."""

    def exchanged(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {"v": new} if dict(item) == {"v": old} else item
        return [exchanged(i) for i in item] if isinstance(item, list | tuple) else item

    args = [exchanged(a) for a in op.attrs.get("args", ())]
    kwargs = {k: exchanged(a) for k, a in op.attrs.get("kwargs", {}).items()}
    return replace(call(case.reference.graph, op, op.kind, args, op.writes[0], kwargs), writes=op.writes)


def _copy(case: Case, op: Op, source: int) -> Op:
    """`source` in the place of the op's output."""
    shape = list(case.reference.graph.values[op.writes[0]].shape)
    return call(case.reference.graph, op, "aten.reshape.default", [value(source), shape], op.writes[0])


def _word(op: Op) -> str:
    return op.kind.removeprefix("aten.").partition(".")[0]


def _name(case: Case, v: int) -> str:
    """The name of a value, or of what it shows another view of."""
    graph = case.reference.graph
    while graph.values[v].kind == "view" and graph.ops[graph.values[v].op].reads:
        v = graph.ops[graph.values[v].op].reads[0].value
    return graph.values[v].name
