"""Edits of kind `wrong_input`, `clobbered` and `stale`: the op is right, what it read is not what it should have read.

What the probe saw each op read comes first; then every other value of the same size is tried as each input. Values of
one name over several steps (the rows of a KV cache) are exchanged together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import Pair
from firstbad.case import Case
from firstbad.edit import Edit
from firstbad.graph import READ_CHANGED, READ_UNWRITTEN, Op, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Family:
    """An input of the region: the aligned values of one name that it reads, over one or more steps."""

    name: str
    members: tuple[Pair, ...]


def overwritten(case: Case) -> Iterator[Edit]:
    """Reads whose bytes were no longer what had been written."""
    op = case.op
    if op is None:
        return
    for read in op.reads:
        if read.state not in (READ_CHANGED, READ_UNWRITTEN) or not read.dataset or read.value < 0:
            continue
        value = case.candidate.graph.values[read.value]
        pair = case.alignment.by_candidate.get(value.id)
        content = case.candidate.as_read(read)
        detail = {"input": value.name, "input_step": value.step, "slot": read.slot, "read_place": _place(value)}
        writers = [case.candidate.graph.values[v] for v in read.overwritten_by]
        if writers:
            detail |= {"overwritten_by": writers[-1].name, "writer": _writer(case, writers[-1])}
        if pair is not None and pair.reference.id in case.region.inputs:
            kind = "clobbered" if writers else "stale"
            yield Edit(kind, detail, {pair.reference.id: pair.layout.apply(content)}, seen=True)
            continue
        # It read the place of another value, and that one was dead already: whatever stood there.
        for family in _families(case):
            target = family.members[0]
            if len(family.members) > 1 or target.candidate.dtype != value.dtype:
                continue
            for start, place in _places(case, value, content.size, target.candidate):
                part = in_memory(value, content)[start : start + _size(target.candidate)]
                more = {"input": place} if place else {}
                replaced = {target.reference.id: into(target, part)}
                yield Edit("stale", detail | more | {"instead_of": target.candidate.name}, replaced, seen=True)


def _places(case: Case, value: Value, count: int, like: Value) -> Iterator[tuple[int, str]]:
    """Where in an overwritten value something of the size of `like` may have been read: (first element, whose place).

    An op may read the place of a value that comes later, or came before, in memory that a larger one had first.
    """
    if count == _size(like):
        yield 0, ""
        return
    itemsize = max(1, like.extent // max(1, _size(like)))
    step, places = like.step, {}
    for v in case.candidate.graph.values:
        inside = value.address <= v.address and v.address + v.extent <= value.address + value.extent
        if inside and v.address and v.extent == like.extent and (v.step == step or v.address not in places):
            after = case.op is None or v.op > case.op.id
            if v.address not in places or after:
                places[v.address] = v.name
    for address, name in places.items():
        yield (address - value.address) // itemsize, name


def as_seen(case: Case) -> Iterator[Edit]:
    """What the op was seen to read in the place of an input that it should have read; two inputs exchanged."""
    families = _families(case)
    seen = _names_read(case.op, case.candidate.graph.values)
    yield from _from_reads(case, families, seen, {f.name for f in families}, _sources(case))


def earlier(case: Case) -> Iterator[Edit]:
    """An input as an earlier step had left it; for the rows of a cache: the last ones missing, repeated, or moved."""
    sources = _sources(case)
    for family in _families(case):
        last = family.members[-1]
        for step, value in sources.get(family.name, {}).items():
            if step != last.candidate.step and _size(value) == _size(last.candidate) and value.id < last.candidate.id:
                content = into(last, in_memory(value, case.candidate.array(value)))
                detail = {"input": family.name, "input_step": last.candidate.step, "read_step": step}
                yield Edit("stale", detail | {"read": family.name}, {last.reference.id: content})
        if len(family.members) > 1:
            zeros = {last.reference.id: np.zeros(last.reference.shape, np.float32)}
            yield Edit("stale", {"input": family.name, "read": "zeros", "input_step": last.candidate.step}, zeros)


def rewired(case: Case) -> Iterator[Edit]:
    """Any other captured value in the place of an input."""
    families = _families(case)
    seen = _names_read(case.op, case.candidate.graph.values)
    sources = _sources(case)
    for family in families:
        for name in sources:
            if name != family.name and not (name in seen and family.name not in seen):
                yield from _exchange(case, {family: name}, sources)


def _from_reads(
    case: Case, families: list[Family], seen: dict[str, None], expected: set[str], sources: Mapping[str, Any]
) -> Iterator[Edit]:
    missing = [f for f in families if f.name not in seen]
    foreign = [name for name in seen if name not in expected and name in sources]
    if len(missing) > 1 and len(missing) == len(foreign):
        yield from _exchange(case, dict(zip(missing, foreign, strict=True)), sources)
        yield from _exchange(case, dict(zip(missing, reversed(foreign), strict=True)), sources)
    for family in missing:
        for name in [*foreign, *(n for n in seen if n in expected and n != family.name)]:
            for edit in _exchange(case, {family: name}, sources):
                yield replace(edit, seen=True)
    for a in families:
        for b in families:
            if a.name < b.name:
                yield from _exchange(case, {a: b.name, b: a.name}, sources)


def _exchange(case: Case, swap: Mapping[Family, str], sources: Mapping[str, Mapping[str, Value]]) -> Iterator[Edit]:
    replaced: dict[int, NDArray[Any]] = {}
    for family, name in swap.items():
        for pair in family.members:
            source = _source_for(pair, sources[name], case) if name in sources else None
            if source is None or _size(source) != _size(pair.candidate) or source.dtype != pair.candidate.dtype:
                return
            replaced[pair.reference.id] = into(pair, in_memory(source, case.candidate.array(source)))
    if not replaced:
        return
    family, name = next(iter(swap.items()))
    first = family.members[0]
    source = _source_for(first, sources[name], case)
    assert source is not None
    detail: dict[str, Any] = {
        "input": family.name,
        "input_step": first.candidate.step,
        "input_place": _place(first.candidate),
        "read": source.name,
        "read_step": source.step,
        "read_place": _place(source),
    }
    also: list[dict[str, str]] = [{"input": f.name, "read": n} for f, n in list(swap.items())[1:]]
    if also:
        detail["also"] = also
    yield Edit("wrong_input", detail, replaced)


def _families(case: Case) -> list[Family]:
    members: dict[str, list[Pair]] = {}
    for value_id in case.region.inputs:
        pair = case.alignment.by_reference.get(value_id)
        if pair is not None:
            members.setdefault(pair.candidate.name, []).append(pair)
    return [Family(name, tuple(pairs)) for name, pairs in members.items()]


def _sources(case: Case) -> Mapping[str, Mapping[str, Value]]:
    """Every captured value by name and step that existed when the op ran, the nearest before the op first."""
    graph, op = case.candidate.graph, case.op
    own = case.judged.pair.candidate
    limit = op.id if op is not None else len(graph.ops)
    found: dict[str, dict[str, Value]] = {}
    for value in reversed(graph.values):
        captured = value.kind in ("value", "input") and (value.dataset or value.same_as >= 0)
        if captured and value.id != own.id and value.op < limit:
            found.setdefault(value.name, {})[value.step] = value
    return found


def _source_for(pair: Pair, steps: Mapping[str, Value], case: Case) -> Value | None:
    """The value of a name that stands for one member: of the same step, else of the op's step, else the latest."""
    for step in (pair.candidate.step, case.judged.pair.candidate.step):
        if step in steps:
            return steps[step]
    return next(iter(steps.values()), None)


