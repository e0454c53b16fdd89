"""Arrays written into a file from a thread of its own, so that whoever made them goes on meanwhile.

What is put is copied first: an engine may write over its buffer as soon as it has handed it out. The copies take BUDGET
bytes at most, then `put` waits. Leaves out where in the file: the writer says that.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

import numpy as np

PIECE = 2 << 20
"""Bytes of one buffer: it is still in the cache when it is written."""

BUDGET = 64 << 20


class Behind:
    """One thread that writes into the open file `fd`; `wait` returns when all of it is there."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._free: list[np.ndarray] = []
        self._made = 0
        self._pending = 0
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._queue: SimpleQueue[tuple[np.ndarray, int, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, array: np.ndarray, offset: int) -> None:
        """The bytes of a contiguous array, to be written from `offset` on; OSError of what was put before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="firstbad-writer", daemon=True)
            self._thread.start()
        data = array.reshape(-1).view(np.uint8)
        for at in range(0, data.size, PIECE):
            part = data[at : at + PIECE]
            buffer = self._buffer()
            np.copyto(buffer[: part.size], part)
            self._queue.put((buffer, part.size, offset + at))

    def wait(self) -> None:
        """Until everything that was put is in the file; OSError where it could not be written."""
        with self._changed:
            while self._pending:
                self._changed.wait()
            self._raise()

    def close(self) -> None:
        """Ends the thread; what was put is written, whatever comes of it."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _buffer(self) -> np.ndarray:
        """The buffer that was freed last, or a new one while the budget lasts; waits for one else."""
        with self._changed:
            self._raise()
            while not self._free and self._made * PIECE >= BUDGET:
                self._changed.wait()
            self._raise()
            self._pending += 1
            if self._free:
                return self._free.pop()
            self._made += 1
        return np.empty(PIECE, np.uint8)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            buffer, size, offset = item
            error = None
            try:
                done = 0
                while done < size and self._error is None:
                    done += os.pwrite(self._fd, buffer[done:size].data, offset + done)
            except OSError as failure:
                error = failure
            with self._changed:
                self._error = self._error or error
                self._free.append(buffer)
                self._pending -= 1
                self._changed.notify_all()
