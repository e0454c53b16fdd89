"""The compared values as records, in execution order: the columns of the result with what every part of a page needs.

Leaves out arrays (inspector.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from firstbad.local import CUMULATIVE_FLOOR
from firstbad.material import Material
from firstbad.noise import FACTOR

from .scale import floors, step_of

SOURCES = 8
"""Values listed as what one value was made from, at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """One compared value. Errors are infinite where result.json has null."""

    index: int
    step: str
    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    verdict: str
    local: float
    floor: float
    times: float
    cumulative: float
    allowed: float  # for the cumulative error
    test: str

    @property
    def anchor(self) -> str:
        """Its place in the page: what stands after # in a link."""
        return f"value-{self.name}@{self.step}"

    @property
    def colour(self) -> int:
        return step_of(self.cumulative, self.allowed)

    @property
    def cumulative_times(self) -> float:
        return floors(self.cumulative, self.allowed)

    @property
    def agrees(self) -> bool:
        return self.verdict in ("clean", "benign", "approximation")

    @property
    def fault(self) -> bool:
        return self.verdict in ("culprit", "masked")


@dataclass(frozen=True)
class Rows:
    """All rows, and which values each was made from along the reference's graph."""

    all: tuple[Row, ...]
    sources: Mapping[int, tuple[int, ...]]  # row → rows; empty without the reference's trace

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], Row]:
        return {(row.step, row.name): row for row in self.all}

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for row, sources in self.sources.items():
            for source in sources:
                found.setdefault(source, []).append(row)
        return {row: tuple(many[:SOURCES]) for row, many in found.items()}

    @cached_property
    def steps(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.step for row in self.all))

    @cached_property
    def weakest(self) -> tuple[Row, ...]:
        """By local error in noise floors, the nearest to its limit first."""
        return tuple(sorted(self.all, key=lambda row: -row.times))


def rows_of(material: Material) -> Rows:
    """The rows of a result, with what the reference's trace adds."""
    columns = material.result["values"]
    keys = list(zip(columns["step"], columns["name"], strict=True))
    floors_ = [_finite(x) for x in columns["noise_floor"]]
    allowed = material.result["extra"].get("allowed", [])
    rows = []
    for i, (step, name) in enumerate(keys):
        rows.append(
            Row(
                i,
                step,
                name,
                columns["op"][i],
                tuple(columns["shape"][i]),
                columns["dtype"][i],
                columns["verdict"][i],
                _finite(columns["local_error"][i]),
                floors_[i],
                _finite(columns["times_noise"][i]),
                _finite(columns["cumulative_error"][i]),
                _finite(allowed[i]) if i < len(allowed) else max(CUMULATIVE_FLOOR, FACTOR * floors_[i]),
                columns["test"][i],
            )
        )
    return Rows(tuple(rows), _sources(material, keys))


def _finite(x: float | None) -> float:
    return math.inf if x is None else float(x)


def _sources(material: Material, keys: Sequence[tuple[str, str]]) -> dict[int, tuple[int, ...]]:
    """For each row the rows it was made from along the reference's graph, through what was not compared.

    Of one name over several steps (the rows of a cache) only the latest is listed.
    """
    if material.reference is None:
        return {}
    rows = {key: i for i, key in enumerate(keys)}
    graph = material.reference.graph
    made_from: dict[int, tuple[int, ...]] = {}  # value → rows: itself, or what it was made from
    sources = {}
    for op in graph.ops:
        latest = {keys[r][1]: r for read in op.reads for r in made_from.get(read.value, ())}
        origin = tuple(latest.values())[:SOURCES]
        for written in op.writes:
            value = graph.values[written]
            row = rows.get((value.step, value.name)) if value.kind == "value" else None
            made_from[written] = origin if row is None else (row,)
            if row is not None:
                sources[row] = origin
    return sources
