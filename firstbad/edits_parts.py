"""Edits of kind `wrong_variant`: the op works on parts of what it should work on as a whole.

A norm or a softmax whose statistics are of a tile of the row (or whose tiles are joined wrongly, as blocked attention
does when it forgets to rescale), a product whose outputs see only their own group of the inputs. Every variant is a
few ATen ops, or a weight with zeros in it, so that it is replayed in any precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import Edit, value
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import Op

GROUPS = (2, 3, 4, 6, 8, 12, 16)
TILES = (8, 16, 32, 64, 128, 256)
MOST = 64
"""Tiles of a row that are written out."""


def in_parts(case: Case) -> Iterator[Edit]:
    """Statistics of parts of the row, and products of groups."""
    for op in case.ops:
        word = word_of(op)
        if word in ("layer_norm", "rms_norm"):
            yield from _norms(case, op, len(op.attrs["args"][1]), word)
        elif word == "mean" and _over_the_last(op):
            yield from _means(case, op)
        elif word in ("softmax", "_softmax"):
            yield from _softmaxes(case, op)
        elif word in ("linear", "conv1d", "conv2d"):
            yield from _products(case, op, word)


def _sizes(length: int) -> list[int]:
    """Lengths of a part of a row of this length, the coarsest first."""
    sizes = {length // n for n in GROUPS if length % n == 0} | set(TILES)
    return sorted((n for n in sizes if 1 < n < length and -(-length // n) <= MOST), reverse=True)


def _norms(case: Case, op: Op, axes: int, word: str) -> Iterator[Edit]:
    x, shape, *rest = op.attrs["args"]
    D = int(shape[-1])
    eps = rest[2 if word == "layer_norm" else 1 :][:1]
    for size in _sizes(D) if axes == 1 else ():
        if D % size:
            continue
        chain = Chain(case, op, [])
        tiles = Id(_tiled(case, chain, x["v"], size))
        middle = [None, None] if word == "layer_norm" else [None]
        y = chain("reshape.default", Id(chain(f"{word}.default", tiles, [size], *middle, *eps)), _shape(case, x["v"]))
        for kind, parameter in zip(("mul.Tensor", "add.Tensor"), rest[: len(middle)], strict=False):
            if isinstance(parameter, dict):
                y = chain(kind, Id(y), parameter)
        chain("alias.default", Id(y), last=True)
        detail = {"variant": f"{word} of each {size} of the {D} channels by themselves", "model": "of all of them"}
        yield Edit("wrong_variant", detail, ops={op.id: tuple(chain.made)})


def _over_the_last(op: Op) -> bool:
    args = op.attrs["args"]
    return len(args) > 2 and args[1] == [-1] and args[2] is True


def _means(case: Case, op: Op) -> Iterator[Edit]:
    """Of a norm that is written out: each part of the row has a mean of its own."""
    x = op.attrs["args"][0]["v"]
    shape = _shape(case, x)
    for size in _sizes(shape[-1]):
        if shape[-1] % size == 0:
            chain = Chain(case, op, [])
            mean = chain("mean.dim", Id(_tiled(case, chain, x, size)), [-1], True)
            wide = chain("expand.default", Id(mean), [*shape[:-1], shape[-1] // size, size])
            chain("reshape.default", Id(wide), shape, last=True)
            detail = {"variant": f"means of each {size} of the {shape[-1]} channels", "model": "of all of them"}
            yield Edit("wrong_variant", detail, ops={op.id: tuple(chain.made)})


def _softmaxes(case: Case, op: Op) -> Iterator[Edit]:
    x, axis = op.attrs["args"][0]["v"], op.attrs["args"][1]
    shape = _shape(case, x)
    if axis % len(shape) != len(shape) - 1:
        return
    length = shape[-1]
    for size, (how, make) in itertools.product(_sizes(length), TILED.items()):
        chain = Chain(case, op, [])
        make(chain, [chain("slice.Tensor", Id(x), -1, k, min(k + size, length), 1) for k in range(0, length, size)])
        detail = {"variant": f"softmax in tiles of {size} keys{how}", "model": "softmax"}
        yield Edit("wrong_variant", detail, ops={op.id: tuple(chain.made)})


def _alone(chain: Chain, slices: list[int]) -> None:
    parts = [chain("softmax.int", Id(s), -1, None) for s in slices]
    chain("cat.default", [value(p) for p in parts], -1, last=True)


def _joined(chain: Chain, slices: list[int]) -> None:
    """e^(x - m of its own tile) over the sum of all of these."""
    _over_one_sum(chain, slices, [chain("amax.default", Id(s), [-1], True) for s in slices])


def _late(chain: Chain, slices: list[int]) -> None:
    """e^(x - the largest so far) over the sum of all of these."""
    tops = [chain("amax.default", Id(slices[0]), [-1], True)]
    for s in slices[1:]:
        tops.append(chain("maximum.default", Id(tops[-1]), Id(chain("amax.default", Id(s), [-1], True))))
    _over_one_sum(chain, slices, tops)


TILED = {
    ", each by itself": _alone,
    ", each with its own largest score subtracted": _joined,
    ", not rescaled when a larger score comes": _late,
}


def _over_one_sum(chain: Chain, slices: list[int], tops: list[int]) -> None:
    less = [chain("sub.Tensor", Id(s), Id(top)) for s, top in zip(slices, tops, strict=True)]
    e = chain("exp.default", Id(chain("cat.default", [value(n) for n in less], -1)))
    chain("div.Tensor", Id(e), Id(chain("sum.dim_IntList", Id(e), [-1], True)), last=True)


def _products(case: Case, op: Op, word: str) -> Iterator[Edit]:
    """[N, K, ..] with zeros outside the diagonal blocks."""
    i = op.attrs["args"][1]["v"]
    held = case.array(i)
    if held is None or held.ndim < 2:
        return
    N, K = held.shape[:2]
    for groups in (g for g in GROUPS if N % g == 0 and K % g == 0):
        block = np.kron(np.eye(groups, dtype=bool), np.ones((N // groups, K // groups), bool))
        parted = np.where(block.reshape(N, K, *[1] * (held.ndim - 2)), held, 0).astype(held.dtype)
        yield Edit("wrong_variant", {"variant": f"{word} in {groups} groups", "model": "in one"}, {i: parted})


def _tiled(case: Case, chain: Chain, x: int, size: int) -> int:
    shape = _shape(case, x)
    return chain("reshape.default", Id(x), [*shape[:-1], shape[-1] // size, size])


def _shape(case: Case, i: int) -> list[Any]:
    return list(case.reference.graph.values[i].shape)
