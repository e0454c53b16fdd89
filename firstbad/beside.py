"""Two traces beside each other, for `firstbad show --with`: what both hold of a value, and where they differ most.

By name and shape only, nothing is judged: that is `firstbad compare`. Plain data; the verb prints it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from firstbad.graph import Value
    from firstbad.sketch import Sketch
    from firstbad.trace import Trace


UNSTORED = "not stored"


@dataclass(frozen=True)
class Beside:
    """One value in both. `why`: the reason why it cannot be set against the other one, "" where it can."""

    value: Value
    other: Value | None
    why: str = ""
    relative: float = 0.0  # L2 of the difference over L2 of the other one
    largest: float = 0.0
    index: tuple[int, ...] = ()
    known_by: str = "array"  # "hash": equal; "sketch": the distance of their quantiles, as one of them keeps no array


def beside(trace: Trace, other: Trace, values: Sequence[Value]) -> list[Beside]:
    """Sets each of the values against the one of the same step and name."""
    from firstbad.measures import measure_all

    partners = [other.graph.by_key.get((value.step, value.name)) for value in values]
    whys = [_why_not(trace, other, value, partner) for value, partner in zip(values, partners, strict=True)]
    both = [(v, p) for v, p, why in zip(values, partners, whys, strict=True) if p is not None and not why]
    pairs = ((trace.array(value).reshape(value.shape), other.array(p).reshape(value.shape)) for value, p in both)
    measured = iter(measure_all(pairs))
    found = []
    for value, partner, why in zip(values, partners, whys, strict=True):
        if partner is not None and why == UNSTORED:
            found.append(_by_sketch(trace, other, value, partner))
        elif why:
            found.append(Beside(value, partner, why))
        else:
            m = next(measured)
            index = m.place(m.max_abs_index) if m.max_abs_index >= 0 else ()
            found.append(Beside(value, partner, "", m.relative_l2, m.max_abs, index))
    return found


def _by_sketch(trace: Trace, other: Trace, value: Value, partner: Value) -> Beside:
    """By hash and quantiles, where at least one of the two keeps no more."""
    ours, theirs = _sketch_of(trace, value), _sketch_of(other, partner)
    if ours is None or theirs is None:
        return Beside(value, partner, UNSTORED)
    hashes = [v.hash or _hash_of(t, v) for t, v in ((trace, value), (other, partner))]
    if value.dtype == partner.dtype and hashes[0] == hashes[1] != 0:
        return Beside(value, partner, known_by="hash")
    if ours.apart != theirs.apart or ours.numbers.shape != theirs.numbers.shape:
        return Beside(value, partner, "", math.inf, math.inf, known_by="sketch")
    apart = np.abs(ours.numbers - theirs.numbers)
    size = max(float(np.linalg.norm(theirs.numbers)), 1e-300)
    return Beside(
        value, partner, "", float(np.linalg.norm(apart)) / size, float(apart.max(initial=0)), known_by="sketch"
    )


def _sketch_of(trace: Trace, value: Value) -> Sketch | None:
    from firstbad.sketch import sketch

    return sketch(trace.array(value)) if trace.stored(value) else trace.sketches.get(value.id)


def _hash_of(trace: Trace, value: Value) -> int:
    """Of an array that is held as the engine has it; 0 where it was widened."""
    from firstbad.hashing import hash_array

    if not trace.stored(value) or trace.array(value).dtype != value.dtype:
        return 0
    return hash_array(np.ascontiguousarray(trace.array(value)))


def _why_not(trace: Trace, other: Trace, value: Value, partner: Value | None) -> str:
    if partner is None:
        return "only here"
    if math.prod(value.shape) != math.prod(partner.shape):
        return f"there of shape {list(partner.shape)}"
    return "" if trace.stored(value) and other.stored(partner) else UNSTORED


def around(shape: Sequence[int], index: Sequence[int], rows: int = 5, columns: int = 7) -> str:
    """The slice around one element, as `--slice` takes it."""
    parts = [str(i) for i in index[:-2]]
    for i, n, count in zip(index[-2:], shape[-2:], (rows, columns)[2 - min(2, len(shape)) :], strict=True):
        start = max(0, min(i - count // 2, n - count))
        parts.append(f"{start}:{min(n, start + count)}")
    return ",".join(parts)
