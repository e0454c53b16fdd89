"""A case: one site of a fault under investigation, with everything that an edit may look at.

What is expensive is made once: the region as it should have been, the candidate's wrong value, the signature of the
difference, the sample that edits are previewed on. Leaves out the verdict on an edit (cause.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import Alignment
from firstbad.edit import NOTHING, Edit
from firstbad.errors import CompareError
from firstbad.graph import Op, Value
from firstbad.heads import heads_near
from firstbad.judge import MASKED
from firstbad.local import Judged, as_computed, sequential_of
from firstbad.noise import FACTOR, QUARTER, ROUNDOFF, Pool, Sequential
from firstbad.padding import without
from firstbad.passing import passing
from firstbad.region import Given, Region, region_of, replay_region, run_region
from firstbad.replay import Executor, Replayed, moves_only
from firstbad.signature import Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.trace import Trace

SAMPLE = 1 << 19
"""Elements that an edit is previewed on, beside the worst ones."""

WORST = 4096


@dataclass(frozen=True)
class Score:
    """How well an edit explains the difference: d = c - y, h = edited y - y, on a sample."""

    share: float  # of |d|² that is gone
    slope: float  # <d, h> / |h|²
    z: float  # of the slope
    odd: int  # elements that are a number on one side only

    @property
    def promising(self) -> bool:
        """Worth a full judgement."""
        return self.odd == 0 and (self.share > 0.5 or (abs(self.slope - 1) < 0.25 and self.z > 5))


@dataclass(frozen=True)
class Case:
    """One fault under investigation: its first site, its region, and where all values are."""

    reference: Trace
    candidate: Trace
    alignment: Alignment
    executor: Executor
    given: Given
    pools: Mapping[str, Pool]
    judged: Judged
    region: Region
    base: Edit = NOTHING  # what is already known to be wrong in the region: further edits come on top
    fresh: Iterator[int] = field(default_factory=itertools.count)  # ids for values that edits make on the way

    @property
    def op(self) -> Op | None:
        """The candidate's op that made the value, where the probe recorded one."""
        made_by = self.judged.pair.candidate.op
        return self.candidate.graph.ops[made_by] if made_by >= 0 else None

    @property
    def dtype(self) -> str:
        return self.judged.pair.candidate.dtype

    @property
    def u(self) -> float:
        return ROUNDOFF.get(self.dtype, ROUNDOFF["float32"])

    @cached_property
    def heads(self) -> int:
        """Blocks of columns whose gain is judged alone."""
        return heads_near(self.reference.graph, [(self.judged.pair.reference.id, 0)], 1)

    def own(self) -> NDArray[Any]:
        """The candidate's wrong value in the reference's layout."""
        return self._own

    @cached_property
    def _own(self) -> NDArray[Any]:
        pair = self.judged.pair
        array = pair.layout.apply(self.candidate.array(pair.candidate))
        return without(array, pair.layout.missing, self.expected)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The ops of the region that compute, in order; where it only moves values, all of them."""
        computing = tuple(op for op in self.region.ops if not moves_only(op))
        return computing or self.region.ops

    @cached_property
    def floats(self) -> bool:
        """Whether the value is of floating-point numbers."""
        return bool(np.issubdtype(self.expected.dtype, np.floating))

    @cached_property
    def replayed(self) -> Replayed:
        """The region as it should have been (with `base` applied)."""
        return self.replay(NOTHING)

    @cached_property
    def sequential(self) -> Sequential | None:
        plain = self.replayed if self.base is NOTHING else replace(self, base=NOTHING).replayed
        return None if plain.exact else sequential_of(self.u, plain)

    @property
    def expected(self) -> NDArray[Any]:
        return self.replayed.expected

    def replay(self, edit: Edit) -> Replayed:
        replayed = replay_region(self.reference.graph, self.region, self.executor, self.given, self._joined(edit))
        return as_computed(replayed, self.judged.pair.layout)

    def _joined(self, edit: Edit) -> Edit:
        joined = edit if self.base is NOTHING else self.base if edit is NOTHING else self.base.then(edit)
        if joined is None:
            raise CompareError("two edits of one thing cannot be joined")
        return joined

    def preview(self, edit: Edit, dtype: str = "float32") -> NDArray[Any]:
        """The edited region in float32 only."""
        return run_region(self.reference.graph, self.region, self.executor, self.given, self._joined(edit), dtype=dtype)

    def array(self, value: Value | int) -> NDArray[Any] | None:
        """What a region's input or weight holds: the candidate's own value, or the model's weight."""
        value = self.reference.graph.values[value] if isinstance(value, int) else value
        if value.kind == "weight":
            return self.executor.weight(value.name)
        return self.given(value)

    def preview_value(self, v: int) -> NDArray[Any] | None:
        """Any value of the region: given, or computed on the way in float32; None: it is none of the region."""
        own = self.array(v) if v != self.region.value.id else None
        if own is not None:
            return own
        made = tuple(op for op in self.region.ops if op.id <= self.reference.graph.values[v].op)
        if not any(v in op.writes for op in made):
            return None
        part = replace(self.region, ops=made, value=self.reference.graph.values[v])
        return run_region(self.reference.graph, part, self.executor, self.given)

    @cached_property
    def signature(self) -> Signature:
        """What the difference looks like; see signature.py."""
        r = self.replayed
        scale = np.zeros(1, np.float32) if r.exact or r.scale is None else r.scale
        allowed = 0.0 if r.exact else FACTOR * self.judged.floor.element + QUARTER
        return Signature.of(self.own(), r.expected, scale, self.u * allowed)

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """Flat indices on which edits are previewed: every n-th element and the worst ones."""
        size = self.own().size
        stride = max(1, math.ceil(size / SAMPLE)) | 1
        spread = np.arange(0, size, stride)
        if stride == 1:
            return spread
        off = np.abs(self.signature.difference).ravel()
        worst = np.argpartition(off, max(0, size - WORST))[-WORST:]
        return np.unique(np.concatenate([spread, worst]))

    @cached_property
    def _sampled(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The candidate's value and the region's own preview on the sample."""
        at = self.sample
        own = np.asarray(self.own(), np.float64).reshape(-1)[at]
        return own, np.asarray(self.preview(NOTHING), np.float64).reshape(-1)[at]

    def score(self, edited: NDArray[Any]) -> Score:
        """How much of the difference a preview explains."""
        c, y = self._sampled
        if edited.size != self.own().size:
            return Score(-math.inf, 0.0, 0.0, self.own().size)
        h = np.asarray(edited, np.float64).reshape(-1)[self.sample]
        kinds = [np.where(np.isfinite(x) & (x > MASKED), 0, np.where(np.isnan(x), 3, 1)) for x in (c, y, h)]
        number = (kinds[0] == 0) & (kinds[2] == 0)
        odd, odd_before = int((kinds[0] != kinds[2]).sum()), int((kinds[0] != kinds[1]).sum())
        y = np.where(kinds[1] == 0, y, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            left = np.where(number, c - h, 0.0)
            moved = np.where(number, h - y, 0.0)
            before = np.where(number, c - y, 0.0)
            d2, l2, h2 = float(before @ before), float(left @ left), float(moved @ moved)
            slope = float(before @ moved) / h2 if h2 > 0 else 0.0
        share = 1 - l2 / d2 if d2 > 0 else (1.0 if odd < odd_before else 0.0)
        if odd < odd_before and l2 <= d2:
            share = max(share, 1 - odd / odd_before)
        spread = math.sqrt(l2 / max(1, number.sum()))
        z = slope * math.sqrt(h2) / spread if spread > 0 else math.inf if h2 > 0 else 0.0
        return Score(share if math.isfinite(share) else -math.inf, slope, z, odd)


def case_of(
    judged: Judged,
    reference: Trace,
    candidate: Trace,
    alignment: Alignment,
    executor: Executor,
    given: Given,
    pools: Mapping[str, Pool],
) -> Case:
    """Everything an edit needs to know about one site of a fault."""
    region = region_of(
        reference.graph, judged.pair.reference, given, passing(reference.graph, candidate.graph, alignment)
    )
    fresh = itertools.count(len(reference.graph.values))
    return Case(reference, candidate, alignment, executor, given, pools, judged, region, NOTHING, fresh)
