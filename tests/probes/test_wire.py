"""The stream as it may arrive: cut anywhere, forged, silent; nothing but one clear line may come of it."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstbad.errors import CompareError
from firstbad.probes import process, stream, wire
from firstbad.toolchain import build
from firstbad.trace import TraceWriter, open_trace

from .test_header import HERE, INCLUDE, STRICT


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a real stream."""
    program = build([HERE / "header_cases.c"], flags=STRICT, program=True, include=[INCLUDE])
    path = tmp_path_factory.mktemp("sink") / "sink"
    subprocess.run([program, "plain"], env={"FIRSTBAD_SINK": str(path)}, check=True)
    return path.read_bytes()


def take(data: bytes, path: Path) -> stream.Recording:
    ours, theirs = os.pipe()

    def feed() -> None:
        with os.fdopen(theirs, "wb") as file:
            file.write(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with TraceWriter(path, role="candidate") as writer:
            recording = stream.Recording(writer)
            recording.take(wire.records(ours))
            recording.finish()
        return recording
    finally:
        while os.read(ours, 1 << 16):
            pass
        feeder.join()
        os.close(ours)


def framed(kind: int, head: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<IIQ", kind, len(head), len(data)) + head + data


HELLO = framed(wire.HELLO, struct.pack("<II", 1, 99))


def test_a_stream_cut_at_any_byte_keeps_what_is_whole(recorded: bytes, tmp_path: Path) -> None:
    whole = take(recorded, tmp_path / "whole.h5")
    assert whole.closed
    seen = 0
    for cut in range(0, len(recorded), 7):
        recording = take(recorded[:cut], tmp_path / "cut.h5")
        assert not recording.closed
        with open_trace(tmp_path / "cut.h5") as trace:
            assert len(trace.graph.values) >= seen
            seen = len(trace.graph.values)
    assert seen == 7


def test_unknown_records_are_skipped(recorded: bytes, tmp_path: Path) -> None:
    length = len(HELLO)
    more = recorded[:length] + framed(77, b"news", b"of later versions") + recorded[length:]
    assert take(more, tmp_path / "t.h5").tokens == [7, -1]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"Hello, world! This is a log line of some program", "no stream of firstbad.h"),
        (framed(wire.STEP, struct.pack("<I", 1) + b"x"), "no stream of firstbad.h"),
        (framed(wire.HELLO, struct.pack("<II", 9, 1)), "speaks version 9"),
        (HELLO + struct.pack("<IIQ", wire.STEP, 1 << 31, 0), "no stream of firstbad.h"),
        (HELLO + struct.pack("<IIQ", wire.WRITE, 4, 1 << 60), "no stream of firstbad.h"),
        (HELLO + framed(wire.STEP, struct.pack("<I", 500) + b"short"), "cut short"),
        (HELLO + framed(wire.OP, b"abc"), "cut short"),
        (HELLO + framed(wire.END, struct.pack("<QQQ", 5, 1, 2)), "outside an op"),
        (
            HELLO
            + framed(
                wire.WRITE,
                struct.pack("<QQBBBQ", 0, 1, 1, 1, 0, 5)
                + struct.pack("<BBQQqq", 0, 1, 64, 400, 100, 4)
                + struct.pack("<I", 1)
                + b"x",
                b"12345678",
            ),
            "sent 8 bytes for a tensor",
        ),
        (
            HELLO + framed(wire.WRITE, struct.pack("<QQBBBQ", 0, 1, 1, 0, 0, 5) + struct.pack("<BBQQ", 99, 1, 0, 0)),
            "of type 99",
        ),
    ],
)
def test_a_forged_stream_is_one_clear_line(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(CompareError, match=says) as caught:
        take(data, tmp_path / "t.h5")
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_spoilt_byte_is_never_a_traceback(recorded: bytes, data: st.DataObject, tmp_path: Path) -> None:
    at = data.draw(st.integers(0, len(recorded) - 1))
    spoilt = bytearray(recorded)
    spoilt[at] = data.draw(st.integers(0, 255))
    try:
        take(bytes(spoilt), tmp_path / "t.h5")
    except CompareError as error:
        assert "\n" not in str(error)


def record(tmp_path: Path, *command: str, **more: float) -> process.Ended:
    with TraceWriter(tmp_path / "t.h5", role="candidate") as writer:
        return process.record(command, writer, tmp_path, **more)  # type: ignore[arg-type]  # a timeout


def test_a_program_that_records_nothing_is_told(tmp_path: Path) -> None:
    assert record(tmp_path, "true").death == "left without closing its stream before its first op"
    death = record(tmp_path, "sh", "-c", "echo no such model >&2; exit 7").death
    assert death == "exit status 7 before its first op: no such model"
    with pytest.raises(CompareError, match="cannot run `no-such-program`: no such file or directory"):
        record(tmp_path, "no-such-program")


def test_a_stream_that_somebody_else_holds_open_ends_with_the_engine(tmp_path: Path) -> None:
    started = time.monotonic()
    ended = record(tmp_path, "sh", "-c", "sleep 20 & exit 0")
    assert time.monotonic() - started < 5
    assert ended.death.startswith("left without closing")


def test_silence_has_a_limit(tmp_path: Path) -> None:
    started = time.monotonic()
    assert record(tmp_path, "sleep", "20", timeout=0.5).death == "silent for 0.5 s before its first op: it was killed"
    assert time.monotonic() - started < 5
