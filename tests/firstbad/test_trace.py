"""The trace file: what goes in comes out, from a whole run and from a killed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firstbad import tables
from firstbad.errors import CompareError, UsageError
from firstbad.graph import Op, Read
from firstbad.schema import validate
from firstbad.trace import Trace, TraceWriter, mark_default, open_trace
from tests.firstbad.traces import edit, one_line, set_cell, small, value


def test_round_trip(tmp_path: Path) -> None:
    trace = open_trace(small(tmp_path / "t.h5"))
    assert (trace.role, trace.engine, trace.complete, trace.death) == ("candidate", "c", True, "")
    assert trace.meta == {"model": "toy", "inputs": {"seed": 3}}
    assert trace.outputs == {"tokens": [1, 2, 3], "text": "où"}
    x, fc, copy = trace.graph.values
    assert (x.kind, x.dataset) == ("input", "/values/encode/x")
    assert (fc.hash, fc.address, fc.extent, fc.strides) == (2**64 - 1, 2**63, 24, (12, 4))
    assert fc.dataset == "/values/encode/m/fc"
    assert copy.reason == "the same bytes as value 1"
    assert trace.graph.ops[0] == Op(0, "encode", "fc", "linear", (Read(0, "x"),), (1,), {"eps": 1e-5}, "k.c", 7, 1, 2)
    assert trace.graph.ops[1].reads == (Read(1, "x", "changed", overwritten_by=(0, 1)), Read(-1))
    np.testing.assert_array_equal(trace.array(fc), [[0, 2, 4], [6, 8, 10]])
    np.testing.assert_array_equal(trace.array(copy), [[0, 2], [4, 6], [8, 10]])
    np.testing.assert_array_equal(trace.array(fc.dataset), trace.array(fc))
    np.testing.assert_array_equal(trace.as_read(trace.graph.ops[0].reads[0]), trace.array(x))
    assert trace.stored(copy)
    assert validate(tmp_path / "t.h5") == []


def test_arrays_are_mapped_and_read_only(tmp_path: Path) -> None:
    trace = open_trace(small(tmp_path / "t.h5"))
    array = trace.array(trace.graph.values[1])
    assert not array.flags.owndata and not array.flags.writeable and array.flags.aligned
    trace.close()
    assert array[1, 2] == 10
    assert trace.array(trace.graph.values[1])[1, 2] == 10  # opened again by itself


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    array=hnp.arrays(
        st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", "?", "c8", ">f4", ">i2"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_any_array(tmp_path: Path, array: np.ndarray) -> None:
    path = tmp_path / "any.h5"
    with TraceWriter(path) as writer:
        writer.value(value(0, "first", np.zeros(1, np.uint8)), np.zeros(1, np.uint8))
        writer.value(value(1, "x", array), array)
    with open_trace(path) as trace:
        back = trace.array(trace.graph.values[1])
    expected = array.astype(np.float32) if array.dtype == np.float16 else array
    assert back.dtype == expected.dtype.newbyteorder("=")
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, expected)


def test_nan_payloads_survive(tmp_path: Path) -> None:
    bits = np.array([0x7FC01234, 0xFFC00001, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001], np.uint32)
    with TraceWriter(tmp_path / "t.h5") as writer:
        writer.value(value(0, "x", bits.view(np.float32)), bits.view(np.float32))
    trace = open_trace(tmp_path / "t.h5")
    np.testing.assert_array_equal(trace.array(trace.graph.values[0]).view(np.uint32), bits)


def test_half_floats_are_widened_exactly(tmp_path: Path) -> None:
    # bfloat16 is the upper half of a float32: 1.0 = 3f80, -2.5 = c020, inf = 7f80, smallest subnormal = 0001
    bits = np.array([0x3F80, 0xC020, 0x7F80, 0x0001, 0x8000], np.uint16)
    half = np.array([1, -2.5, np.inf, 2.0**-24, -0.0], np.float16)
    with TraceWriter(tmp_path / "t.h5") as writer:
        v = replace(value(0, "b", bits), dtype="bfloat16")
        assert writer.value(v, bits).dtype == "bfloat16"
        writer.value(replace(value(1, "h", half)), half)
        writer.value(replace(value(2, "hbits", half), dtype="float16"), half.view(np.uint16))
        writer.value(replace(value(3, "wide", half), dtype="bfloat16"), half.astype(np.float32))
        writer.value(value(4, "plain", np.ones(1, np.float32)), np.ones(1, np.float32))
    trace = open_trace(tmp_path / "t.h5")
    arrays = [trace.array(v) for v in trace.graph.values]
    assert all(a.dtype == np.float32 for a in arrays)
    np.testing.assert_array_equal(arrays[0], np.array([1, -2.5, np.inf, 2.0**-133, 0], np.float32))
    assert np.signbit(arrays[0][4])
    for i in (1, 2, 3):
        np.testing.assert_array_equal(arrays[i], [1, -2.5, np.inf, 2.0**-24, 0])
    with h5py.File(tmp_path / "t.h5") as file:
        found = [file[v.dataset].attrs.get("dtype") for v in trace.graph.values]
    assert found == ["bfloat16", "float16", "float16", "bfloat16", None]
    assert validate(tmp_path / "t.h5") == []


def test_a_view_that_changes_later_is_stored_as_it_was(tmp_path: Path) -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    with TraceWriter(tmp_path / "t.h5") as writer:
        writer.value(value(0, "t", base.T), base.T)
        writer.value(value(1, "s", base[::2, 1:3]), base[::2, 1:3])
        writer.value(value(2, "broadcast", np.broadcast_to(base[0], (2, 4))), np.broadcast_to(base[0], (2, 4)))
        base += 100
        writer.value(value(3, "t", base.T, "again"), base.T)
    trace = open_trace(tmp_path / "t.h5")
    first, strided, broadcast, second = (trace.array(v) for v in trace.graph.values)
    np.testing.assert_array_equal(first, np.arange(12).reshape(3, 4).T)
    np.testing.assert_array_equal(strided, [[1, 2], [9, 10]])
    np.testing.assert_array_equal(broadcast, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(second, first + 100)


def test_names_that_collide(tmp_path: Path) -> None:
    names = ["a", "a", "a.b", "a.b", "c.d", "c", "a_1", "/x/y//z", "..", "", "ü:int64", "nul\0", "\udc80"]
    one = np.zeros(1, np.float32)
    with TraceWriter(tmp_path / "t.h5") as writer:
        for i, name in enumerate(names):
            writer.value(value(i, name, one + i, step="decode.0" if i < 12 else "a/b"), one + i)
    trace = open_trace(tmp_path / "t.h5")
    paths = [v.dataset for v in trace.graph.values]
    assert len(set(paths)) == len(names)
    assert paths[:3] == ["/values/decode.0/a", "/values/decode.0/a_1", "/values/decode.0/a_2/b"]
    assert paths[7] == "/values/decode.0/x/y/z"
    assert [trace.array(v)[0] for v in trace.graph.values] == list(range(len(names)))
    assert validate(tmp_path / "t.h5") == []


def test_same_paths_in_both_files_so_that_h5diff_is_a_second_opinion(tmp_path: Path) -> None:
    a, b = small(tmp_path / "a.h5"), small(tmp_path / "b.h5")
    with edit(b) as file:
        file["values/encode/m/fc"][1, 1] += 0.5
    same = subprocess.run(["h5diff", a, b, "/values/encode/x"], capture_output=True, text=True, check=False)
    diff = subprocess.run(["h5diff", a, b, "/values"], capture_output=True, text=True, check=False)
    dump = subprocess.run(["h5dump", a], capture_output=True, text=True, check=False)
    assert same.returncode == 0
    assert diff.returncode == 1 and "1 differences" in diff.stdout
    assert dump.returncode == 0 and "m.fc" in dump.stdout


def test_viewers_see_the_order_of_execution(tmp_path: Path) -> None:
    one = np.zeros(1, np.float32)
    with TraceWriter(tmp_path / "t.h5") as writer:
        for i in range(12):
            writer.value(value(i, f"layers.{i}.x", one), one)
    with h5py.File(tmp_path / "t.h5") as file:
        assert list(file["values/encode/layers"]) == [str(i) for i in range(12)]


def test_as_read(tmp_path: Path) -> None:
    seen = np.array([1, 9], np.float32)
    bits = np.array([0x3F80], np.uint16)
    with TraceWriter(tmp_path / "t.h5") as writer:
        writer.value(value(0, "x", seen), seen - 1)
        first, second = writer.as_read(0, "k", seen), writer.as_read(0, "k", seen + 1)
        third = writer.as_read(0, "", bits, "bfloat16")
        reads = (Read(0, "k", "changed", first), Read(0, "k", "changed", second), Read(0, "", dataset=third), Read(-1))
        writer.op(Op(0, "encode", "op", "matmul", reads, ()))
    trace = open_trace(tmp_path / "t.h5")
    assert (first, second, third) == ("/as_read/0/k", "/as_read/0/k_1", "/as_read/0/x")
    assert [list(trace.as_read(r)) for r in trace.graph.ops[0].reads[:3]] == [[1, 9], [2, 10], [1]]
    with pytest.raises(CompareError, match="no known value"):
        trace.as_read(Read(-1, "k"))


def test_not_stored_says_why(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.h5") as writer:
        a = writer.value(value(0, "a"), None)
        b = writer.value(value(1, "b", kind="view"), None)
        c = writer.value(value(2, "c", reason="fused into matmul"), None)
    assert [v.reason for v in (a, b, c)] == ["not captured", "a view of another value", "fused into matmul"]
    trace = open_trace(tmp_path / "t.h5")
    assert not any(trace.stored(v) for v in trace.graph.values)
    with pytest.raises(CompareError, match="fused into matmul"):
        trace.array(trace.graph.values[2])


def test_the_writer_refuses_what_contradicts_itself(tmp_path: Path) -> None:
    x = np.zeros(3, np.float32)
    with TraceWriter(tmp_path / "t.h5") as writer:
        with pytest.raises(CompareError, match="next one of this trace is 0"):
            writer.value(value(1, "x", x), x)
        with pytest.raises(CompareError, match=r"recorded as \[3\], its array is \[3, 1\]"):
            writer.value(value(0, "x", x), x[:, None])
        with pytest.raises(CompareError, match="next one of this trace is 0"):
            writer.op(Op(5, "encode", "op", "add"))
        with pytest.raises(CompareError, match="no place in a trace"):
            writer.value(value(0, "x", x), np.array(["a", "b", "c"]))


def test_a_number_that_no_column_holds_is_one_line_and_the_rest_is_kept(tmp_path: Path) -> None:
    path, x = tmp_path / "t.h5", np.zeros(2, np.float32)
    with TraceWriter(path) as writer:
        writer.value(value(0, "x", x), x)
        with pytest.raises(CompareError, match="`end_ns` of a row of ops"):
            writer.op(Op(0, "encode", "fc", "linear", (), (0,), start_ns=1, end_ns=2**63))
        with pytest.raises(CompareError, match="`hash` of a row of values"):
            writer.value(value(1, "y", x, hash=-1), x)
    with open_trace(path) as trace:
        assert [v.name for v in trace.graph.values] == ["x"]


def test_a_trace_takes_the_place_of_a_trace_only(tmp_path: Path) -> None:
    small(small(tmp_path / "t.h5"))
    (tmp_path / "t.h5").write_bytes(b"")
    small(tmp_path / "t.h5")
    recording = tmp_path / "clip.wav"
    recording.write_bytes(b"RIFF....WAVE")
    for path, message in (
        (recording, "is there and is no trace"),
        (tmp_path, "is a folder or a device"),
        (Path(os.devnull), "is a folder or a device"),
    ):
        with pytest.raises(UsageError, match=message):
            TraceWriter(path)
    assert recording.read_bytes() == b"RIFF....WAVE"
    assert Path(os.devnull).is_char_device()
    with pytest.raises(CompareError, match="cannot write the trace"):
        TraceWriter(recording / "t.h5")


def test_an_exception_is_the_death_of_the_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), TraceWriter(tmp_path / "t.h5") as writer:
        writer.value(value(0, "x", np.ones(1)), np.ones(1))
        raise ZeroDivisionError("in op 3\nmore")
    trace = open_trace(tmp_path / "t.h5")
    assert (trace.complete, trace.death) == (False, "ZeroDivisionError: in op 3")
    assert trace.array(trace.graph.values[0]) == 1
    assert validate(tmp_path / "t.h5") == []


def test_attrs_of_any_kind_become_json(tmp_path: Path) -> None:
    attrs = {
        "args": [{"v": 0}, {"f": "-inf"}, np.float32(0.5), np.arange(2)],
        "kwargs": {"p": Path("x")},
        "t": (1, None),
    }
    with TraceWriter(tmp_path / "t.h5") as writer:
        writer.op(Op(0, "encode", "op", "aten.add.Tensor", (), (), attrs))
    (op,) = open_trace(tmp_path / "t.h5").graph.ops
    assert op.attrs == {"args": [{"v": 0}, {"f": "-inf"}, 0.5, [0, 1]], "kwargs": {"p": "x"}, "t": [1, None]}


def test_mark_default_leads_viewers_to_the_value(tmp_path: Path) -> None:
    path = small(tmp_path / "t.h5")
    assert mark_default(path, "encode", "m.fc")
    assert mark_default(path, "encode", "m.copy", np.ones((3, 2), np.float32))
    with h5py.File(path) as file:
        group = file[file.attrs["default"]]
        assert group.attrs["NX_class"] == "NXdata"
        assert group[group.attrs["signal"]][0, 0] == 1
        np.testing.assert_array_equal(group["value"], file["values/encode/m/fc"])
    assert validate(path) == []
    assert not mark_default(path, "encode", "nothing")
    with open_trace(path) as trace:
        trace.array(trace.graph.values[0])
        assert trace.hdf5
        with pytest.raises(CompareError, match="close the trace first"):
            mark_default(path, "encode", "m.fc")


KILLED = """
import sys, numpy as np
from firstbad import writer
from firstbad.graph import Op, Read, Value
flush = writer.TraceWriter.flush
def telling(self):
    flush(self)
    print(self._values, flush=True)
