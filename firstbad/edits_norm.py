"""Edits of layer norms and RMS norms: the mean, the variance, eps and the gain, each done another way.

Kind `wrong_variant`, but for a missing offset (`missing_bias`) and another eps (edits_constant.py solves for it). A
norm is written out as mean, variance and gain, so that every part can be changed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import Edit
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import Op, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Form:
    """How a norm is computed; as it stands: a layer norm."""

    centred: bool = True  # the mean is subtracted from what is scaled
    second: str = "variance"  # "variance"; "unbiased" by D - 1; "square": the mean square; "deviation": mean |x - m|
    eps: str = "inside"  # the root; "outside"
    squared: bool = False  # divided by the variance instead of its root
    scaled: bool = True  # divided at all
    axes: tuple[int, ...] = ()  # of the mean and the size; (): those of the norm


FORMS = {
    "RMS norm (the mean is not subtracted)": Form(centred=False, second="square"),
    "the mean is not subtracted, the variance is": Form(centred=False),
    "the mean is subtracted, the mean square is divided by": Form(second="square"),
    "sample variance (D - 1)": Form(second="unbiased"),
    "eps outside the root": Form(eps="outside"),
    "division by the variance, not its root": Form(squared=True),
    "no division by the deviation": Form(scaled=False),
    "mean absolute deviation": Form(second="deviation"),
    "unbiased mean square (D - 1)": Form(centred=False, second="unbiased square"),
    "L2 norm (no division by D)": Form(centred=False, second="sum"),
    "mean and variance of each channel over the rows": Form(axes=(-2,)),
    "mean and variance of all rows together": Form(axes=(-2, -1)),
    "mean square of each channel over the rows": Form(centred=False, second="square", axes=(-2,)),
    "mean square of all rows together": Form(centred=False, second="square", axes=(-2, -1)),
}

_LAYER, _RMS = ("layer_norm", "native_layer_norm"), ("rms_norm", "_fused_rms_norm")


def norms(case: Case) -> Iterator[Edit]:
    """Other forms of the norm, then other gains."""
    yield from _written_out(case)
    for op in case.ops:
        word = word_of(op)
        if word not in _LAYER + _RMS:
            continue
        own = Form() if word in _LAYER else Form(centred=False, second="square")
        forms = {"layer norm": Form(), **FORMS} if word in _RMS else FORMS
        for name, form in forms.items():
            if form != own and (not form.axes or len(case.reference.graph.values[op.writes[0]].shape) > 1):
                made = _written(case, op, form)
                yield Edit("wrong_variant", {"variant": name, "model": word.strip("_")}, ops={op.id: made})
        yield from _gains(case, op)


def _gains(case: Case, op: Op) -> Iterator[Edit]:
    args = op.attrs["args"]
    names = case.reference.graph.values
    for at, slot in ((2, "gain"), (3, "offset")):
        if len(args) <= at or not isinstance(args[at], dict) or "v" not in args[at]:
            continue
        own = names[args[at]["v"]]
        content = case.array(own)
        if own.kind != "weight" or content is None:
            continue
        if slot == "gain":
            yield from _other_gains(own, content)
        elif len(args) > 3 and isinstance(args[2], dict):
            # the offset is added before the gain: gain (x + offset)
            gain = case.array(args[2]["v"])
            if gain is not None:
                detail = {"variant": "offset before the gain", "model": "after it", "weight": own.name}
                yield Edit("wrong_variant", detail, {own.id: content * gain})


def _other_gains(own: Value, content: NDArray[Any]) -> Iterator[Edit]:
    for name, other in (
        ("no gain", np.ones_like(content)),
        ("gain + 1", content + 1),
        ("gain - 1", content - 1),
        ("gain squared", content * content),
        ("gain + 2", content + 2),
    ):
        yield Edit("wrong_variant", {"variant": name, "model": "gain", "weight": own.name}, {own.id: other})


def _written_out(case: Case) -> Iterator[Edit]:
    """A root mean square norm in single ops: its mean square of something else, its gain another."""
    for op in case.ops:
        if word_of(op) == "mul":
            for read in op.reads:
                own = case.reference.graph.values[read.value] if read.value < len(case.reference.graph.values) else None
                content = case.array(own) if own is not None and own.kind == "weight" and len(own.shape) == 1 else None
                if own is not None and content is not None:
                    yield from _other_gains(own, content)
        if word_of(op) == "pow":
            x = op.reads[0].value
            chain = Chain(case, op, [])
            less = chain("sub.Tensor", Id(x), Id(chain("mean.dim", Id(x), [-1], True)))
            chain("pow.Tensor_Scalar", Id(less), op.attrs["args"][1], last=True)
            ops = {op.id: tuple(chain.made)}
            for scaled in case.ops:
                if word_of(scaled) == "mul" and x in {r.value for r in scaled.reads} and len(scaled.reads) == 2:
                    (by,) = {r.value for r in scaled.reads} - {x}
                    own_chain = Chain(case, scaled, [])
                    less = own_chain("sub.Tensor", Id(x), Id(own_chain("mean.dim", Id(x), [-1], True)))
                    own_chain("mul.Tensor", Id(less), Id(by), last=True)
                    ops[scaled.id] = tuple(own_chain.made)
            if len(ops) == 2:
                yield Edit(
                    "wrong_variant", {"variant": "layer norm (the mean is subtracted)", "model": "rms_norm"}, ops=ops
                )


def _written(case: Case, op: Op, form: Form) -> tuple[Op, ...]:
    args = op.attrs["args"]
    x, shape = args[0]["v"], args[1]
    layer = word_of(op) in _LAYER
    gain, offset = args[2] if len(args) > 2 else None, args[3] if layer and len(args) > 3 else None
    eps = args[4 if layer else 3] if len(args) > (4 if layer else 3) else None
    eps = float(np.finfo(np.float32).eps) if eps is None else float(eps)
    dims = list(form.axes or range(-len(shape), 0))
    chain = Chain(case, op, [])
    mean = chain("mean.dim", Id(x), dims, True)
    less = chain("sub.Tensor", Id(x), Id(mean))
    y = less if form.centred else x
    if form.scaled:
        size = _second(chain, form, x, less, dims)
        y = chain("div.Tensor", Id(y), Id(_root(chain, form, size, eps)))
    for kind, parameter in (("mul.Tensor", gain), ("add.Tensor", offset)):
        if isinstance(parameter, dict):
            y = chain(kind, Id(y), parameter)
    chain("alias.default", Id(y), last=True)
    return tuple(chain.made)


def _second(chain: Chain, form: Form, x: int, less: int, dims: list[int]) -> int:
    D = 1
    for n in chain.op.attrs["args"][1]:
        D *= int(n)
    if form.second == "deviation":
        return chain("square.default", Id(chain("mean.dim", Id(chain("abs.default", Id(less))), dims, True)))
    centred = form.second in ("variance", "unbiased")
    mean = chain("mean.dim", Id(chain("square.default", Id(less if centred else x))), dims, True)
    if form.second in ("unbiased", "unbiased square") and D > 1:
        return chain("mul.Tensor", Id(mean), D / (D - 1))
    return chain("mul.Tensor", Id(mean), float(D)) if form.second == "sum" else mean


def _root(chain: Chain, form: Form, second: int, eps: float) -> int:
    if form.eps == "inside":
        second = chain("add.Tensor", Id(second), eps)
    if form.squared:
        return second
    root = chain("sqrt.default", Id(second))
    return chain("add.Tensor", Id(root), eps) if form.eps == "outside" else root