def _names_read(op: Op | None, values: tuple[Value, ...]) -> dict[str, None]:
    reads = op.reads if op is not None else ()
    return dict.fromkeys(values[r.value].name for r in reads if r.value >= 0 and values[r.value].kind != "weight")


def _size(value: Value) -> int:
    return int(np.prod(value.shape, dtype=np.int64))


def _memory_axes(value: Value) -> tuple[int, ...]:
    """Axes of a value by falling stride: the order in which its bytes lie in the engine's memory."""
    if not value.strides:
        return tuple(range(len(value.shape)))
    return tuple(sorted(range(len(value.shape)), key=lambda a: -abs(value.strides[a])))


def in_memory(value: Value, array: NDArray[Any]) -> NDArray[Any]:
    """The elements in the order of the engine's memory, flat: what a reader with another shape would see."""
    return array.reshape(value.shape).transpose(_memory_axes(value)).reshape(-1)


def into(pair: Pair, flat: NDArray[Any]) -> NDArray[Any]:
    """Bytes of another buffer read as this value: its own memory order, then the reference's layout."""
    value = pair.candidate
    axes = _memory_axes(value)
    lying = flat.reshape(tuple(value.shape[a] for a in axes))
    return pair.layout.apply(lying.transpose(np.argsort(axes)))


def _place(value: Value) -> dict[str, Any]:
    """Where a value lies, for people: its buffer in the engine's memory."""
    return {"name": value.name, "step": value.step, "address": value.address, "bytes": value.extent}


def _writer(case: Case, value: Value) -> dict[str, Any]:
    if value.op < 0:
        return {}
    op = case.candidate.graph.ops[value.op]
    return {"op": op.name, "kind": op.kind, "file": op.file, "line": op.line, "step": op.step}
