"""Edits of kind `clobbered`, `stale` and `wrong_input` for a cache whose rows lie in slots: a ring, or pages.

Where a value is old and new rows joined, each wrong row is looked up among all rows that were ever made for it. What
the probe saw of the memory (which rows were stored where, in order) then says what happened to the row that should be
there: another one was stored over it, it was stored into another slot, or the reader went to the wrong slot. Leaves out
caches that are read in place: there wiring.py exchanges whole values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import part_of
from firstbad.case import Case
from firstbad.edit import Edit
from firstbad.edit import value as argument
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import READ_UNWRITTEN, Value
from firstbad.replay import moves_only
from firstbad.signature import runs
from firstbad.statement import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 1 << 16
"""Rows that were ever made for one cache."""


@dataclass(frozen=True)
class _Slots:
    """The memory of a cache when the op read it: which position's row lies at an address, and what lay there before."""

    holds: Mapping[int, int]  # address of a slot → position
    lost: Mapping[int, tuple[int, Value]]  # position → (the one whose row was stored over it, by which store)
    stored: Mapping[int, Value]  # position → the last store of its row
    row_bytes: int

    def address(self, position: int) -> int | None:
        return next((a for a, p in self.holds.items() if p == position), None)


def slots(case: Case) -> Iterator[Edit]:
    """Rows of a cache that are others' rows, or nobody's."""
    joined = next((op for op in case.region.ops if op.writes[0] == case.region.value.id), None)
    if joined is None or word_of(joined) != "cat" or not all(moves_only(op) for op in case.region.ops):
        return
    own, expected = _rows(case.own()), _rows(case.expected)
    wrong = np.flatnonzero((own != expected).any(1))
    for name, made in _made(case).items():
        history = _history(case, made)
        if history is None or history.shape[1] != own.shape[1] or not wrong.size or len(history) < len(own):
            continue
        first = len(history) - len(own)
        if not np.array_equal(history[first:], expected):
            continue
        places = {row.tobytes(): n for n, row in enumerate(history)}
        found = [places.get(own[r].tobytes(), None if own[r].any() else -1) for r in wrong]
        if any(f is None for f in found):
            continue
        taken = {int(first + r): int(f) for r, f in zip(wrong, found, strict=True) if f is not None}
        content = np.array(own)
        output = np.moveaxis(content.reshape(_moved(case.expected)), 0, -2)
        found_there = _Found(taken, first, len(history) - 1)
        yield from _edits(case, name, found_there, _memory(case, name, places), output)


def unshown(case: Case) -> Iterator[Edit]:
    """The newest rows of a cache that is put together on the way, and not shown: the rows before them, or none."""
    for op in case.region.ops:
        if word_of(op) != "cat" or len(op.reads) != 2 or op.writes[0] == case.region.value.id:
            continue
        values = case.reference.graph.values
        old, new = (values[r.value] for r in op.reads)
        whole = values[op.writes[0]]
        if not len(old.shape) == len(new.shape) == len(whole.shape):
            continue
        axes = [n for n, (a, b) in enumerate(zip(old.shape, whole.shape, strict=True)) if a != b]
        if len(axes) != 1:
            continue
        (axis,), total = axes, whole.shape[axes[0]]
        count = new.shape[axis]
        before = total - count
        for hold in (range(max(0, before - count), before), range(0)):
            chain = Chain(case, op, [])
            part = [hold.start, hold.stop] if hold else [0, count]
            rows = chain("slice.Tensor", Id(old.id if hold else new.id), axis, *part)
            if not hold:
                rows = chain("zeros_like.default", Id(rows))
            if len(hold) in (0, count):
                chain("cat.default", [argument(old.id), argument(rows)], axis, last=True)
                place = {"positions": _spans(range(before, total)), "hold": _spans(hold)}
                detail = {"cache": whole.name, "input": whole.name, "how": "not stored", "rows_place": place}
                yield Edit("stale", detail, ops={op.id: tuple(chain.made)})


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    """[..., n, K] as n rows, whatever stands between."""
    moved = np.moveaxis(np.asarray(array), -2, 0)
    return np.ascontiguousarray(moved, array.dtype).reshape(len(moved), -1)


def _moved(array: NDArray[Any]) -> tuple[int, ...]:
    return (array.shape[-2], *array.shape[:-2], array.shape[-1])


def _made(case: Case) -> Mapping[str, list[Value]]:
    """Inputs of this very step by name, with the values of that name in all steps so far."""
    step = case.judged.pair.candidate.step
    names = {}
    for i in case.region.inputs:
        pair = case.alignment.by_reference.get(i)
        if pair is not None and pair.candidate.step == step:
            names[pair.candidate.name] = pair.candidate.id
    return {
        name: [v for v in case.candidate.graph.values if v.name == name and v.id <= last]
        for name, last in names.items()
    }


