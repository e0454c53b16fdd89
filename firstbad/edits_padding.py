"""Edits of kind `mask`: attention also runs over positions that are no input, because nothing masks them.

Engines make caches longer than what they hold, to a multiple that suits their kernels. A cell that nobody wrote holds
zeros: its key gives the score 0, which is no small share of a softmax, and its value adds nothing; so every output is
too small by what the padding took. Leaves out masks that are wrong at real positions (edits_mask.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, SIMPLE, Edit, value
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.flash import attention

MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)


def as_read(case: Case) -> Iterator[Edit]:
    """A fused attention on the very keys and values that it read, padding and all, rounding where its kernel rounds."""
    op = case.op
    if op is None or op.kind != "flash_attn_ext" or op.attrs.get("accumulates") != "float16":
        return
    reads = {read.slot: read for read in op.reads if read.dataset or read.slot == "src0"}
    if set(reads) != {"src0", "src1", "src2"}:  # a mask, or nothing that nobody wrote
        return
    k, v = (case.candidate.as_read(reads[slot]) for slot in ("src1", "src2"))  # [H,n,K]
    q = case.candidate.as_read(reads["src0"]).reshape(-1, k.shape[0], k.shape[-1]).swapaxes(0, 1)
    out = attention(q, k, v, float(op.attrs.get("scale", 1.0))).swapaxes(0, 1)  # [t,H,V]
    keys = _keys(case)
    if not 0 < keys < k.shape[1]:
        return
    detail = {"what": "padding not masked", "keys": keys, "padding": k.shape[1] - keys}
    yield Edit("mask", detail, output=case.judged.pair.layout.apply(np.ascontiguousarray(out)), cost=SIMPLE)


def _keys(case: Case) -> int:
    """Positions that the model attends to."""
    shapes = [case.reference.graph.values[op.writes[0]].shape for op in case.ops if "softmax" in op.kind]
    return shapes[0][-1] if shapes else 0


def padding(case: Case) -> Iterator[Edit]:
    """A softmax over further scores of 0: as many as the engine was seen to have, or up to a round number."""
    for op in case.ops:
        if word_of(op) not in ("softmax", "_softmax"):
            continue
        x, axis, *_ = op.attrs["args"]
        shape = case.reference.graph.values[op.writes[0]].shape
        if axis % len(shape) != len(shape) - 1:
            continue
        own = shape[-1]
        recorded = case.op.attrs.get("keys") if case.op is not None else None
        seen = [recorded - own] if isinstance(recorded, int) and recorded > own else []
        for more in dict.fromkeys([*seen, *(-own % m for m in MULTIPLES)]):
            if more <= 0:
                continue
            chain = Chain(case, op, [])
            longer = chain("constant_pad_nd.default", Id(x["v"]), [0, more], 0)
            shares = chain("softmax.int", Id(longer), len(shape) - 1, None)
            chain("slice.Tensor", value(shares), len(shape) - 1, 0, own, 1, last=True)
            detail = {"what": "padding not masked", "keys": own, "padding": more}
            yield Edit(
                "mask", detail, ops={op.id: tuple(chain.made)}, cost=SIMPLE if seen and more == seen[0] else FITTED
            )
