"""The records of firstbad.h as they come over a file descriptor; the rules are in wire.md.

Leaves out what the records mean together (stream.py) and the engine's process (process.py).
"""

from __future__ import annotations

import math
import os
import select
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from firstbad.errors import CompareError

VERSION = 1
HELLO, STEP, OP, ATTR, READ, WRITE, END, REPLACED, TOKEN, TEXT, CLOSE, WEIGHT_CHANGED, AS_READ = range(1, 14)
DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64", "uint8", "bool")
_NUMPY = {"bfloat16": "uint16"}  # handed on as bits
_MAX_HEAD = 1 << 24
_MAX_RANK = 8
_CHUNK = 1 << 20
_FRAME = struct.Struct("<IIQ")
_NOTHING = np.empty(0, np.uint8)
_TICK = 0.2  # seconds between looks at whether the engine still lives


class SilentError(Exception):
    """Nothing came for as long as the caller allows."""


class _EndError(Exception):
    """The stream is over."""


@dataclass(frozen=True, slots=True)
class Record:
    type: int
    head: bytes
    data: np.ndarray  # uint8


@dataclass(frozen=True, slots=True)
class View:
    """A tensor's place in the engine's memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes; (): contiguous
    address: int
    extent: int

    def array(self, data: np.ndarray) -> np.ndarray:
        """The bytes of a record as the tensor that they are."""
        kind = np.dtype(_NUMPY.get(self.dtype, self.dtype))
        if data.nbytes != math.prod(self.shape) * kind.itemsize:
            raise CompareError(f"the engine sent {data.nbytes} bytes for a tensor {list(self.shape)} of {self.dtype}")
        return data.view(kind).reshape(self.shape)


class Head:
    """Takes the fields of a record's head one after the other."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._at = 0

    def take(self, form: str) -> tuple[int, ...]:
        layout = _layout(form)
        end = self._at + layout.size
        if end > len(self._head):
            raise CompareError("the engine sent a record that is cut short: is its firstbad.h of this version?")
        fields = layout.unpack_from(self._head, self._at)
        self._at = end
        return fields

    def number(self, form: str) -> int:
        return self.take(form)[0]

    def text(self) -> str:
        length = self.number("I")
        end = self._at + length
        if end > len(self._head):
            raise CompareError("the engine sent a text that is cut short: is its firstbad.h of this version?")
        text = self._head[self._at : end].decode("utf-8", "replace")
        self._at = end
        return text

    def view(self) -> View:
        dtype, rank, address, extent = self.take("BBQQ")
        if dtype >= len(DTYPES) or rank > _MAX_RANK:
            raise CompareError(f"the engine sent a tensor of type {dtype} and rank {rank}, which firstbad.h has not")
        shape, strides = self.take(f"{rank}q"), self.take(f"{rank}q")
        if any(size < 0 for size in shape):
            raise CompareError(f"the engine sent a tensor of shape {list(shape)}")
        item = np.dtype(_NUMPY.get(DTYPES[dtype], DTYPES[dtype])).itemsize
        return View(DTYPES[dtype], shape, () if _contiguous(shape, strides, item) else strides, address, extent)


@lru_cache(maxsize=256)
def _layout(form: str) -> struct.Struct:
    return struct.Struct("<" + form)


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    step = item
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def records(fd: int, timeout: float | None = None, alive: Callable[[], bool] = lambda: True) -> Iterator[Record]:
    """All whole records until the stream ends; SilentError after `timeout` seconds without a byte.

    `alive` is asked now and then: a stream whose engine is gone is over even if somebody else holds it open.
    """
    source = _Source(fd, timeout, alive)
    try:
        while True:
            kind, head_bytes, data_bytes = _FRAME.unpack(source.small(_FRAME.size))
            if head_bytes > _MAX_HEAD or data_bytes > 1 << 40:
                raise CompareError("what the engine sends is no stream of firstbad.h: does something else write there?")
            head = source.small(head_bytes)
            yield Record(kind, head, source.exactly(data_bytes) if data_bytes else _NOTHING)
    except _EndError:
        return


class _Source:
    """Reads exact numbers of bytes; small ones out of one chunk, large ones straight into their array."""

    def __init__(self, fd: int, timeout: float | None, alive: Callable[[], bool]) -> None:
        self._fd = fd
        self._timeout = timeout
        self._alive = alive
        self._chunk = bytearray(_CHUNK)
        self._from = self._to = 0
        os.set_blocking(fd, False)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def small(self, count: int) -> bytes:
        """What is not numbers: most records are a few bytes, and most lie in the chunk already."""
        at = self._from
        if count > self._to - at:
            return self.exactly(count).tobytes()
        self._from += count
        return bytes(memoryview(self._chunk)[at : self._from])

    def exactly(self, count: int) -> np.ndarray:
        try:
            out = np.empty(count, np.uint8)
        except MemoryError:
            raise CompareError(f"the engine announces a value of {count} bytes: too much for this machine") from None
        view = memoryview(out.data)
        have = min(count, self._to - self._from)
        view[:have] = memoryview(self._chunk)[self._from : self._from + have]
        self._from += have
        while have < count:
            if count - have >= _CHUNK:
                have += self._read(view[have:])
                continue
            self._from, self._to = 0, self._read(memoryview(self._chunk))
            part = min(count - have, self._to)
            view[have : have + part] = memoryview(self._chunk)[:part]
            self._from = part
            have += part
        return out

    def _read(self, into: memoryview) -> int:
        waited = 0.0
        while True:
            try:
                count = os.readv(self._fd, [into])
            except BlockingIOError:
                if self._timeout is not None and waited >= self._timeout:
                    raise SilentError from None
                tick = _TICK if self._timeout is None else max(min(_TICK, self._timeout - waited), 0.001)
                lives = self._alive()  # asked before the last look, so that nothing sent before the end is missed
                if not self._poll.poll(tick * 1000):
                    if not lives:
                        raise _EndError from None
                    waited += tick
                continue
            if not count:
                raise _EndError
            return count