def _history(case: Case, made: list[Value]) -> NDArray[Any] | None:
    """The rows that were made, one a position; None where not all are known."""
    pieces = []
    for value in made:
        pair = case.alignment.by_candidate.get(value.id)
        if pair is None or not case.candidate.stored(value) or len(value.shape) < 2:
            return None
        pieces.append(_rows(pair.layout.apply(case.candidate.array(value))))
    if len({p.shape[1] for p in pieces}) != 1 or sum(map(len, pieces)) > MOST:
        return None
    return np.concatenate(pieces)


def _memory(case: Case, name: str, places: Mapping[bytes, int]) -> _Slots | None:
    """The stores of a cache walked through up to the op."""
    own, graph = case.judged.pair.candidate, case.candidate.graph
    whole = f"a part of {name}"
    holds: dict[int, int] = {}
    lost: dict[int, tuple[int, Value]] = {}
    stored: dict[int, Value] = {}
    size = 0
    for value in graph.values[: own.id]:
        if part_of(graph, value) != whole or not value.address or not case.candidate.stored(value):
            continue
        rows = _rows(case.candidate.array(value))
        size = value.extent // len(rows)
        for n, row in enumerate(rows):
            position, at = places.get(row.tobytes(), -1), value.address + n * size
            before = holds.get(at)
            if before is not None and before != position:
                lost[before] = (position, value)
            holds[at] = position
            stored[position] = value
    return _Slots(holds, lost, stored, size) if size else None


@dataclass(frozen=True)
class _Found:
    """What was found in the place of some positions."""

    taken: Mapping[int, int]  # position → whose row was there; -1: nobody's
    first: int  # position of the first row that should be there
    last: int


def _edits(case: Case, name: str, found: _Found, memory: _Slots | None, output: NDArray[Any]) -> Iterator[Edit]:
    place: dict[str, Any] = {
        "positions": _spans(found.taken),
        "hold": _spans({p for p in found.taken.values() if p >= 0}),
    }
    detail: dict[str, Any] = {"cache": name, "input": name}

    def edit(kind: str, how: str, more: Mapping[str, Any], *, seen: bool = True) -> Edit:
        return Edit(kind, {**detail, "how": how, **more, "rows_place": place}, output=output, seen=seen)

    if memory is None:
        yield edit("wrong_input", "other rows", {}, seen=False)
        return
    lost = {p: memory.lost[p] for p in found.taken if p in memory.lost and memory.address(p) is None}
    off = {p: d for p, q in found.taken.items() if (d := _slots_off(case, memory, p, q))}
    if lost:
        over, store = next(iter(lost.values()))
        place |= {"store": store.name, "over": _spans({n for n, _ in lost.values()}), "lost": _spans(lost)}
    if lost and not off:
        yield edit("clobbered", "slots shared", {"overwritten_by": store.name, "by": over - next(iter(lost))})
    elif off:
        by = off[max(off)]
        store = memory.stored[max(off)]
        elsewhere = {"written_by": store.name, "by": by}
        right = [p for p in range(found.first, found.last + 1) if p not in found.taken]
        place["store"] = store.name
        if lost or (right and max(right) < min(off) and memory.stored[min(off)].step != memory.stored[max(right)].step):
            yield edit("clobbered" if lost else "stale", "stored elsewhere", elsewhere)
        else:  # all rows are where none is read: either side may be wrong
            yield edit("wrong_input", "other slots", {"by": -by} if len(set(off.values())) == 1 else {})
            kind = "clobbered" if memory.lost else "stale"
            yield edit(kind, "stored elsewhere", elsewhere, seen=False)
    elif not memory.stored.keys() >= found.taken.keys():
        yield edit("stale", "not stored", {})
    else:
        yield edit("wrong_input", "other rows", {})


def _slots_off(case: Case, memory: _Slots, position: int, found: int) -> int:
    """By how many slots the place where a row lies is off the one that was read for it; 0: by none that is known."""
    stored = memory.address(position)
    read = memory.address(found) if found >= 0 else _unwritten(case)
    if stored is None or read is None or (stored - read) % memory.row_bytes:
        return 0
    off, count = (stored - read) // memory.row_bytes, len(memory.holds)
    return off - count * round(off / count) if 2 * abs(off) > count else off  # round a ring the shorter way


def _unwritten(case: Case) -> int | None:
    """The first address that the op read and nobody had written."""
    reads = case.op.reads if case.op is not None else ()
    return next((r.address for r in reads if r.state == READ_UNWRITTEN and r.address), None)


def _spans(places: Any) -> str:
    mask = np.zeros(max(places, default=-1) + 1, bool)
    mask[list(places)] = True
    return spans(runs(mask))
