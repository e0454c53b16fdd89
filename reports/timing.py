"""Where the time goes: each kind of op of the candidate, its share of the run, the reference's time for the same.

The reference's clock runs while it is recorded, so its times say what is heavy and not how fast PyTorch is. Leaves out
the stages of the comparison itself: they are in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from firstbad.graph import Graph, Op
from firstbad.material import Material

from .rows import Rows

LISTED = 14


@dataclass(frozen=True)
class Spent:
    """Time of one kind of op, or of one op. `reference` is 0 where it is not known."""

    name: str
    step: str
    calls: int
    seconds: float
    share: float
    reference: float
    source: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.reference if self.reference > 0 else 0.0


@dataclass(frozen=True)
class Timing:
    total: float
    span: float  # from the first op's start to the last one's end
    by_kind: tuple[Spent, ...]
    slowest: tuple[Spent, ...]
    by_step: tuple[Spent, ...]
    kinds_left_out: int


def timing_of(material: Material, rows: Rows) -> Timing | None:
    """None where the candidate's trace has no times."""
    if material.candidate is None:
        return None
    graph = material.candidate.graph
    ops = [op for op in graph.ops if op.end_ns > op.start_ns > 0]
    if not ops:
        return None
    theirs = _reference_times(material.reference.graph if material.reference else None, rows)
    total = sum(op.end_ns - op.start_ns for op in ops) / 1e9
    spent = [(op, (op.end_ns - op.start_ns) / 1e9, _of(graph, op, theirs)) for op in ops]
    stages = list(dict.fromkeys(_stage(op.step) for op in ops))
    by_kind = _grouped(spent, total, lambda op: (op.kind, ""))
    slowest = sorted(spent, key=lambda s: -s[1])[:LISTED]
    return Timing(
        total,
        (max(op.end_ns for op in ops) - min(op.start_ns for op in ops)) / 1e9,
        tuple(by_kind[:LISTED]),
        tuple(
            Spent(op.name, op.step, 1, s, s / total, r, f"{op.file}:{op.line}" if op.file else "")
            for op, s, r in slowest
        ),
        tuple(sorted(_grouped(spent, total, lambda op: (_stage(op.step), "")), key=lambda s: stages.index(s.name))),
        max(0, len(by_kind) - LISTED),
    )


def _stage(step: str) -> str:
    return step.partition(".")[0]


def _grouped(spent: list[tuple[Op, float, float]], total: float, key: object) -> list[Spent]:
    assert callable(key)
    groups: dict[tuple[str, str], list[tuple[Op, float, float]]] = {}
    for one in spent:
        groups.setdefault(key(one[0]), []).append(one)
    made = []
    for (name, step), many in groups.items():
        seconds = sum(s for _, s, _ in many)
        reference = sum(r for _, _, r in many)
        sources = {f"{op.file}:{op.line}" for op, _, _ in many if op.file}
        source = next(iter(sources)) if len(sources) == 1 else ""
        made.append(Spent(name, step, len(many), seconds, seconds / total, reference, source))
    return sorted(made, key=lambda s: -s.seconds)


def _of(graph: Graph, op: Op, theirs: Mapping[tuple[str, str], float]) -> float:
    return sum(theirs.get((graph.values[w].step, graph.values[w].name), 0.0) for w in op.writes)


def _reference_times(graph: Graph | None, rows: Rows) -> dict[tuple[str, str], float]:
    """(step, name) of a compared value → seconds of the op that made it and of those before it that made none."""
    if graph is None:
        return {}
    times: dict[tuple[str, str], float] = {}
    pending = 0.0
    for op in graph.ops:
        pending += max(0, op.end_ns - op.start_ns) / 1e9
        for written in op.writes:
            value = graph.values[written]
            if value.kind == "value" and (value.step, value.name) in rows.by_key:
                times[value.step, value.name] = pending
                pending = 0.0
    return times
