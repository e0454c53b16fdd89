"""Edits of kind `wrong_variant`: another member of the op's family runs in its place.

Activations stand for each other, a softmax may run over another axis, a convolution may pad or turn its kernel another
way. Every variant is a few ATen ops on the op's own inputs, so that it is replayed in any precision. Norms have a file
of their own (edits_norm.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import Edit, call, value
from firstbad.graph import Op


@dataclass
class Chain:
    """Ops written one after the other in the place of one op; each method gives back the id of what it made."""

    case: Case
    op: Op
    made: list[Op]

    def __call__(self, kind: str, *args: Any, last: bool = False, **kwargs: Any) -> int:
        writes = self.op.writes[0] if last else next(self.case.fresh)
        packed = [value(a.id) if isinstance(a, Id) else a for a in args]
        self.made.append(call(self.case.reference.graph, self.op, f"aten.{kind}", packed, writes, kwargs))
        return writes


@dataclass(frozen=True)
class Id:
    """A value as an argument (a plain number is a number)."""

    id: int


Pointwise = Callable[[Chain, int], None]


def _plain(kind: str, **kwargs: Any) -> Pointwise:
    def write(chain: Chain, x: int) -> None:
        chain(kind, Id(x), last=True, **kwargs)

    return write


def _quick_gelu(chain: Chain, x: int) -> None:
    gate = chain("sigmoid.default", Id(chain("mul.Tensor", Id(x), 1.702)))
    chain("mul.Tensor", Id(x), Id(gate), last=True)


def _squared_relu(chain: Chain, x: int) -> None:
    chain("square.default", Id(chain("relu.default", Id(x))), last=True)


ACTIVATIONS: Mapping[str, Pointwise] = {
    "gelu (erf)": _plain("gelu.default", approximate="none"),
    "gelu (tanh)": _plain("gelu.default", approximate="tanh"),
    "gelu (sigmoid 1.702)": _quick_gelu,
    "silu": _plain("silu.default"),
    "relu": _plain("relu.default"),
    "relu squared": _squared_relu,
    "leaky relu 0.01": _plain("leaky_relu.default"),
    "elu": _plain("elu.default"),
    "mish": _plain("mish.default"),
    "softplus": _plain("softplus.default"),
    "hardswish": _plain("hardswish.default"),
    "sigmoid": _plain("sigmoid.default"),
    "tanh": _plain("tanh.default"),
    "exp": _plain("exp.default"),
}

_WORDS = {"gelu", "silu", "relu", "sigmoid", "tanh", "elu", "leaky_relu", "mish", "hardswish", "softplus"}


def activations(case: Case) -> Iterator[Edit]:
    """Another activation."""
    for op in case.ops:
        word = word_of(op)
        if word not in _WORDS:
            continue
        own = "gelu (erf)" if word == "gelu" else word
        if word == "gelu" and op.attrs.get("kwargs", {}).get("approximate") == "tanh":
            own = "gelu (tanh)"
        for name, write in ACTIVATIONS.items():
            if name != own:
                chain = Chain(case, op, [])
                write(chain, op.reads[0].value)
                yield Edit("wrong_variant", {"variant": name, "model": own}, ops={op.id: tuple(chain.made)})


_POINTWISE = {*_WORDS, *"mul add sub div pow neg exp erf square reciprocal rsub clamp abs".split()}


def written_out(case: Case) -> Iterator[Edit]:
    """Another activation in the place of one that the model writes out in single ops, last in the region."""
    last = case.ops[-1]
    x = _argument(case)
    if x is None or case.reference.graph.values[x].shape != case.region.value.shape:
        return
    for name, write in ACTIVATIONS.items():
        chain = Chain(case, last, [])
        write(chain, x)
        detail = {"variant": name, "model": "its own, in single ops"}
        yield Edit("wrong_variant", detail, ops={last.id: tuple(chain.made)})


def _argument(case: Case) -> int | None:
    """The only value that the functions of one number at the region's end are made of; None where there are more."""
    made = {w: op for op in case.ops for w in op.writes if word_of(op) in _POINTWISE}
    need, seen, ops = list(case.ops[-1].writes), set[int](), 0
    ends: set[int] = set()
    while need:
        value_id = need.pop()
        if value_id in seen:
            continue
        seen.add(value_id)
        if value_id in made:
            ops += 1
            need += [r.value for r in made[value_id].reads]
        else:
            ends.add(value_id)
    return ends.pop() if ops > 1 and len(ends) == 1 else None


def softmaxes(case: Case) -> Iterator[Edit]:
    """Over another axis, without the sum, in base 2, with one added to the sum, without the largest subtracted."""
    for op in case.ops:
        if word_of(op) not in ("softmax", "_softmax"):
            continue
        x, axis, *rest = op.attrs["args"]
        x = x["v"]
        rank = len(case.reference.graph.values[op.writes[0]].shape)
        own = axis % rank
        for other in range(rank):
            if other != own and case.region.value.shape[other] > 1:
                new = call(case.reference.graph, op, op.kind, [value(x), other, *rest], op.writes[0])
                detail = {"variant": f"softmax over axis {other}", "model": f"axis {own}"}
                yield Edit("wrong_variant", detail, ops={op.id: (new,)})
        for name, made in _softmax_forms(case, op, x, own):
            yield Edit("wrong_variant", {"variant": name, "model": "softmax"}, ops={op.id: made})


