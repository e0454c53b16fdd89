"""Two traces beside each other: the distance, where it is largest, and why two values cannot be set beside."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from firstbad.beside import around, beside
from firstbad.graph import Value
from firstbad.trace import TraceWriter, open_trace


def written(path: Path, arrays: dict[str, np.ndarray | None]) -> Path:
    with TraceWriter(path, role="candidate", engine="c") as writer:
        for i, (name, array) in enumerate(arrays.items()):
            shape = (2, 3) if array is None else array.shape
            writer.value(Value(i, "encode", name, "value", shape, "float32"), array)
    return path


def test_distance_and_place(tmp_path: Path) -> None:
    ones = np.ones((2, 3), np.float32)
    other = ones.copy()
    other[1, 2] = 4
    infinite = np.array([[-np.inf, 1, 2]], np.float32)
    a = written(tmp_path / "a.h5", {"x": ones, "same": infinite, "alone": ones, "shape": ones, "gone": ones})
    b = written(tmp_path / "b.h5", {"x": other, "same": infinite, "shape": np.ones((5,), np.float32), "gone": None})
    with open_trace(a) as ours, open_trace(b) as theirs:
        found = {b.value.name: b for b in beside(ours, theirs, ours.graph.values)}
    assert found["x"].index == (1, 2)
    assert found["x"].largest == 3
    assert math.isclose(found["x"].relative, 3 / math.sqrt(5 + 16))
    assert found["same"].largest == 0
    assert found["alone"].why == "only here"
    assert found["shape"].why == "there of shape [5]"
    assert found["gone"].why == "not stored"


def test_a_nan_is_the_largest_difference(tmp_path: Path) -> None:
    ones = np.ones((4,), np.float32)
    bad = ones.copy()
    bad[2] = np.nan
    a, b = written(tmp_path / "a.h5", {"x": ones}), written(tmp_path / "b.h5", {"x": bad})
    with open_trace(a) as ours, open_trace(b) as theirs:
        (found,) = beside(ours, theirs, ours.graph.values)
    assert found.index == (2,)
    assert math.isinf(found.largest)
    assert math.isinf(found.relative)


def test_the_slice_around_an_element() -> None:
    assert around((1, 1500, 384), (0, 61, 181)) == "0,59:64,178:185"
    assert around((1, 3, 4), (0, 2, 3)) == "0,0:3,0:4"
    assert around((10,), (9,)) == "3:10"
    assert around((), ()) == ""
