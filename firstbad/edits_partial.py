"""Edits of kind `partial_write`, `stale` and `nonfinite`: a part of the value holds something else.

Which part is read off the wrong elements (groups x rows x columns that hold them all); what it holds must be known from
elsewhere: zero, NaN, one number, what the buffer held before, an input, or the same value of an earlier step. Leaves
out values that are wrong in scattered elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import part_of
from firstbad.case import Case
from firstbad.edit import FITTED, LAST, LOOSE, After, Edit
from firstbad.edits_variant import word_of
from firstbad.graph import Value
from firstbad.signature import runs
from firstbad.statement import spans
from firstbad.wiring import in_memory, into

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST = 8
"""Elements without a number that count as a part of the value; fewer are just that."""

MOST = 64
"""Earlier contents of a buffer, or captured values, that are tried."""


def copies(case: Case) -> Iterator[Edit]:
    """The whole value is another one, bit for bit: the op never ran, or ran in an earlier step only."""
    own = case.judged.pair.candidate
    flat = in_memory(own, case.candidate.array(own))
    probe = flat[: 1 << 12]
    if flat.size == 0 or np.all(probe == probe[0]):
        return
    for value in case.candidate.graph.values:
        if value.id >= own.id or value.kind not in ("value", "input") or value.dtype != own.dtype:
            continue
        if _own_part(case, value):
            continue
        if int(np.prod(value.shape, dtype=np.int64)) != flat.size or not case.candidate.stored(value):
            continue
        other = in_memory(value, case.candidate.array(value))
        if not (np.array_equal(other[: probe.size], probe) and np.array_equal(other, flat)):
            continue
        content = into(case.judged.pair, other)
        holds = {"holds": value.name, "holds_step": value.step}
        if value.name == own.name:
            yield Edit("stale", {"value": own.name, **holds}, output=content)
        elif case.alignment.by_candidate.get(value.id) is None or not _is_input(case, value):
            same = value.address and value.address == own.address
            where = {"where": "what its buffer held before"} if same else {}
            yield Edit("missing_op", {"op": word_of(case.ops[-1]), **holds, **where}, output=content, cost=FITTED)


def unwritten(case: Case) -> Iterator[Edit]:
    """A part was not written."""
    s = case.signature
    if not s.wrong.any():
        return
    masks = (s.groups, s.rows, s.columns)
    part = np.ix_(*(np.flatnonzero(m) for m in masks))
    words = {
        name: spans(runs(m))
        for name, m in zip(("groups", "rows", "columns"), masks, strict=True)
        if not m.all() and m.size > 1
    }
    where: dict[str, Any] = {**words, "of": dict(zip(("groups", "rows", "columns"), s.shape, strict=True))}
    inside = s.own[part]
    if case.floats and np.isnan(inside).all():
        kind = "partial_write" if words and inside.size >= FEWEST else "nonfinite"
        yield Edit(kind, {"holds": "NaN", **where}, after=(_part(np.nan, part, s.shape),), cost=FITTED)
    elif inside.size > 1 and np.all(inside == inside.flat[0]):
        number = float(inside.flat[0])
        kind = "nonfinite" if not np.isfinite(number) and inside.size < FEWEST else "partial_write"
        detail = {"holds": "zero" if number == 0 else "one number", "number": number, **where}
        yield Edit(kind, detail, after=(_part(number, part, s.shape),), cost=FITTED if number == 0 else LOOSE)
    for holds, content in _contents(case):
        if content.size != s.own.size or not np.array_equal(content.reshape(s.shape)[part], inside):
            continue
        if words:
            yield Edit("partial_write", {**holds, **where}, after=(_part(content, part, s.shape),), cost=FITTED)
        elif "left_by" in holds:
            detail = {"op": word_of(case.ops[-1]), "holds": holds["left_by"], "holds_step": holds["left_step"]}
            yield Edit("missing_op", detail | {"where": holds["holds"]}, output=content, cost=FITTED)


def unwritten_stretch(case: Case) -> Iterator[Edit]:
    """A stretch of the engine's memory was not written: the elements behind the last whole vector of a kernel."""
    own = case.judged.pair.candidate
    if not case.floats or not case.signature.wrong.any() or case.judged.pair.layout.words:
        return
    wrong = in_memory(own, case.signature.wrong.reshape(own.shape))
    first, last = int(np.argmax(wrong)), wrong.size - 1 - int(np.argmax(wrong[::-1]))
    if first == 0 and last == wrong.size - 1:
        return
    part = np.zeros(wrong.size, bool)
    part[first : last + 1] = True
    inside = in_memory(own, case.candidate.array(own))[part]
    mask = into(case.judged.pair, part)
    words = {"elements": f"elements {first} to {last}", "first": first, "last": last}
    contents: list[tuple[dict[str, Any], NDArray[Any]]] = []
    if inside.size > 1 and np.all(inside == inside[0]):
        number = float(inside[0])
        holds = {"holds": "zero" if number == 0 else "one number", "number": number}
        contents.append((holds, np.full(mask.shape, number, np.float32)))
    for holds, content in [*contents, *_contents(case)]:
        if content.size != wrong.size or not np.array_equal(content.reshape(mask.shape)[mask], case.own()[mask]):
            continue

        def after(y: NDArray[Any], content: NDArray[Any] = content) -> NDArray[Any]:
            return np.where(mask, content.reshape(mask.shape), y).astype(y.dtype)

        yield Edit("partial_write", {**holds, **words}, after=(after,), cost=FITTED + 1)


