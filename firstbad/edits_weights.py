"""Edits of kind `wrong_weight` and `missing_bias`: the op is right, one of its weights is not the model's for it.

Weights that the probe saw the op read come first, then the same weight of the nearest layers, then any of equal shape;
a bias that is not added, added twice, or added where the model has none. Leaves out other gains of norms than a whole
other weight (edits_norm.py) and rounded weights (edits_precision.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import SIMPLE, Edit, call, value
from firstbad.graph import Op, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEAR = 0.15
"""Distance, relative to the difference, at which one vector counts as another: only a gate before the replay."""


def held(case: Case) -> Iterator[Edit]:
    """The numbers that the candidate holds for a weight, where its trace has them: they are not the model's."""
    for own in _weights(case):
        other = case.candidate.graph.by_key.get(("weights", own.name))
        if other is not None and other.dataset and other.hash != own.hash:
            array = np.asarray(case.candidate.array(other), np.float32)
            if array.size == np.prod(own.shape):
                detail = _detail(own, how=case.candidate.outputs.get("weights", {}).get(own.name, ""))
                yield Edit("wrong_weight", detail, {own.id: array.reshape(own.shape)}, cost=SIMPLE)


def other_weights(case: Case) -> Iterator[Edit]:
    """Another weight in the place of one that the region reads."""
    seen = _weights_seen(case)
    for own in _weights(case):
        same = [w for w in _all(case) if w.shape == own.shape and w.id != own.id]
        first = [w for w in same if w.name in seen and own.name not in seen]
        rest = sorted((w for w in same if w not in first), key=lambda w: -_likeness(w.name, own.name))
        for other in [*first, *rest]:
            if len(own.shape) > 1 or _could_be(case, own, other):
                yield from _both(case, own, other)
                yield Edit("wrong_weight", _detail(own, read=other.name), {own.id: case.executor.weight(other.name)})
    for own in _weights(case):
        if len(own.shape) == 2 and own.shape[0] == own.shape[1]:
            transposed = case.executor.weight(own.name).T
            yield Edit("wrong_weight", _detail(own, transposed=True), {own.id: transposed})
        yield from _rows_late(case, own)


def _rows_late(case: Case, own: Value) -> Iterator[Edit]:
    """A table (of positions) whose rows stand some places late or early, the last ones first.

    Where rows are looked up by number it is the numbers that are off: edits of positions say so.
    """
    if any("embedding" in op.kind and own.id in {r.value for r in op.reads} for op in case.ops):
        return
    rows = own.shape[-2] if len(own.shape) > 1 else 0
    for by in (1, -1, 2, -2) if rows > 2 else ():
        rolled = np.roll(case.executor.weight(own.name), by, -2)
        yield Edit("wrong_weight", _detail(own, rows_late=by), {own.id: rolled})


def bias(case: Case) -> Iterator[Edit]:
    """A bias left out, added twice, or added where the model has none."""
    for op in case.ops:
        if not op.kind.startswith(("aten.linear", "aten.conv", "aten.addmm", "aten.layer_norm")):
            continue
        at = 0 if op.kind.startswith("aten.addmm") else 3 if op.kind.startswith("aten.layer_norm") else 2
        args = list(op.attrs.get("args", ()))
        if len(args) <= at:
            continue
        if isinstance(args[at], Mapping) and "v" in args[at]:
            own = case.reference.graph.values[args[at]["v"]]
            content = case.array(own)
            if content is None or own.kind != "weight" or not np.any(content):
                continue
            yield Edit("missing_bias", _detail(own), {own.id: np.zeros_like(content)})
            yield Edit("extra_op", _detail(own, op="bias", times=2), {own.id: content * 2})
            yield Edit("wrong_variant", _detail(own, variant="bias subtracted"), {own.id: -content})
        elif args[at] is None and at == 2:
            yield from _foreign_bias(case, op, args)


def _foreign_bias(case: Case, op: Op, args: list[Any]) -> Iterator[Edit]:
    """The op has no bias in the model: any other's may have been added."""
    weight = case.reference.graph.values[args[1]["v"]]
    for other in sorted(_all(case), key=lambda w: -_likeness(w.name, weight.name)):
        if other.shape == weight.shape[:1] and _near(_rows_mean(case), case.executor.weight(other.name)):
            new = call(case.reference.graph, op, op.kind, [*args[:2], value(other.id), *args[3:]], op.writes[0])
            detail = {"slot": "bias", "weight": "", "read": other.name}
            yield Edit("wrong_weight", detail, ops={op.id: (new,)})


def _both(case: Case, own: Value, other: Value) -> Iterator[Edit]:
    """Weight and bias of another module at once."""
    module, _, word = own.name.rpartition(".")
    foreign, _, foreign_word = other.name.rpartition(".")
    if word != "weight" or foreign_word != "weight":
        return
    here = {w.name: w for w in _weights(case)}
    mine, theirs = here.get(f"{module}.bias"), case.reference.graph.by_key.get(("weights", f"{foreign}.bias"))
    if mine is not None and theirs is not None and mine.shape == theirs.shape:
        replaced = {w.id: case.executor.weight(o.name) for w, o in ((own, other), (mine, theirs))}
        yield Edit("wrong_weight", {"slot": "weight and bias", "weight": own.name, "read": other.name}, replaced)


def _could_be(case: Case, own: Value, other: Value) -> bool:
    """Whether a vector added to every row may have been another; what is not a sum cannot be told so."""
    if not own.name.endswith("bias") or case.ops[-1].kind.startswith("aten.layer_norm"):
        return True
    if case.ops[-1].kind.startswith("aten.conv"):
        return True
    a, b = case.executor.weight(own.name), case.executor.weight(other.name)
    return _near(_rows_mean(case), np.asarray(b, np.float64) - a)


def _rows_mean(case: Case) -> NDArray[np.float64]:
    return np.asarray(case.signature.difference.mean((0, 1)))


def _near(seen: NDArray[Any], expected: NDArray[Any]) -> bool:
    if seen.size != expected.size:
        return False
    size = float(np.linalg.norm(seen))
    return size > 0 and float(np.linalg.norm(seen - np.asarray(expected, np.float64).ravel())) < max(NEAR * size, 1e-12)


def _weights(case: Case) -> list[Value]:
    return [case.reference.graph.values[i] for i in case.region.weights]


def _all(case: Case) -> list[Value]:
    return [v for v in case.reference.graph.values if v.kind == "weight"]


def _weights_seen(case: Case) -> set[str]:
    """Names of the weights that the candidate's op was seen to read."""
    values, reads = case.candidate.graph.values, case.op.reads if case.op is not None else ()
    return {values[r.value].name for r in reads if r.value >= 0 and values[r.value].kind == "weight"}


def _likeness(a: str, b: str) -> float:
    """Names of the same place in another layer are the most alike; the nearest layer first."""
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


def _detail(own: Value, **more: Any) -> dict[str, Any]:
    return {"slot": own.name.rpartition(".")[2], "weight": own.name, **more}
