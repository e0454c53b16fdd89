"""Edits of bends: an activation whose constant is another number, an input that is let through in part where negative.

The number is solved for (edits_constant.py). Kinds `wrong_variant` and `extra_op`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, Edit
from firstbad.edits_constant import solved
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

Form = Callable[[Chain, Id, float], None]


def _swish(chain: Chain, x: Id, a: float) -> None:
    gate = chain("sigmoid.default", Id(chain("mul.Tensor", x, a)))
    chain("mul.Tensor", x, Id(gate), last=True)


def _tanh_gelu(chain: Chain, x: Id, a: float) -> None:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + a x^3)))"""
    cube = chain("mul.Tensor", Id(chain("pow.Tensor_Scalar", x, 3)), a)
    inner = chain("mul.Tensor", Id(chain("add.Tensor", x, Id(cube))), (2 / np.pi) ** 0.5)
    one = chain("add.Tensor", Id(chain("tanh.default", Id(inner))), 1.0)
    chain("mul.Tensor", Id(chain("mul.Tensor", x, 0.5)), Id(one), last=True)


def _leaky(chain: Chain, x: Id, a: float) -> None:
    chain("leaky_relu.default", x, a, last=True)


def _elu(chain: Chain, x: Id, a: float) -> None:
    chain("elu.default", x, a, last=True)


FORMS: Mapping[str, tuple[Form, float]] = {
    "x sigmoid(a x)": (_swish, 1.702),
    "gelu by tanh of x + a x^3": (_tanh_gelu, 0.044715),
    "leaky relu of slope a": (_leaky, 0.01),
    "elu of size a": (_elu, 1.0),
}

ACTIVATIONS = frozenset("gelu silu relu elu leaky_relu mish softplus hardswish".split())


def constants(case: Case) -> Iterator[Edit]:
    """An activation of a known form with a number of its own."""
    op = case.ops[-1]
    if word_of(op) not in ACTIVATIONS or not case.floats:
        return
    x = Id(op.reads[0].value)
    for name, (write, start) in FORMS.items():
        yield from solved(case, _maker(case, op, x, name, write), start)


def _maker(case: Case, op: Op, x: Id, name: str, write: Form) -> Callable[[float], Edit]:
    def make(number: float) -> Edit:
        chain = Chain(case, op, [])
        write(chain, x, number)
        detail = {"variant": f"{name}, a = {number:g}", "model": word_of(op), "number": number}
        return Edit("wrong_variant", detail, ops={op.id: tuple(chain.made)}, cost=FITTED)

    return make


def let_through(case: Case) -> Iterator[Edit]:
    """An input that is let through by a part only where it is negative."""
    for i in case.region.inputs:
        held, known = case.array(i), case.reference.graph.values[i]
        if held is None or held.ndim == 0 or not np.issubdtype(held.dtype, np.floating) or not np.isfinite(held).all():
            continue
        if (held >= 0).all() or (held <= 0).all():
            continue

        def make(number: float, i: int = i, held: NDArray[Any] = held, name: str = known.name) -> Edit:
            wide = np.asarray(held, np.float64)
            detail = {"op": "leaky relu", "where": "before", "input": name, "slope": number}
            return Edit("extra_op", detail, {i: np.where(wide < 0, wide * number, wide)}, cost=FITTED)

        yield from solved(case, make, 1.0)