def described(case: Case) -> Iterator[Edit]:
    """Elements that are no numbers where there should be: told as they are, for want of anything better."""
    if not case.floats:
        return
    own, s = case.own(), case.signature
    odd = ~np.isfinite(np.asarray(own, np.float64)) & np.isfinite(np.asarray(case.expected, np.float64))
    if not odd.any():
        return
    first = int(np.argmax(odd))
    content = np.asarray(own, np.float64).reshape(-1)[first]
    detail = {"count": int(odd.sum()), "of": int(odd.size), "first": first, "holds": str(content)}
    filled = np.where(odd, own, 0)

    def after(y: NDArray[Any]) -> NDArray[Any]:
        return np.where(odd, filled, y).astype(y.dtype)

    if s.share_wrong > 0:
        yield Edit("nonfinite", detail, after=(after,), cost=LAST)


def _contents(case: Case) -> Iterator[tuple[dict[str, Any], NDArray[Any]]]:
    """What the part may hold: the buffer's earlier contents, the same value before, inputs, any other value."""
    own = case.judged.pair.candidate
    pair = case.judged.pair
    earlier = [
        v for v in reversed(case.candidate.graph.values[: own.id]) if _stored(case, v, own) and not _own_part(case, v)
    ]
    if own.address:
        yield from _before(case, own, earlier)
    same = [v for v in earlier if v.name == own.name]
    inputs = [v for v in earlier if _is_input(case, v)]
    for value in [*same, *inputs, *earlier][:MOST]:
        if value.shape == own.shape:
            holds = "the same value of an earlier step" if value.name == own.name else "another value"
            content = into(pair, in_memory(value, case.candidate.array(value)))
            yield {"holds": holds, "left_by": value.name, "left_step": value.step}, content


def _own_part(case: Case, value: Value) -> bool:
    """A step on the way to the value itself: a product before its bias, which equals it where the bias is zeros."""
    return part_of(case.candidate.graph, value) == f"a part of {case.judged.pair.candidate.name}"


def _before(case: Case, own: Value, earlier: list[Value]) -> Iterator[tuple[dict[str, Any], NDArray[Any]]]:
    """The memory of the value before it was written: every earlier write to it, the last one on top."""
    overlap = [v for v in earlier if v.address < own.address + own.extent and own.address < v.address + v.extent]
    memory = np.full(int(np.prod(own.shape, dtype=np.int64)), np.nan, np.float32)
    free = np.ones(memory.size, bool)
    if own.dtype != "float32" or own.extent != memory.nbytes:
        return
    by: list[Value] = []
    for value in overlap[:MOST]:  # the last one first
        shift = (value.address - own.address) // memory.itemsize
        flat = in_memory(value, case.candidate.array(value))
        a, z = max(0, shift), min(memory.size, shift + flat.size)
        if z > a and free[a:z].any():
            memory[a:z][free[a:z]] = flat[a - shift : z - shift][free[a:z]]
            free[a:z] = False
            by.append(value)
    if by:
        holds = {"holds": "what the buffer held before", "left_by": by[0].name, "left_step": by[0].step}
        if len(by) > 1:
            holds["and_by"] = ", ".join(v.name for v in by[1:4])
        yield holds, into(case.judged.pair, memory)


def _stored(case: Case, value: Value, own: Value) -> bool:
    return value.kind in ("value", "input") and value.dtype == own.dtype and case.candidate.stored(value)


def _is_input(case: Case, value: Value) -> bool:
    pair = case.alignment.by_candidate.get(value.id)
    return pair is not None and pair.reference.id in case.region.inputs


def _part(content: NDArray[Any] | float, part: tuple[Any, ...], folded: tuple[int, int, int]) -> After:
    """`content` in the part, the output elsewhere."""

    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.array(y).reshape(folded)
        made[part] = content if isinstance(content, float) else np.asarray(content).reshape(folded)[part]
        return made.reshape(y.shape)

    return after
