"""Cuts against the definition: without a cut, no way leads from the step's inputs to its last value."""

from __future__ import annotations

import random

from firstbad.cuts import inside, narrows, nbytes, region, spine, spread, thinned
from firstbad.graph import Graph, Op, Read, Value


def graph_of(reads: dict[int, tuple[int, ...]], inputs: int = 1, *, step: str = "forward") -> Graph:
    """`inputs` inputs, then one op a value: value → what it reads."""
    values = [Value(i, step, f"x{i}", "input", (4,), "float32") for i in range(inputs)]
    ops = []
    for n, (written, read) in enumerate(sorted(reads.items())):
        values.append(Value(written, step, f"v{written}", "value", (4,), "float32", n, f"/{written}"))
        ops.append(Op(n, step, f"v{written}", "aten.add.Tensor", tuple(Read(r) for r in read), (written,)))
    return Graph(tuple(values), tuple(ops))


def reaches(reads: dict[int, tuple[int, ...]], start: int, goal: int, without: int) -> bool:
    if goal == without:
        return False
    return goal == start or any(reaches(reads, start, r, without) for r in reads.get(goal, ()))


def test_a_residual_stream_is_the_spine() -> None:
    # 0 input; 1 norm, 2 linear, 3 = 0 + 2; 4 norm, 5 linear, 6 = 3 + 5
    graph = graph_of({1: (0,), 2: (1,), 3: (0, 2), 4: (3,), 5: (4,), 6: (3, 5)})
    assert [v.id for v in spine(graph, "forward")] == [3, 6]


def test_cuts_are_the_dominators_of_random_graphs() -> None:
    rng = random.Random(0)
    for _ in range(200):
        n = rng.randint(2, 14)
        reads = {
            i: tuple(sorted({rng.randrange(max(0, i - 4), i) for _ in range(rng.randint(1, 2))})) for i in range(1, n)
        }
        graph = graph_of(reads)
        expected = [v for v in range(1, n) if reaches(reads, 0, n - 1, -1) and not reaches(reads, 0, n - 1, v)]
        assert [v.id for v in spine(graph, "forward")] == expected, reads


def test_what_depends_on_no_input_and_what_an_earlier_step_made_stand_aside() -> None:
    values = (
        Value(0, "a", "x", "input", (4,), "float32"),
        Value(1, "a", "cache", "value", (4,), "float32", 0, "/1"),
        Value(2, "b", "y", "input", (4,), "float32"),
        Value(3, "b", "mask", "value", (4,), "float32", 1, "/3"),  # from nothing
        Value(4, "b", "h", "value", (4,), "float32", 2, "/4"),
        Value(5, "b", "out", "value", (4,), "float32", 3, "/5"),  # reads h, the mask and the cache
    )
    kind = "aten.add.Tensor"
    ops = (
        Op(0, "a", "cache", kind, (Read(0),), (1,)),
        Op(1, "b", "mask", kind, (), (3,)),
        Op(2, "b", "h", kind, (Read(2),), (4,)),
        Op(3, "b", "out", kind, (Read(4), Read(3), Read(1)), (5,)),
    )
    graph = Graph(values, ops)
    assert [v.name for v in spine(graph, "b")] == ["h", "out"]
    assert [v.name for v in region(graph, values[5], {4})] == ["cache", "mask", "out"]
    assert [v.name for v in inside(graph, values[5], {1, 4})] == ["mask"]


def test_what_a_region_passes_through() -> None:
    graph = graph_of({1: (0,), 2: (1,), 3: (0, 2), 4: (3,), 5: (4,), 6: (3, 5), 7: (6,)})
    assert [v.id for v in narrows(graph, graph.values[7], {3})] == [4, 5, 6]
    assert [v.id for v in narrows(graph, graph.values[7], set())] == [1, 2, 3, 6]
    fork = graph_of({1: (0,), 2: (1,), 3: (1,), 4: (2, 3)})
    assert [v.id for v in narrows(fork, fork.values[4], set())] == [1]


def test_a_chain_is_thinned_from_its_end() -> None:
    graph = graph_of({i: (i - 1,) for i in range(1, 14)})
    assert [v.id for v in thinned(graph, spine(graph, "forward"))] == [5, 9, 13]


def test_as_many_as_the_budget_allows_evenly_and_never_none() -> None:
    graph = graph_of({i: (i - 1,) for i in range(1, 101)})
    values = [v for v in graph.values if v.kind == "value"]
    assert nbytes(values[0]) == 16
    assert spread(values, 1e9, nbytes) == tuple(values)
    few = [v.id for v in spread(values, 4 * 16, nbytes)]
    assert few == [20, 40, 60, 80]
    assert [v.id for v in spread(values, 4 * 16, nbytes, to_the_end=True)] == [25, 50, 75, 100]
    assert len(spread(values, 1, nbytes)) == 1
    assert spread([], 1, nbytes) == ()