writer.TraceWriter.flush = telling
writer.FLUSH_SECONDS = float(sys.argv[2])
out = writer.TraceWriter(sys.argv[1], "candidate", "c")
rng = np.random.default_rng(0)
for i in range(10**9):
    n = 400_000 if i % 50 == 49 else 1 + i % 400
    v = Value(i, f"decode.{i // 100}", f"m.layers.{i % 100}.x", "value", (n,), "float32", op=i)
    out.value(v, np.full(n, i, np.float32))
    out.op(Op(i, v.step, v.name, "linear", (Read(i - 1, "x"),), (i,)))
"""


@pytest.mark.parametrize("flush", [0.0, 0.05])  # 0: in a flush nearly all the time
@pytest.mark.parametrize("wait", [0.0, 0.013, 0.11, 0.34])
def test_a_killed_run_keeps_all_up_to_the_last_flush(tmp_path: Path, wait: float, flush: float) -> None:
    path = tmp_path / "t.h5"
    run = subprocess.Popen([sys.executable, "-c", KILLED, path, str(flush)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    first = run.stdout.readline()
    time.sleep(wait)
    os.kill(run.pid, signal.SIGKILL)
    flushed = int((first + run.stdout.read()).split()[-1])
    run.stdout.close()
    run.wait()
    trace = open_trace(path)
    assert not trace.complete
    assert len(trace.graph.values) >= flushed
    for v in trace.graph.values:
        assert trace.stored(v)
        np.testing.assert_array_equal(trace.array(v), np.full(v.shape, v.id, np.float32))
    assert all(read.value < len(trace.graph.values) for op in trace.graph.ops for read in op.reads)
    assert validate(path) == []


def test_unknown_columns_are_ignored_and_known_ones_have_defaults(tmp_path: Path) -> None:
    path = small(tmp_path / "t.h5")
    text = h5py.string_dtype()
    with edit(path) as file:
        old = file["graph/values"][:]
        del file["graph/values"]
        columns = [(c, text if tables.VALUES[c] == "s" else "<i8") for c in tables.REQUIRED["values"]]
        rows = [(*(row[c] for c in tables.REQUIRED["values"]), 1.5) for row in old]
        data = np.array(rows, [*columns, ("mood", "<f8")])
        file.create_dataset("graph/values", data=data, maxshape=(None,))
    trace = open_trace(path)
    v = trace.graph.values[1]
    assert (v.op, v.same_as, v.hash, v.strides, v.reason) == (-1, -1, 0, (), "")
    assert trace.array(v)[1, 2] == 10


def test_a_repacked_compressed_copy_reads_the_same(tmp_path: Path) -> None:
    path = small(tmp_path / "t.h5")
    with edit(path) as file:
        data = file["values/encode/m/fc"][:]
        del file["values/encode/m/fc"]
        file.create_dataset("values/encode/m/fc", data=data, chunks=(1, 3), compression="gzip")
    trace = open_trace(path)
    np.testing.assert_array_equal(trace.array(trace.graph.values[1]), data)


def test_a_trace_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from firstbad.trace import open_trace
t = open_trace({str(path)!r})
print(len(t.graph.values), t.array(t.graph.values[-1])[0], t.complete)
"""
    with TraceWriter(path) as writer:
        for i in range(3):
            writer.value(value(i, "x", np.full(3, i, np.float32)), np.full(3, i, np.float32))
        writer.flush()
        seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        writer.value(value(3, "x", np.full(3, 3, np.float32)), np.full(3, 3, np.float32))
    assert seen.stdout.split() == ["3", "2.0", "False"]
    assert open_trace(path).array("/values/encode/x_3")[0] == 3


