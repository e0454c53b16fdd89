"""Edits of norms over groups of channels and over a batch: the same norm over other numbers.

Kind `wrong_variant`: a group norm of other groups, of each position by itself, of interleaved groups; a batch norm by
the statistics of what it is given. Leaves out eps (edits_constant.py) and norms of the last axis (edits_norm.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from firstbad.case import Case
from firstbad.edit import Edit
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import Op

MOST = 64
"""Numbers of groups up to which each is tried."""


@dataclass(frozen=True)
class Over:
    """Which numbers a mean and a variance are of: those of `dims`, seen in the shape `view`."""

    name: str
    view: tuple[int, ...]
    dims: tuple[int, ...]
    unbiased: bool = False


def group_norms(case: Case) -> Iterator[Edit]:
    for op in case.ops:
        word = word_of(op)
        if word not in ("group_norm", "batch_norm"):
            continue
        args: list[Any] = op.attrs["args"]
        shape = tuple(case.reference.graph.values[op.writes[0]].shape)
        if word == "group_norm":
            given = args + [None, None, 1e-5][len(args) - 2 :]
            gain, offset, eps = given[2], given[3], given[4]
            found = _of_groups(shape, int(args[1]))
        else:
            gain, offset, eps = args[1], args[2], args[7]
            dims = (0, *range(2, len(shape)))
            found = iter([Over("the statistics of what it is given", shape, dims)])
        for over in found:
            made = _written(case, op, over, shape, gain, offset, float(eps))
            yield Edit("wrong_variant", {"variant": over.name, "model": word}, ops={op.id: made})


def _of_groups(shape: tuple[int, ...], G: int) -> Iterator[Over]:
    B, C, *rest = shape
    after = tuple(range(2, 3 + len(rest)))
    yield Over("layer norm (each position by itself)", shape, (1,))
    for g in (n for n in range(1, min(C, MOST) + 1) if C % n == 0 and n != G):
        yield Over(f"group norm of {g} group{'s' * (g > 1)}", (B, g, C // g, *rest), after)
    if G not in (1, C):
        interleaved = (1, *range(3, 3 + len(rest)))
        yield Over("group norm of interleaved channels", (B, C // G, G, *rest), interleaved)
    yield Over("sample variance (n - 1)", (B, G, C // G, *rest), after, unbiased=True)


def _written(
    case: Case, op: Op, over: Over, shape: tuple[int, ...], gain: Any, offset: Any, eps: float
) -> tuple[Op, ...]:
    chain, dims = Chain(case, op, []), list(over.dims)
    x = chain("reshape.default", op.attrs["args"][0], list(over.view))
    less = chain("sub.Tensor", Id(x), Id(chain("mean.dim", Id(x), dims, True)))
    variance = chain("mean.dim", Id(chain("square.default", Id(less))), dims, True)
    n = math.prod(over.view[d] for d in dims)
    if over.unbiased and n > 1:
        variance = chain("mul.Tensor", Id(variance), n / (n - 1))
    root = chain("sqrt.default", Id(chain("add.Tensor", Id(variance), eps)))
    y = chain("reshape.default", Id(chain("div.Tensor", Id(less), Id(root))), list(shape))
    channels = [1, shape[1], *(1 for _ in shape[2:])]
    for kind, parameter in (("mul.Tensor", gain), ("add.Tensor", offset)):
        if isinstance(parameter, dict):
            y = chain(kind, Id(y), Id(chain("reshape.default", parameter, channels)))
    chain("alias.default", Id(y), last=True)
    return tuple(chain.made)
