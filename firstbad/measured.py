"""What the gate keeps of a run: for each value its shape, type and place, and its error beside the noise floor.

All errors are in units of u x condition (see noise.py): they depend neither on the machine's BLAS nor on the size of
the numbers, so runs of other inputs and steps can be pooled. Leaves out any verdict: drift.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstbad.graph import Graph, Value
    from firstbad.local import Judged, Local

TESTS = ("whole", "worst", "rows", "columns", "groups", "element")
"""What is kept: the rms over all runs of a value, that of its worst run, its worst row, column, group and element."""


@dataclass(frozen=True)
class Site:
    """One value in one step of one run."""

    step: str
    name: str
    op: str
    shape: tuple[int, ...]  # the candidate's own
    dtype: str
    axes: tuple[int, ...]  # their order in the candidate's memory; (): as in the shape
    exact: bool
    count: int
    error: tuple[float, ...]  # by TESTS, without "worst"
    noise: tuple[float, ...]
    file: str = ""
    line: int = 0

    @property
    def samples(self) -> int:
        """Its rows."""
        return max(1, math.prod(self.shape[:-1]))

    @property
    def group(self) -> str:
        """All decode steps are one."""
        return self.step.partition(".")[0]


@dataclass(frozen=True)
class Row:
    """One value over all inputs and decode steps of a case. A size that differs between them is "n"."""

    step: str
    name: str
    op: str
    shape: tuple[int | str, ...]
    dtype: str
    axes: tuple[int, ...]
    exact: bool
    error: tuple[float, ...]  # by TESTS; (): exact
    noise: tuple[float, ...]
    samples: int = 1  # rows over all runs: an op's roundings may be one throughout a row
    file: str = ""
    line: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.step, self.name


def sites_of(local: Local, candidate: Graph) -> tuple[Site, ...]:
    """Every judged value of one comparison, in the candidate's order of execution."""
    ordered = sorted(local.values, key=lambda judged: judged.pair.candidate.id)
    return tuple(_site(judged, candidate) for judged in ordered)


def _site(judged: Judged, candidate: Graph) -> Site:
    value, sums, floor = judged.pair.candidate, judged.sums, judged.floor
    op = candidate.ops[value.op] if value.op >= 0 else None
    return Site(
        judged.step,
        judged.name,
        judged.op.kind.removeprefix("aten.").partition(".")[0],
        value.shape,
        value.dtype,
        axes_of(value),
        judged.exact,
        sums.count,
        (sums.candidate, sums.rows.candidate, sums.columns.candidate, sums.groups.candidate, sums.element),
        (floor.whole, floor.rows, floor.columns, floor.groups, floor.element),
        op.file if op else "",
        op.line if op else 0,
    )


def axes_of(value: Value) -> tuple[int, ...]:
    """The order of a value's axes in memory, the outermost first; () where it is that of its shape."""
    real = [axis for axis, n in enumerate(value.shape) if n > 1]
    if len(value.strides) != len(value.shape):
        return ()
    order = sorted(real, key=lambda axis: (-value.strides[axis], axis))
    return () if order == real else tuple(order)


def pool(runs: Iterable[Iterable[Site]]) -> tuple[Row, ...]:
    """The rows of several runs: a step's values together, in the order in which they first ran."""
    found: dict[tuple[str, str], list[Site]] = {}
    for run in runs:
        for site in run:
            found.setdefault((site.group, site.name), []).append(site)
    groups = {group: n for n, group in enumerate(dict.fromkeys(group for group, _ in found))}
    ordered = sorted(found.items(), key=lambda item: groups[item[0][0]])
    return tuple(_row(group, name, sites) for (group, name), sites in ordered)


def _row(step: str, name: str, sites: list[Site]) -> Row:
    first = sites[0]
    exact = all(site.exact for site in sites)
    return Row(
        step,
        name,
        first.op,
        _common(sites),
        first.dtype,
        # a single token has no order of axes to show
        max((site.axes for site in sites), key=len),
        exact,
        () if exact else _pooled([(site.count, site.error) for site in sites]),
        () if exact else _pooled([(site.count, site.noise) for site in sites]),
        sum(site.samples for site in sites),
        first.file,
        first.line,
    )


def _common(sites: list[Site]) -> tuple[int | str, ...]:
    shapes = [site.shape for site in sites]
    if len({len(shape) for shape in shapes}) > 1:
        return shapes[0]
    return tuple(sizes[0] if len(set(sizes)) == 1 else "n" for sizes in zip(*shapes, strict=True))


def _pooled(sites: list[tuple[int, tuple[float, ...]]]) -> tuple[float, ...]:
    """rms over all elements, then the worst of each."""
    total = sum(count for count, _ in sites)
    rms = math.sqrt(sum(count * numbers[0] ** 2 for count, numbers in sites) / total) if total else 0.0
    return (rms, *(max(column) for column in zip(*(numbers for _, numbers in sites), strict=True)))


def highest(several: Iterable[tuple[Row, ...]]) -> Mapping[tuple[str, str], tuple[float, ...]]:
    """The largest error of each value in several clean runs of a case."""
    found: dict[tuple[str, str], tuple[float, ...]] = {}
    for rows in several:
        for row in rows:
            before = found.get(row.key, row.error)
            found[row.key] = tuple(map(max, before, row.error)) if before and row.error else before or row.error
    return found
