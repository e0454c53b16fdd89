"""Arrays that a thread writes: the bytes at their places, copies of what was handed over, errors that are told."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from firstbad import behind, writer
from firstbad.behind import Behind
from firstbad.errors import CompareError
from firstbad.graph import Value
from firstbad.trace import TraceWriter, open_trace


def test_bytes_at_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "PIECE", 1000)
    monkeypatch.setattr(behind, "BUDGET", 3000)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (250, 251, 1, 10_000, 777)]
    with (tmp_path / "x").open("wb") as file:
        thread = Behind(file.fileno())
        at = 64
        for array in arrays:
            given = array.copy()
            thread.put(given, at)
            given[:] = -1  # the engine goes on
            at += array.nbytes
        thread.wait()
        assert len(thread._free) == thread._made <= 3
        thread.close()
        thread.close()
    assert (tmp_path / "x").read_bytes()[64:] == b"".join(a.tobytes() for a in arrays)


def test_an_error_is_told_and_ends_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (tmp_path / "x").open("wb") as file:
        thread = Behind(file.fileno())
        monkeypatch.setattr(behind.os, "pwrite", full)
        thread.put(np.zeros(10), 0)
        with pytest.raises(OSError, match="No space"):
            thread.wait()
        with pytest.raises(OSError, match="No space"):
            thread.put(np.zeros(10), 0)
        thread.close()


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(behind.os, "pwrite", lambda fd, data, offset: real(fd, data[:7], offset))
    data = np.arange(100, dtype=np.uint8)
    with (tmp_path / "x").open("wb") as file:
        thread = Behind(file.fileno())
        thread.put(data, 3)
        thread.wait()
        thread.close()
    assert (tmp_path / "x").read_bytes()[3:] == data.tobytes()


def test_a_trace_of_arrays_that_change_after_they_were_given(tmp_path: Path) -> None:
    before = threading.active_count()
    buffer = np.empty((300, 400), np.float32)
    assert buffer.nbytes >= writer._BEHIND
    with TraceWriter(tmp_path / "x.h5", "candidate", "c") as trace:
        for i in range(40):
            buffer[:] = i
            trace.value(Value(i, "encode", f"v.{i}", "value", buffer.shape, "float32"), buffer.T.T if i % 2 else buffer)
    assert threading.active_count() == before
    with open_trace(tmp_path / "x.h5") as read:
        assert [float(read.array(v).min()) for v in read.graph.values] == list(range(40))
        assert [float(read.array(v).max()) for v in read.graph.values] == list(range(40))


def test_what_is_flushed_is_in_the_file(tmp_path: Path) -> None:
    """A kill after a flush loses nothing of it, whichever thread was to write."""
    array = np.arange(1 << 20, dtype=np.float32)
    trace = TraceWriter(tmp_path / "x.h5", "candidate", "c")
    trace.value(Value(0, "encode", "v", "value", array.shape, "float32"), array)
    trace.flush()
    shutil.copyfile(tmp_path / "x.h5", tmp_path / "then.h5")
    with open_trace(tmp_path / "then.h5") as read:
        np.testing.assert_array_equal(read.array(read.graph.values[0]), array)
    trace.close(complete=True)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trace = TraceWriter(tmp_path / "x.h5", "candidate", "c")
    monkeypatch.setattr(behind.os, "pwrite", full)
    array = np.zeros(1 << 20, np.float32)
    with pytest.raises(CompareError, match=r"cannot write the trace .*is the disk full"):
        for i in range(100):
            trace.value(Value(i, "encode", f"v.{i}", "value", array.shape, "float32"), array)
    monkeypatch.undo()
    trace._file.close()
    trace._behind.close()
