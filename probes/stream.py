"""From the records of an engine to its trace, as they come.

An op is written to the trace when it ends, with its reads and its values; so a trace holds whole ops only, and the
one in which an engine died is known by name. Leaves out bytes (wire.py) and processes (process.py).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from firstbad.errors import CompareError
from firstbad.graph import READ_CHANGED, READ_OK, READ_UNCHECKED, READ_UNWRITTEN, Op, Read, Value
from firstbad.trace import TraceWriter

from . import wire

Replace = Callable[[str, str, np.ndarray], np.ndarray | None]
"""(step, name, what the engine wrote) → what to put in its place, or None to keep it."""

_KINDS: tuple[Literal["value", "input", "weight"], ...] = ("value", "input", "weight")
_STATES = (READ_OK, READ_CHANGED, READ_UNWRITTEN, READ_UNCHECKED)


@dataclass
class _Piece:
    value: int  # of the wire
    state: int
    address: int
    extent: int
    overwritten_by: tuple[int, ...]


@dataclass
class _Reading:
    slot: str
    view: wire.View
    pieces: list[_Piece]
    data: np.ndarray  # of the whole view, where a piece is unwritten
    changed: dict[int, np.ndarray] = field(default_factory=dict)  # piece → what stands there


@dataclass
class _Writing:
    id: int  # of the wire
    name: str
    step: str
    kind: Literal["value", "input", "weight"]
    view: wire.View
    hash: int
    data: np.ndarray | None


@dataclass
class Begun:
    """An op that has begun and not ended."""

    number: int  # 1 is the first of the run
    step: str
    name: str
    kind: str
    file: str
    line: int
    attrs: dict[str, float] = field(default_factory=dict)
    reads: list[_Reading] = field(default_factory=list)
    writes: list[_Writing] = field(default_factory=list)

    def describe(self) -> str:
        """For people: op 57 `model.encoder.conv1` of encode (probes/engine/matmul.c:190)."""
        return f"op {self.number} `{self.name or self.kind}` of {self.step} ({self.file}:{self.line})"


class Recording:
    """What one engine has sent so far, on its way into a trace."""

    def __init__(
        self, writer: TraceWriter, *, source: Path | None = None, reply: int = -1, replace: Replace | None = None
    ) -> None:
        """`source`: files in this folder are named from it on; `reply`: descriptor for the answers of `replace`."""
        self.tokens: list[int] = []
        self.texts: dict[str, str] = {}
        self.weights_changed: list[str] = []
        self.closed = False  # the engine came to its end
        self.stopped = False  # because it was asked to
        self.open: dict[int, Begun] = {}
        self.last: Begun | None = None  # op that ended last
        self._writer = writer
        self._source = source
        self._reply = reply
        self._replace = replace
        self._step = ""
        self._greeted = False
        self._ids: dict[int, int] = {}  # value of the wire → of the trace
        self._names: dict[int, str] = {}
        self._files: dict[str, str] = {}  # as the engine says it → as we do
        self._replaced: set[int] = set()
        self._views: dict[int, wire.View] = {}
        self._values = 0
        self._ops = 0
        self._takes: Mapping[int, Callable[[wire.Head, np.ndarray], None]] = {
            wire.HELLO: self._hello,
            wire.STEP: self._begin_step,
            wire.OP: self._begin_op,
            wire.ATTR: self._attr,
            wire.READ: self._read,
            wire.AS_READ: self._as_read,
            wire.WRITE: self._write,
            wire.END: self._end,
            wire.REPLACED: self._was_replaced,
            wire.TOKEN: self._token,
            wire.TEXT: self._text,
            wire.CLOSE: self._close,
            wire.WEIGHT_CHANGED: self._weight_changed,
        }

    def take(self, records: Iterable[wire.Record]) -> None:
        """Everything that comes, to the end of the stream."""
        for record in records:
            if record.type != wire.HELLO and not self._greeted:
                raise CompareError("what the engine sends is no stream of firstbad.h: does something else write there?")
            handler = self._takes.get(record.type)
            if handler is not None:
                handler(wire.Head(record.head), record.data)

    def finish(self) -> None:
        """The stream is over: values of an op that never ended are kept, marked as such."""
        for begun in [b for b in self.open.values() if b.writes]:
            begun.attrs["unfinished"] = 1
            self._store(begun, 0, 0)

    def outputs(self) -> dict[str, Any]:
        """What the engine answered, for the trace."""
        outputs: dict[str, Any] = {"tokens": list(self.tokens), **self.texts}
        if self.weights_changed:
            outputs["weights_changed"] = list(self.weights_changed)
        return outputs

    def where(self) -> str:
        """The last place known, for people."""
        begun = [b for b in self.open.values() if not b.attrs.get("unfinished")] or list(self.open.values())
        if begun:
            return "in " + begun[-1].describe()
        return "after " + self.last.describe() if self.last else "before its first op"

    def _hello(self, head: wire.Head, _data: np.ndarray) -> None:
        version = head.number("I")
        if version != wire.VERSION:
            raise CompareError(
                f"the engine's firstbad.h speaks version {version}, this firstbad version {wire.VERSION}: build the "
                'engine with the header in "$(firstbad include)"'
            )
        self._greeted = True

    def _begin_step(self, head: wire.Head, _data: np.ndarray) -> None:
        self._step = head.text()

    def _begin_op(self, head: wire.Head, _data: np.ndarray) -> None:
        number, line = head.take("QI")
        kind, name, file = head.text(), head.text(), head.text()
        if file not in self._files:
            self._files[file] = self._place(file)
        self.open[number] = Begun(number, self._step, name, kind, self._files[file], line)

    def _place(self, file: str) -> str:
        if self._source is not None and Path(file).is_relative_to(self._source):
            return str(Path(file).relative_to(self._source))
        return file

    def _begun(self, number: int) -> Begun:
        if number not in self.open:
            raise CompareError(f"the engine recorded something outside an op (op {number}): begin with FB_OP")
        return self.open[number]

    def _attr(self, head: wire.Head, _data: np.ndarray) -> None:
        number, value = head.take("Qd")
        self._begun(number).attrs[head.text()] = value

    def _read(self, head: wire.Head, data: np.ndarray) -> None:
        begun = self._begun(head.number("Q"))
        slot, _meant, view = head.text(), head.text(), head.view()
        pieces = []
        for _ in range(head.number("I")):
            value, state, address, extent, count = head.take("QBQQI")
            pieces.append(_Piece(value, min(state, len(_STATES) - 1), address, extent, head.take(f"{count}Q")))
        begun.reads.append(_Reading(slot, view, pieces, data))

    def _as_read(self, head: wire.Head, data: np.ndarray) -> None:
        begun = self._begun(head.number("Q"))
        piece = head.number("I")
        if begun.reads:
            begun.reads[-1].changed[piece] = data

    def _write(self, head: wire.Head, data: np.ndarray) -> None:
        number, wire_id, kind, sent, asked, content_hash = head.take("QQBBBQ")
        view = head.view()
        writing = _Writing(
            wire_id, head.text(), self._step, _KINDS[min(kind, 2)], view, content_hash, data if sent else None
        )
        self._names[wire_id] = writing.name
        self._views[wire_id] = view
        if asked:
            self._answer(writing, data if sent else None)
        if number:
            self._begun(number).writes.append(writing)
        else:
            self._value(writing, -1)

    def _answer(self, writing: _Writing, data: np.ndarray | None) -> None:
        if self._reply < 0:
            raise CompareError(
                f"the engine asks what to put in the place of `{writing.name}`: nothing was to be replaced"
            )
        array = None
        if self._replace is not None and data is not None:
            array = self._replace(writing.step, writing.name, writing.view.array(data))
        payload = b"" if array is None else np.ascontiguousarray(array).tobytes()
        answer = memoryview(struct.pack("<QQ", writing.id, len(payload)) + payload)
        with contextlib.suppress(BrokenPipeError):  # it has died meanwhile: its stream will say so
            while answer:
                answer = answer[os.write(self._reply, answer) :]

    def _was_replaced(self, head: wire.Head, _data: np.ndarray) -> None:
        self._replaced.add(head.number("Q"))

    def _end(self, head: wire.Head, _data: np.ndarray) -> None:
        number, start, end = head.take("QQQ")
        begun = self._begun(number)
        self._store(begun, start, end)
        del self.open[number]
        self.last = begun

    def _store(self, begun: Begun, start: int, end: int) -> None:
        if not begun.name and begun.writes:
            begun.name = begun.writes[0].name
        reads = tuple(read for reading in begun.reads for read in self._reads(reading))
        writes = tuple(self._value(writing, self._ops) for writing in begun.writes)
        attrs: dict[str, Any] = dict(begun.attrs)
        replaced = [w.name for w in begun.writes if w.id in self._replaced]
        if replaced:
            attrs["replaced"] = replaced
        self._writer.op(
            Op(
                self._ops,
                begun.step,
                begun.name or begun.kind,
                begun.kind,
                reads,
                writes,
                attrs,
                begun.file,
                begun.line,
                start,
                end,
            )
        )
        self._ops += 1

    def _reads(self, reading: _Reading) -> Iterable[Read]:
        for i, piece in enumerate(reading.pieces):
            state = _STATES[piece.state]
            dataset = ""
            if state == READ_CHANGED and i in reading.changed and piece.value in self._views:
                view = self._views[piece.value]
                dataset = self._writer.as_read(
                    self._ops, reading.slot, view.array(reading.changed[i]), dtype=view.dtype
                )
            elif state == READ_UNWRITTEN and reading.data.size:
                array = reading.view.array(reading.data)
                dataset = self._writer.as_read(self._ops, reading.slot, array, dtype=reading.view.dtype)
            over = tuple(self._ids[v] for v in piece.overwritten_by if v in self._ids)
            value = self._ids.get(piece.value, -1)
            yield Read(value, reading.slot, state, dataset, piece.address, piece.extent, over)

    def _value(self, writing: _Writing, op: int) -> int:
        view = writing.view
        weight = writing.kind == "weight"
        array = None if writing.data is None else view.array(writing.data)
        value = Value(
            self._values,
            "weights" if weight else writing.step,
            writing.name,
            writing.kind,
            view.shape,
            view.dtype,
            op,
            reason="" if array is not None else "a weight: its hash is recorded" if weight else "not asked for",
            hash=writing.hash,
            address=view.address,
            extent=view.extent,
            strides=view.strides,
        )
        self._writer.value(value, array)
        self._ids[writing.id] = self._values
        self._values += 1
        return self._values - 1

    def _token(self, head: wire.Head, _data: np.ndarray) -> None:
        self.tokens.append(head.number("q"))

    def _text(self, head: wire.Head, _data: np.ndarray) -> None:
        key = head.text()
        self.texts[key] = head.text()

    def _close(self, head: wire.Head, _data: np.ndarray) -> None:
        self.closed = True
        self.stopped = bool(head.number("B"))

    def _weight_changed(self, head: wire.Head, _data: np.ndarray) -> None:
        self.weights_changed.append(self._names.get(head.number("Q"), "?"))
