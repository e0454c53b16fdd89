"""How many heads the columns of a value are split into, as the graph around it shows. Leaves out what no view says."""

from __future__ import annotations

from collections.abc import Iterable

from firstbad.graph import Graph


def heads_near(graph: Graph, values: Iterable[tuple[int, int]], reach: int = 2) -> int:
    """Heads of the first view that splits the last axis, `reach` ops on from (id, ops already gone); 1: none."""
    stack, seen = list(values), set[int]()
    while stack:
        v, depth = stack.pop(0)
        for reader in graph.readers.get(v, ()):
            op = graph.ops[reader]
            if reader in seen or not op.writes:
                continue
            seen.add(reader)
            before, after = graph.values[v].shape, graph.values[op.writes[0]].shape
            word = op.kind.removeprefix("aten.").partition(".")[0]
            splits = word in ("view", "reshape", "unflatten", "_unsafe_view") and len(after) == len(before) + 1
            if splits and after[-1] * after[-2] == before[-1]:
                return int(after[-2])
            if depth < reach:
                stack.append((op.writes[0], depth + 1))
    return 1
