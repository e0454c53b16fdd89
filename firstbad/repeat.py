"""Runs of one candidate against each other: the first value that is not the same bits in all of them.

The same program on the same input must give the same bytes, whatever the reference says. Leaves out why it does not (a
race, memory that nobody wrote): lint and `--allocations` look for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.cause_words import cause_statement
from firstbad.judge import distance
from firstbad.result import CauseResult, FaultResult, Result, SiteResult, Source
from firstbad.signature import folded, runs
from firstbad.statement import spans

if TYPE_CHECKING:
    from firstbad.graph import Value
    from firstbad.trace import Trace


@dataclass(frozen=True)
class Repeats:
    """How a candidate repeats itself."""

    runs: int
    first: dict[str, Any] = field(default_factory=dict)  # the first value that differs; {}: none does
    differ: int = 0  # values that do
    tokens_equal: bool = True


def compared(first: Trace, others: Iterable[Trace]) -> Repeats:
    """The first trace against every other one; values in the order in which the first run made them."""
    count, tokens = 1, True
    found: dict[str, Any] = {}
    differ: set[tuple[str, str]] = set()
    results: dict[tuple[str, str], set[int]] = {}
    for other in others:
        count += 1
        tokens = tokens and first.outputs.get("tokens") == other.outputs.get("tokens")
        for value in first.graph.values:
            key = (value.step, value.name)
            twin = other.graph.by_key.get(key)
            if value.kind not in ("value", "input") or twin is None:
                continue
            results.setdefault(key, {value.hash}).add(twin.hash)
            if not _same(first, value, other, twin):
                differ.add(key)
                if not found or value.id < found["id"]:
                    found = {"id": value.id, **_difference(first, value, other, twin)}
    if found:
        found["distinct"] = len(results[found["step"], found["value"]])
        found["runs"] = count
    return Repeats(count, found, len(differ), tokens)


def with_repeats(result: Result, repeats: Repeats) -> Result:
    """The result with what does not repeat as a fault."""
    extra = {**result.extra, "repeat": {"runs": repeats.runs, "differ": repeats.differ, "first": repeats.first or None}}
    result = replace(result, extra=extra)
    if not repeats.first:
        return result
    d = repeats.first
    detail = {k: d[k] for k in ("distinct", "runs", "inputs_equal", "values")} | {"values": repeats.differ}
    cause = CauseResult("nondeterministic", cause_statement("nondeterministic", d["value"], detail), detail, None)
    known = next((f for f in result.faults if f.value == d["value"]), None)
    if known is not None:
        older = {"kind": known.cause.kind, "detail": known.cause.detail, "reproduces_to": known.cause.reproduces_to}
        fault = replace(known, cause=replace(cause, alternatives=(older, *known.cause.alternatives)))
        faults = tuple(fault if f is known else f for f in result.faults)
    else:
        fault = FaultResult(
            value=d["value"],
            step=d["step"],
            op=d["op"],
            source=Source(d["file"], d["line"]),
            inputs=(),
            local_error=d["distance"],
            kernel_error=None,
            noise_floor=0.0,
            times_noise=float("inf"),
            cumulative_error=d["distance"],
            test="repeat",
            where=d["where"],
            worst=None,
            cause=cause,
            verdict="culprit",
            sites=(SiteResult(d["step"], d["distance"], 0.0, float("inf"), d["distance"]),),
            damage=(),
        )
        faults = (fault, *result.faults)
    return replace(result, verdict="diverged", faults=faults, first_bad=faults[0], stage=result.stage or "values")


def _same(first: Trace, value: Value, other: Trace, twin: Value) -> bool:
    if value.shape != twin.shape:
        return False
    if value.hash and twin.hash:
        return value.hash == twin.hash
    if not (first.stored(value) and other.stored(twin)):
        return True  # nothing is known
    a, b = first.array(value), other.array(twin)
    return bool(np.array_equal(a, b, equal_nan=np.issubdtype(a.dtype, np.floating)))


def _difference(first: Trace, value: Value, other: Trace, twin: Value) -> dict[str, Any]:
    op = first.graph.ops[value.op] if value.op >= 0 else None
    found: dict[str, Any] = {
        "step": value.step,
        "value": value.name,
        "distance": float("nan"),
        "where": "",
        "values": 0,
    }
    found |= {"op": op.kind if op else "", "file": op.file if op else "", "line": op.line if op else 0}
    reads = [first.graph.values[r.value] for r in op.reads if r.value >= 0] if op else []
    same = [(v, other.graph.by_key.get((v.step, v.name))) for v in reads]
    found["inputs_equal"] = all(t is not None and _same(first, v, other, t) for v, t in same)
    if first.stored(value) and other.stored(twin) and value.shape == twin.shape:
        a, b = first.array(value), other.array(twin)
        found["distance"] = distance(np.asarray(b), np.asarray(a))[0]
        G, R, C = folded(value.shape)
        odd = (np.asarray(a) != np.asarray(b)).reshape(G, R, C)
        words = []
        for name, axes in (("rows", (0, 2)), ("columns", (0, 1))):
            mask = odd.any(axes)
            if mask.any() and not mask.all():
                words.append(f"{name} {spans(runs(mask))}")
        found["where"] = ", ".join(words)
    return found
