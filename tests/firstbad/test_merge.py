"""Two partial traces of one run as one: nothing is lost, nothing moved, and what differs is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firstbad.graph import READ_CHANGED, Op, Read, Value
from firstbad.merge import changed, merge, stored_bytes
from firstbad.trace import TraceWriter, open_trace

X, A, B = (np.arange(6, dtype=np.float32).reshape(2, 3) + n for n in range(3))


def write(path: Path, stored: set[str], *, b: np.ndarray = B, hashed: bool = False, until: int = 9) -> Path:
    with TraceWriter(path, role="candidate", engine="c", meta={"model": "m"}) as writer:
        arrays = {"x": X, "a": A, "b": b}
        kinds = {"x": "input", "a": "value", "b": "value"}
        for n, (name, array) in enumerate(list(arrays.items())[:until]):
            content = int(array.sum()) + 1 if hashed else 0
            value = Value(n, "encode", name, kinds[name], (2, 3), "float32", n - 1, hash=content)  # type: ignore[arg-type]
            writer.value(value, array if name in stored else None)
        place = writer.as_read(0, "x", X * 2)
        writer.op(Op(0, "encode", "a", "linear", (Read(0, "x", READ_CHANGED, place),), (1,), file="k.c", line=7))
        if until > 2:
            writer.op(Op(1, "encode", "b", "linear", (Read(1, "x"),), (2,)))
        writer.outputs({"tokens": [1, 2], "text": "hi"})
        writer.close(complete=True)
    return path


def test_each_fills_the_gaps_of_the_other(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1.h5", {"x", "b"}), write(tmp_path / "2.h5", {"a"}, until=2)
    with open_trace(first) as one, open_trace(second) as two:
        merge(one, two, tmp_path / "both.h5")
        assert stored_bytes(one) == B.nbytes
    with open_trace(tmp_path / "both.h5") as both:
        assert [v.name for v in both.graph.values] == ["x", "a", "b"]
        for value, array in zip(both.graph.values, (X, A, B), strict=True):
            np.testing.assert_array_equal(both.array(value), array)
        assert (both.role, both.engine, both.meta["model"], both.outputs["text"]) == ("candidate", "c", "m", "hi")
        op = both.graph.ops[0]
        assert (op.file, op.line, op.reads[0].state) == ("k.c", 7, READ_CHANGED)
        np.testing.assert_array_equal(both.as_read(op.reads[0]), X * 2)
        assert both.complete


def test_what_only_the_second_knows_is_added_at_the_end(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1.h5", {"x", "a"}, until=2), write(tmp_path / "2.h5", {"b"})
    with open_trace(first) as one, open_trace(second) as two:
        merge(one, two, tmp_path / "both.h5")
    with open_trace(tmp_path / "both.h5") as both:
        np.testing.assert_array_equal(both.array(both.graph.by_key["encode", "b"]), B)


def test_runs_that_differ_are_told_by_hash_and_by_content(tmp_path: Path) -> None:
    for hashed in (True, False):
        stored = set() if hashed else {"a", "b"}
        one = write(tmp_path / "1.h5", stored, hashed=hashed)
        same = write(tmp_path / "2.h5", stored, hashed=hashed)
        other = write(tmp_path / "3.h5", stored, b=B + 1, hashed=hashed)
        with open_trace(one) as a, open_trace(same) as b, open_trace(other) as c:
            assert changed(a, b) == []
            assert changed(a, c) == [("encode", "b")]
