"""Evidence that stands without the tool: for each fault a folder of `repro/` with its inputs, what was expected, what
was given, and a test in Python and in C that fails until the kernel is right.

The test runs the engine itself up to the faulty value, with the op's inputs put in place as the candidate read them
(FIRSTBAD_REPLACE, answered from a file), so that it does not matter what is wrong further up. It judges as the
comparison did: error over what rounding may make of each element, by the slice in which the fault failed. Leaves out
candidates that are no process under firstbad.h: they get the arrays alone.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.convict_text import C_TEST, PATTERN, PYTEST, README, RUN, SLICE
from firstbad.graph import Value
from firstbad.joined import with_joins
from firstbad.judge import MASKED
from firstbad.layout import Layout
from firstbad.noise import Excess
from firstbad.run import Launch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.comparison import Comparison
    from firstbad.trace import Trace

FOLDER = "repro"
CLOSING = 17
"""Bytes of the CLOSE record that ends a stream: what stands before it is the last value."""

MOST = 20  # faults that get a folder

SLICED = ("exact", "element", "rows", "columns", "groups", "whole")
"""Tests whose statistic is a root mean square of q over a slice; what failed by another is judged by its pattern."""


def convict(
    comparison: Comparison,
    candidate: Trace,
    launch: Callable[[Path, Case], Launch] | None,
    folder: Path,
) -> list[dict[str, Any]]:
    """Writes a folder for every fault; `launch` lays out how its engine is started again. Older ones are removed."""
    top = folder / FOLDER
    shutil.rmtree(top, ignore_errors=True)
    written = []
    wholes = {one.value.id for one in comparison.alignment.joins}
    candidate = with_joins(candidate, comparison.alignment.joins)
    for n, (fault, (case, _)) in enumerate(zip(comparison.localised.faults, comparison.explained, strict=True)):
        if n >= MOST:
            break
        words = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{n + 1}-{case.judged.step}-{fault.name}")
        place = top / words
        place.mkdir(parents=True, exist_ok=True)
        whole = case.judged.pair.candidate.id in wholes  # its engine writes pieces: there is no value to wait for
        started = launch(place, case) if launch is not None and not whole else None
        source = f"{case.op.file}:{case.op.line}" if case.op is not None and case.op.file else ""
        written.append(_write(place, case, candidate, started, source))
    return written


def _write(place: Path, case: Case, candidate: Trace, launch: Launch | None, source: str) -> dict[str, Any]:
    pair = case.judged.pair
    injected = _injected(case, candidate)
    for value in injected:
        array = candidate.array(value)
        np.save(place / f"input.{_safe(value)}.npy", array)
    given = candidate.array(pair.candidate)
    expected, allowed = _judged_by(case)
    test = _failed(case)
    np.save(place / "expected.npy", case.expected)
    np.save(place / "given.npy", given)
    said: dict[str, Any] = {"value": case.judged.name, "step": case.judged.step, "folder": str(place), "test": ""}
    if launch is None or expected.size != given.size or pair.layout != Layout(pair.layout.shape):
        return said
    expected.tofile(place / "expected.bin")
    allowed.tofile(place / "allowed.bin")
    _answers(place, injected, candidate)
    item = "int64" if pair.candidate.dtype.startswith("int") else "float32"
    words = {
        "name": re.sub(r"\W+", "_", f"{case.judged.name} of {case.judged.step}"),
        "value": case.judged.name,
        "step": case.judged.step,
        "candidate": pair.candidate.name,
        "source": f" ({source})" if source else "",
        "item": item,
        "ctype": "int64_t" if item == "int64" else "float",
        "bytes": given.size * np.dtype(item).itemsize,
        "count": given.size,
        "closing": CLOSING,
        "end": CLOSING,
        "limit": repr(float(test.limit)),
        "what": test.test,
        "pattern": int(test.test not in SLICED),
        "command": " ".join(launch.command),
        "environment": "".join(f"export {line}\n" for line in launch.environment),
        "inputs": "\n".join(f"  input.{_safe(v)}.npy  {v.name} of {v.step}" for v in injected),
    }
    outer, length, inner = _slices(test, case.region.value.shape)
    words |= {"outer": outer, "length": length, "inner": inner}
    words["judge"] = (SLICE if test.test in SLICED else PATTERN).format(**words)
    if test.test not in SLICED:
        q = (np.asarray(given, np.float64).reshape(expected.shape) - expected) / allowed
        (q / float((q * q).sum())).tofile(place / "pattern.bin")
    for name, text in (("run", RUN), ("test_repro.py", PYTEST), ("repro.c", C_TEST), ("README.txt", README)):
        (place / name).write_text(text.format(**words), "utf-8")
    (place / "run").chmod(0o755)
    return said | {"test": str(place / "test_repro.py")}


def _injected(case: Case, candidate: Trace) -> list[Value]:
    """What the op should have read and what it did read, as the candidate wrote it, and the tokens of earlier steps."""
    graph, op = candidate.graph, case.op
    own = case.judged.pair.candidate
    wanted: dict[int, Value] = {}
    pieces = {one.value.id: one.pieces for one in case.alignment.joins}
    for value_id in case.region.inputs:
        pair = case.alignment.by_reference.get(value_id)
        if pair is not None:
            wanted |= {v.id: v for v in pieces.get(pair.candidate.id, (pair.candidate,))}
    for read in op.reads if op is not None else ():
        if read.value >= 0:
            wanted[read.value] = graph.values[read.value]
    for value in graph.values:  # so that decode steps go the same way
        if value.kind == "value" and value.step != own.step and value.id < own.id and "argmax" in value.name:
            wanted[value.id] = value
    kept = [v for v in wanted.values() if v.kind in ("value", "input") and v.id < own.id and candidate.stored(v)]
    return sorted(kept, key=lambda v: v.id)


def _answers(place: Path, injected: Sequence[Value], candidate: Trace) -> None:
    """What the engine is to put in place, in the order in which it will ask."""
    (place / "replace.txt").write_text("".join(f"{v.step}/{v.name}\n" for v in injected), "utf-8")
    with (place / "answers.bin").open("wb") as file:
        for value in injected:
            content = np.ascontiguousarray(candidate.array(value)).tobytes()
            file.write(struct.pack("<QQ", 0, len(content)) + content)


def _judged_by(case: Case) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Expected, and one rounding's reach of each element: u x its condition; masked scores may be any mask."""
    replayed = case.replayed
    expected = np.ascontiguousarray(replayed.expected, np.float64)
    if replayed.exact or (replayed.scale is None and not case.floats):
        return expected, np.full(expected.shape, 1e-300)
    scale = np.abs(expected) + np.sqrt(np.mean(expected**2)) if replayed.scale is None else replayed.scale
    allowed = case.u * np.broadcast_to(np.asarray(scale, np.float64), expected.shape) + 1.2e-38
    return expected, np.ascontiguousarray(np.where(expected <= MASKED, 1e36, allowed))


def _failed(case: Case) -> Excess:
    """The failed test to judge by: of an element or a slice where one failed, else whichever failed worst."""
    bad = sorted((t for t in case.judged.tests if t.bad), key=lambda t: -t.ratio)
    sets = next((t for t in bad if t.test in ("nonfinite", "masked")), None)
    if sets is not None:  # where one side has no number the error has no size: any limit will do
        element = next((t for t in case.judged.tests if t.test == "element"), sets)
        return Excess("element", sets.seen, element.limit, sets.index)
    return next((t for t in bad if t.test in SLICED), bad[0])


def _slices(test: Excess, shape: Sequence[int]) -> tuple[int, int, int]:
    """The value as [outer, length, inner]: errors are averaged over `length`."""
    count = int(np.prod(shape, dtype=np.int64))
    C, R = (shape[-1] if shape else 1), (shape[-2] if len(shape) > 1 else 1)
    cuts = {
        "rows": (count // C, C, 1),
        "columns": (count // (R * C), R, C),
        "groups": (count // (R * C), R * C, 1),
        "whole": (1, count, 1),
    }
    return cuts.get(test.test, (count, 1, 1))


def _safe(value: Value) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{value.step}.{value.name}")
