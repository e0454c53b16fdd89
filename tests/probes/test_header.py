"""firstbad.h: what an engine records is what the trace says, and what it read is told from what was written."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firstbad.graph import Graph, Op, Read
from firstbad.hashing import hash_array
from firstbad.probes import process, stream, wire
from firstbad.toolchain import build
from firstbad.trace import Trace, TraceWriter, open_trace

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "probes" / "include"
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread")

Run = Callable[..., tuple[Trace, process.Ended]]


@pytest.fixture(scope="module")
def program() -> Path:
    return build([HERE / "header_cases.c"], flags=STRICT, program=True, include=[INCLUDE])


@pytest.fixture
def run(program: Path, tmp_path: Path) -> Run:
    def run(case: str, **options: object) -> tuple[Trace, process.Ended]:
        path = tmp_path / f"{case}.h5"
        with TraceWriter(path, role="candidate", engine="test") as writer:
            ended = process.record([program, case], writer, tmp_path, **options)  # type: ignore[arg-type]  # as given
            writer.outputs(ended.recording.outputs())
            writer.close(complete=not ended.death, death=ended.death)
        return open_trace(path), ended

    return run


def op_of(graph: Graph, name: str) -> Op:
    return next(op for op in graph.ops if op.name == name)


def reads_of_last(trace: Trace) -> list[tuple[str, str, list[str]]]:
    """(value, state, who overwrote it) of each read of the last op."""
    values = trace.graph.values

    def name(i: int) -> str:
        return values[i].name if i >= 0 else "-"

    return [(name(r.value), r.state, [name(v) for v in r.overwritten_by]) for r in trace.graph.ops[-1].reads]


@pytest.mark.parametrize(
    "command",
    [
        ["gcc", "-std=c99", "-pedantic"],
        ["gcc", "-std=c17", "-pedantic", "-Wconversion", "-Wshadow"],
        ["g++", "-x", "c++", "-std=c++11", "-pedantic"],
        ["g++", "-x", "c++", "-std=c++20", "-Wshadow"],
        ["clang", "-std=c99", "-pedantic"],
    ],
    ids=" ".join,
)
def test_compiles_as_c99_and_cpp_without_a_warning(command: list[str], tmp_path: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    source = tmp_path / "only.c"
    source.write_text('#define FIRSTBAD_IMPLEMENTATION\n#include "firstbad.h"\nint main(void) { return 0; }\n')
    wanted = [*command, "-Wall", "-Wextra", "-Werror", "-O2", f"-I{INCLUDE}"]
    for path, more in ((source, []), (HERE / "header_cases.c", ["-Wno-shadow", "-Wno-conversion"])):
        done = subprocess.run(
            [*wanted, *more, path, "-o", tmp_path / "out", "-lpthread"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_without_a_sink_it_costs_a_branch(program: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([program, "idle"], env={}, check=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert spent < 0.5  # for 2e8 macros: below 2.5 ns each, a call alone costs more


def test_everything_recorded_is_in_the_trace(run: Run) -> None:
    trace, ended = run("plain")
    assert ended.death == ""
    assert trace.complete
    assert trace.outputs == {"tokens": [7, -1], "text": "naïve"}
    features, weight, fc, halves, flags, number, nothing = trace.graph.values
    assert (features.kind, features.step, features.shape, features.op) == ("input", "encode", (1, 4, 6), -1)
    np.testing.assert_array_equal(trace.array(features), np.arange(1, 25, dtype=np.float32).reshape(1, 4, 6))
    assert (weight.kind, weight.step, weight.dataset) == ("weight", "weights", "")
    assert weight.hash == hash_array(np.zeros(8, np.float32))
    # written at strides (4, 8, 32): column-major
    expected = np.arange(50, 74, dtype=np.float32).reshape(3, 4, 2).transpose(2, 1, 0)
    assert (fc.name, fc.shape, fc.strides, fc.extent) == ("fc", (2, 4, 3), (4, 8, 32), 96)
    np.testing.assert_array_equal(trace.array(fc), expected)
    assert fc.hash == hash_array(expected)
    assert fc.address % 4 == 0
    assert fc.address > 0
    np.testing.assert_array_equal(trace.array(halves), np.array([1, -2, np.nan], np.float32))
    assert (halves.dtype, flags.dtype, number.dtype) == ("bfloat16", "bool", "float64")
    assert trace.array(flags).tolist() == [True, False, True, True, False]
    assert (number.shape, float(trace.array(number)), number.step) == ((), 2.5, "decode.0")
    assert nothing.shape == (0, 7)

    linear, types = trace.graph.ops
    assert (linear.kind, linear.name, linear.file, linear.line, linear.step) == (
        "linear",
        "fc",
        "kernels.c",
        120,
        "encode",
    )
    assert linear.attrs == {"eps": 0.5}
    assert [(r.slot, r.value, r.state) for r in linear.reads] == [("x", 0, "ok"), ("weight", 1, "ok")]
    assert linear.writes == (2,)
    assert 0 < linear.start_ns <= linear.end_ns
    assert types.writes == (3, 4, 5, 6)
    assert types.file.endswith("header_cases.c")
    assert [(r.value, r.state) for r in types.reads] == [(2, "ok")]


@pytest.mark.parametrize("case", ["clobber", "clobber-named"])
def test_a_value_overwritten_before_it_is_read_is_changed(run: Run, case: str) -> None:
    trace, _ = run(case)
    reads = {name: (state, over) for name, state, over in reads_of_last(trace)}
    assert reads["A"] == ("changed", ["B"])
    if case == "clobber-named":
        assert list(reads) == ["A"]
    read = next(r for r in trace.graph.ops[-1].reads if r.state == "changed")
    now = np.concatenate([np.arange(1, 9), np.arange(100, 108)]).astype(np.float32).reshape(4, 4)
    np.testing.assert_array_equal(trace.as_read(read), now)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("reuse", [("B", "ok", [])]),
        ("reuse-new", [("B", "ok", [])]),
        ("reuse-old", [("A", "changed", ["B"])]),
    ],
)
def test_a_buffer_may_be_reused_but_not_read_as_what_it_was(run: Run, case: str, expected: object) -> None:
    trace, _ = run(case)
    assert reads_of_last(trace) == expected


def test_what_nobody_wrote_is_unwritten(run: Run) -> None:
    trace, _ = run("unwritten")
    assert reads_of_last(trace) == [("A", "ok", []), ("-", "unwritten", [])]
    gap: Read = trace.graph.ops[-1].reads[1]
    assert (gap.value, gap.extent, gap.address) == (-1, 32, trace.graph.values[0].address + 32)
    assert trace.as_read(gap).shape == (4, 4)


def test_rows_of_a_cache_are_read_together(run: Run) -> None:
    trace, _ = run("rows")
    for op in (op for op in trace.graph.ops if op.kind == "scores"):
        names = [trace.graph.values[r.value] for r in op.reads]
        assert {r.state for r in op.reads} == {"ok"}
        assert sum(v.shape[0] for v in names) == 3 + int(op.step[-1]) + 1
        assert sorted(v.step for v in names) == sorted(
            ["prefill", *(f"decode.{i}" for i in range(int(op.step[-1]) + 1))]
        )


def test_one_bad_row_of_a_cache_is_named(run: Run) -> None:
    trace, _ = run("rows-wild")
    bad = [(trace.graph.values[r.value].step, r.state, r.overwritten_by) for r in trace.graph.ops[-1].reads]
    assert sorted(bad) == [
        ("decode.0", "changed", ()),
        ("decode.1", "ok", ()),
        ("decode.2", "ok", ()),
        ("prefill", "ok", ()),
    ]


def test_rows_of_a_ring_are_no_clobber(run: Run) -> None:
    trace, _ = run("ring")
    states = {trace.graph.values[r.value].step: r.state for r in trace.graph.ops[-1].reads}
    assert states == {"decode.0": "ok", "prefill": ""}


def test_interleaved_views_do_not_overlap(run: Run) -> None:
    trace, _ = run("fused")
    use, everything = trace.graph.ops[1:]
    assert [(trace.graph.values[r.value].name, r.state) for r in use.reads] == [("k", "ok")]
    assert sorted((trace.graph.values[r.value].name, r.state) for r in everything.reads) == [
        ("k", "ok"),
        ("q", "ok"),
        ("v", "ok"),
    ]


def test_a_weight_that_changes_is_seen_at_the_end_or_at_every_read(run: Run) -> None:
    trace, _ = run("weight")
    assert trace.outputs["weights_changed"] == ["w"]
    trace, _ = run("weight", environment={"FIRSTBAD_WEIGHTS": "always"})
    assert reads_of_last(trace) == [("w", "changed", [])]
    trace, _ = run("weight-clobbered")
    assert ("w", "changed", ["A"]) in reads_of_last(trace)


def test_only_what_is_wanted_is_sent_and_the_rest_is_hashed(run: Run) -> None:
    trace, _ = run("plain", want=["encode/*", "num*"])
    stored = {v.name for v in trace.graph.values if v.dataset}
    assert stored == {"features", "fc", "number"}
    assert all(v.hash for v in trace.graph.values)
    left_out = next(v for v in trace.graph.values if v.name == "flags")
    assert left_out.reason == "not asked for"
    assert not any(v.dataset for v in run("plain", want=[])[0].graph.values)


def test_a_run_can_be_stopped_early(run: Run) -> None:
    trace, ended = run("plain", stop=["encode/f*c"])
    assert ended.death == ""
    assert ended.recording.stopped
    assert [v.name for v in trace.graph.values][-1] == "fc"
    assert op_of(trace.graph, "fc").attrs["unfinished"] == 1


def test_a_value_can_be_replaced_where_it_lies(run: Run) -> None:
    asked = []

    def replace(step: str, name: str, array: np.ndarray) -> np.ndarray | None:
        asked.append((step, name))
        return array * 10 if name == "A" else None

    trace, ended = run("replaced", replace=replace, replaced=["*"])
    assert ended.death == ""
    assert asked == [("encode", "A"), ("encode", "B")]
    assert ended.stdout.split() == ["10", "20", "30", "40", "50", "60"]
    np.testing.assert_array_equal(trace.array(trace.graph.values[0]), [[1, 3, 5], [2, 4, 6]])
    assert trace.graph.ops[0].attrs["replaced"] == ["A"]
    assert [(r.value, r.state) for r in trace.graph.ops[1].reads] == [(0, "ok")]  # what it reads is what was put there


def test_freed_memory_is_forgotten_and_the_table_stays_small(run: Run) -> None:
    started = time.monotonic()
    trace, _ = run("many", want=[])
    assert len(trace.graph.ops) == 12000
    assert {r.state for op in trace.graph.ops for r in op.reads} == {"ok"}
    assert time.monotonic() - started < 30


def test_threads_may_record_at_once(run: Run) -> None:
    trace, _ = run("threads")
    assert len(trace.graph.ops) == 400
    assert {r.state for op in trace.graph.ops for r in op.reads} == {"ok"}
    assert all(trace.graph.values[w].op == op.id for op in trace.graph.ops for w in op.writes)


def test_what_was_sent_survives_a_crash(run: Run) -> None:
    trace, ended = run("abort")
    assert ended.death == "killed by SIGABRT in op 3 `last` of decode.0 (kernels.c:7)"
    assert trace.death == ended.death
    assert not trace.complete
    assert [op.name for op in trace.graph.ops] == ["fc", "types"]


@pytest.mark.parametrize("sink", ["file", "fifo"])
def test_a_sink_may_be_a_path(program: Path, tmp_path: Path, sink: str) -> None:
    path = tmp_path / "sink"
    if sink == "fifo":
        os.mkfifo(path)
    engine = subprocess.Popen([program, "plain"], env={"FIRSTBAD_SINK": str(path)})
    if sink == "file":
        assert engine.wait() == 0
    with TraceWriter(tmp_path / "trace.h5", role="candidate") as writer, path.open("rb", buffering=0) as file:
        recording = stream.Recording(writer)
        recording.take(wire.records(file.fileno()))
    assert engine.wait() == 0
    assert recording.closed
    assert recording.tokens == [7, -1]


def test_an_engine_goes_on_when_its_reader_is_gone(program: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [program, "replaced"],
        env={"FIRSTBAD_SINK": f"fd:{theirs}"},
        pass_fds=[theirs],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(theirs)
    assert done.returncode == 0
    assert done.stdout.split() == ["1", "2", "3", "4", "5", "6"]
    assert "the sink is closed" in done.stderr


def test_it_is_clean_under_sanitizers(tmp_path: Path) -> None:
    flags = (*STRICT, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = build([HERE / "header_cases.c"], flags=flags, program=True, include=[INCLUDE])
    for case in (
        "plain",
        "clobber",
        "reuse-old",
        "unwritten",
        "rows-wild",
        "ring",
        "fused",
        "weight",
        "many",
        "threads",
    ):
        done = subprocess.run(
            [program, case], env={"FIRSTBAD_SINK": "/dev/null"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (case, done.stderr[:2000])
