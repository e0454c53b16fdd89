"""Values that stand for themselves in their own step only: what a cache looked like to one reader.

The reference joins old rows and new ones and hands the result on to the next step. An engine may gather rows out of its
slots anew in each step instead; what it gathered once, no later step reads. So a later step is judged by the rows
themselves, and not by what an earlier one had found in their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstbad.replay import moves_only

if TYPE_CHECKING:
    from firstbad.alignment import Alignment
    from firstbad.graph import Graph


def passing(reference: Graph, candidate: Graph, alignment: Alignment) -> frozenset[int]:
    """Ids of such values of the reference."""
    return frozenset(
        pair.reference.id
        for pair in alignment.pairs
        if pair.reference.op >= 0
        and pair.candidate.op >= 0
        and moves_only(reference.ops[pair.reference.op])
        and _gathers(candidate, pair.candidate.op)
        and _read_at_once(candidate, pair.candidate.id)
    )


def _gathers(graph: Graph, op: int) -> bool:
    """Whether an op reads what earlier steps left."""
    step = graph.ops[op].step
    sources = [graph.values[r.value] for r in graph.ops[op].reads if r.value >= 0]
    return any(v.kind in ("value", "view") and v.step != step for v in sources)


def _read_at_once(graph: Graph, value: int) -> bool:
    """Whether it is read, and by no later step."""
    steps = {graph.ops[op].step for op in graph.readers.get(value, ())}
    return steps == {graph.values[value].step}