def _softmax_forms(case: Case, op: Op, x: int, axis: int) -> Iterator[tuple[str, tuple[Op, ...]]]:
    plain = Chain(case, op, [])
    e = plain("exp.default", Id(x))
    plain("div.Tensor", Id(e), Id(plain("sum.dim_IntList", Id(e), [axis], True)), last=True)
    yield "softmax without the largest subtracted", tuple(plain.made)
    two = Chain(case, op, [])
    two("softmax.int", Id(two("mul.Tensor", Id(x), float(np.log(2)))), axis, None, last=True)
    yield "softmax in base 2", tuple(two.made)
    other = Chain(case, op, [])
    other("softmax.int", Id(other("mul.Tensor", Id(x), float(1 / np.log(2)))), axis, None, last=True)
    yield "softmax in base 2, of scores times log2(e) twice", tuple(other.made)
    raw = Chain(case, op, [])
    below = raw("sub.Tensor", Id(x), Id(raw("amax.default", Id(x), [axis], True)))
    raw("exp.default", Id(below), last=True)
    yield "softmax without the division by the sum", tuple(raw.made)
    one = Chain(case, op, [])
    e = one("exp.default", Id(x))
    total = one("add.Tensor", Id(one("sum.dim_IntList", Id(e), [axis], True)), 1.0)
    one("div.Tensor", Id(e), Id(total), last=True)
    yield "softmax with one added to the sum", tuple(one.made)
    log = Chain(case, op, [])
    log("log_softmax.int", Id(x), axis, None, last=True)
    yield "the logarithm of softmax", tuple(log.made)
    gates = Chain(case, op, [])
    gates("sigmoid.default", Id(x), last=True)
    yield "sigmoid", tuple(gates.made)


def convolutions(case: Case) -> Iterator[Edit]:
    """The kernel turned round, its input padded at one side only or with other values, another dilation."""
    for op in case.ops:
        if word_of(op) != "conv1d" or len(op.attrs.get("args", ())) < 7:
            continue
        _x, w, b, stride, padding, dilation, groups = op.attrs["args"]
        content = case.array(w["v"])
        if content is None or isinstance(padding, str):
            continue
        turned = {w["v"]: np.ascontiguousarray(content[..., ::-1])}
        yield Edit("layout", {"what": "kernel", "how": "reversed along the taps", "weight": _weight(case, w)}, turned)
        if content.shape[0] == content.shape[1]:
            swap = {w["v"]: np.ascontiguousarray(content.swapaxes(0, 1))}
            yield Edit("layout", {"what": "kernel", "how": "in and out swapped", "weight": _weight(case, w)}, swap)
        for name, made in _paddings(case, op, int(padding[0]) if padding else 0, (w, b, stride, dilation, groups)):
            kind = "position" if "samples" in name else "wrong_variant"
            usual = f"{padding[0]} zeros at each end, stride {stride[0]}, dilation {dilation[0]}"
            detail = {"variant": name, "model": usual}
            yield Edit(kind, detail, ops={op.id: made})


def _paddings(case: Case, op: Op, pad: int, rest: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Op, ...]]]:
    w, b, stride, dilation, groups = rest
    x, length = op.attrs["args"][0]["v"], case.reference.graph.values[op.writes[0]].shape[-1]

    def conv(chain: Chain, padded: int, by: list[int] = stride, wide: list[int] = dilation) -> tuple[Op, ...]:
        made = chain("conv1d.default", Id(padded), w, b, by, [0], wide, groups)
        chain("slice.Tensor", Id(made), 2, 0, length, 1, last=True)
        return tuple(chain.made)

    for k in range(1, 2 * pad + 1):
        for left, right in ((pad + k, pad - k), (pad - k, pad + k)):
            chain = Chain(case, op, [])
            padded = chain("constant_pad_nd.default", Id(x), [left, right], 0)
            yield f"padding of {left} and {right} samples", conv(chain, padded)
    for name in ("replication", "reflection") if pad else ():
        chain = Chain(case, op, [])
        yield f"padding by {name}", conv(chain, chain(f"{name}_pad1d.default", Id(x), [pad, pad]))
        for side, both in (("start", [pad, 0]), ("end", [0, pad])):
            chain = Chain(case, op, [])
            one = chain(f"{name}_pad1d.default", Id(x), both)
            yield (
                f"padding by {name} at the {side} only",
                conv(chain, chain("constant_pad_nd.default", Id(one), both[::-1], 0)),
            )
    if pad:
        chain = Chain(case, op, [])
        ends = [chain("slice.Tensor", Id(x), 2, a, z, 1) for a, z in ((-pad, 1 << 40), (0, pad))]
        joined = chain("cat.default", [value(ends[0]), value(x), value(ends[1])], 2)
        yield "padding by wrapping round", conv(chain, joined)
    taps = case.reference.graph.values[w["v"]].shape[-1]
    for by, wide in itertools.product((1, 2, 3, 4), (1, 2, 3)):
        if [by] == list(stride) and [wide] == list(dilation):
            continue
        words = [f"stride {by}"] if [by] != list(stride) else []
        words += [f"dilation {wide}"] if [wide] != list(dilation) else []
        for left in dict.fromkeys((pad, wide * (taps - 1) // 2, 0)):
            chain = Chain(case, op, [])
            enough = (length - 1) * by + wide * (taps - 1) + 1
            padded = chain("constant_pad_nd.default", Id(x), [left, enough], 0)
            yield " and ".join(words) + f", {left} zeros before", conv(chain, padded, [by], [wide])


def _weight(case: Case, w: Mapping[str, int]) -> str:
    return case.reference.graph.values[w["v"]].name


def word_of(op: Op) -> str:
    """ "linear" of "aten.linear.default"."""
    return op.kind.removeprefix("aten.").partition(".")[0]