def test_a_file_larger_than_memory_is_not_read_whole(tmp_path: Path) -> None:
    """1 GB of holes in a sparse file: opened, looked at in the middle, in little memory."""
    path = tmp_path / "t.h5"
    with h5py.File(small(path), "r+") as file:
        big = file.create_dataset("values/encode/big", (2**28,), "f4")
        plist = big.id.get_create_plist()
        assert plist.get_layout() == h5py.h5d.CONTIGUOUS
        big[2**27] = 5
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc: getrusage would count the memory of the process that started this one")
    script = f"""
import re
from pathlib import Path
from firstbad.trace import open_trace
t = open_trace({str(path)!r})
a = t.array("/values/encode/big")
print(a.size, a[2**27], re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""
    seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert seen[:2] == [str(2**28), "5.0"]
    assert int(seen[2]) < 300_000  # kB


def test_threads_may_read_together(tmp_path: Path) -> None:
    one = np.zeros(50, np.float32)
    with TraceWriter(tmp_path / "t.h5") as writer:
        for i in range(200):
            writer.value(value(i, f"x{i}", one), one + i)
    trace = open_trace(tmp_path / "t.h5")
    wrong: list[int] = []

    def look(trace: Trace) -> None:
        wrong.extend(v.id for v in trace.graph.values if trace.array(v)[7] != v.id)

    threads = [threading.Thread(target=look, args=(trace,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_array_whose_path_a_kill_has_spoilt_is_found_by_its_offset(tmp_path: Path) -> None:
    path = small(tmp_path / "t.h5")
    with edit(path) as file:
        del file["values/encode/m"]
    (tmp_path / "whole.h5").write_bytes(path.read_bytes())
    assert "no array" in one_line(tmp_path / "whole.h5")
    with edit(path) as file:
        file.attrs["complete"] = False
    with open_trace(path) as trace:
        fc, copy = trace.graph.values[1:]
        assert trace.stored(fc) and trace.stored(copy)
        np.testing.assert_array_equal(trace.array(fc), [[0, 2, 4], [6, 8, 10]])
    assert validate(path) == []
    set_cell(path, "values", 1, "offset", 10**9)
    with open_trace(path) as trace:
        assert not trace.stored(trace.graph.values[1])


def test_a_disk_that_fills_up_leaves_a_readable_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace is ended while there is room to end it: HDF5 crashes on a write that fails."""
    path, limit = tmp_path / "t.h5", 4_000_000
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=limit - os.fstat(fd).st_size, f_frsize=1))
    x = np.arange(1000, dtype=np.float32)
    with (
        pytest.raises(CompareError, match=r"t.h5`: no space left on device: is the disk full\?"),
        TraceWriter(path) as out,
    ):
        for i in range(2000):
            out.value(value(i, f"m.v{i}", x), x + i)
    assert path.stat().st_size < limit
    with open_trace(path) as trace:
        assert not trace.complete
        assert "is the disk full?" in trace.death
        assert len(trace.graph.values) > 100
        for v in trace.graph.values:
            assert trace.array(v)[0] == v.id
    assert validate(path) == []
