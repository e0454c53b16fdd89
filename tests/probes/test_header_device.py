"""firstbad.h and memory that the host cannot read: everything goes through the function that the user registers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firstbad.graph import READ_CHANGED, READ_OK
from firstbad.probes import process
from firstbad.toolchain import build
from firstbad.trace import TraceWriter, open_trace

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "probes" / "include"
FLAGS = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread")


@pytest.fixture(scope="module")
def program() -> Path:
    return build([HERE / "device_cases.c"], flags=FLAGS, program=True, include=[INCLUDE])


def test_values_are_copied_hashed_and_checked(program: Path, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.h5", role="candidate", engine="test") as writer:
        ended = process.record([program], writer, tmp_path)
        writer.close(complete=not ended.death, death=ended.death)
    assert ended.death == ""
    with open_trace(tmp_path / "t.h5") as trace:
        arrays = {v.name: trace.array(v) for v in trace.graph.values}
        assert arrays["a"].tolist() == [[0, 2, 4], [1, 3, 5]]
        assert arrays["b"].tolist() == [0, 2, 4, 6, 8, 10]
        assert arrays["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
        double, late = trace.graph.ops[1], trace.graph.ops[2]
        assert double.reads[0].state == READ_OK
        assert late.reads[0].state == READ_CHANGED
        assert trace.as_read(late.reads[0]).tolist() == [[0, 6, 12], [3, 9, 15]]


def test_a_replacement_goes_back_to_the_device(program: Path, tmp_path: Path) -> None:
    def replace(_step: str, name: str, array: np.ndarray) -> np.ndarray | None:
        return array + 100 if name == "b" else None

    with TraceWriter(tmp_path / "t.h5", role="candidate", engine="test") as writer:
        ended = process.record([program], writer, tmp_path, replace=replace, replaced=("b",))
        writer.close(complete=not ended.death, death=ended.death)
    assert "b[1] = 102" in ended.stdout


def test_nothing_is_copied_when_nobody_looks(program: Path) -> None:
    assert process.run_bare([program]) == "0 copies, b[1] = 2\n"
