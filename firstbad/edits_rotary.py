"""Edits of rotary positions: another base of the angles (`wrong_constant`), other elements in pairs (`wrong_variant`).

The model keeps base^(-2 i / K) as a table; the engine has the base as a parameter. The one that the probe saw comes
first, then it is solved for. A rotation that joins elements half a head apart is written anew for neighbours. Leaves
out scaled positions and the way from neighbours to halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, SIMPLE, Edit, value
from firstbad.edits_constant import solved
from firstbad.edits_variant import Chain, Id, word_of

TABLE = "inv_freq"


def rotary(case: Case) -> Iterator[Edit]:
    """Other pairs, then another base of the angles."""
    yield from _neighbours(case)
    for i in case.region.weights:
        name = case.reference.graph.values[i].name
        if name.rpartition(".")[2] != TABLE:
            continue
        own = np.asarray(case.executor.weight(name), np.float64)
        if own.size < 2 or not 0 < own[-1] < 1:
            continue
        powers = np.arange(own.size) / own.size
        model = float(own[-1] ** (-1 / powers[-1]))
        if np.abs(model**-powers / own - 1).max() > 1e-5:  # a table that follows from no base
            continue

        def make(number: float, i: int = i, powers: Any = powers, model: float = model) -> Edit:
            detail = {
                "what": "base of rotary positions",
                "number": float(f"{number:.6g}"),
                "model": float(f"{model:.6g}"),
            }
            return Edit("wrong_constant", detail, {i: np.asarray(number**-powers, np.float32)}, cost=FITTED)

        seen = case.op.attrs.get("base") if case.op is not None else None
        if isinstance(seen, float) and seen > 1 and abs(seen / model - 1) > 1e-4:
            found = make(seen)
            yield Edit(found.kind, {**found.detail, "seen": True}, found.replaced, cost=SIMPLE)
        yield from solved(case, make, model)


def _neighbours(case: Case) -> Iterator[Edit]:
    """Where the region has x cos + cat(-x[K/2:], x[:K/2]) sin: the same turn of elements 2 i and 2 i + 1."""
    graph, ops = case.reference.graph, case.region.ops
    for cat in ops:
        last = cat.reads[-1].value if word_of(cat) == "cat" else -1
        if last < 0 or last >= len(graph.values) or graph.values[last].op < 0:
            continue
        half = graph.ops[graph.values[last].op]
        if word_of(half) != "slice":
            continue
        x, turned, K = half.reads[0].value, cat.writes[0], graph.values[cat.writes[0]].shape[-1]
        chain = Chain(case, cat, [])
        even, odd = (chain("slice.Tensor", Id(x), -1, first, K, 2) for first in (0, 1))
        pair = chain("stack.default", [value(chain("neg.default", Id(odd))), value(even)], -1)
        chain("flatten.using_ints", Id(pair), -2, -1, last=True)
        made = {cat.id: tuple(chain.made)}
        for product in ops:  # each angle for two neighbours
            reads = [r.value for r in product.reads]
            if word_of(product) == "mul" and len(reads) == 2 and (x in reads or turned in reads):
                own = Chain(case, product, [])
                what, by = reads if reads[0] in (x, turned) else reads[::-1]
                angles = own("repeat_interleave.self_int", Id(own("slice.Tensor", Id(by), -1, 0, K // 2)), 2, -1)
                own("mul.Tensor", Id(what), Id(angles), last=True)
                made[product.id] = tuple(own.made)
        if len(made) == 3:
            detail = {"variant": "neighbours turned together (pairs)", "model": "elements half a head apart"}
            yield Edit("wrong_variant", detail, ops=made)
