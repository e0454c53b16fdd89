"""Alignment by name and recorded shape; nothing paired by position, nothing dropped."""

from __future__ import annotations

import numpy as np

from firstbad.alignment import Layout, align
from firstbad.graph import Graph, Op, Read, Value


def value(i: int, name: str, shape: tuple[int, ...], op: int = -1, **more: object) -> Value:
    return Value(i, "encode", name, "value", shape, "float32", op, dataset=f"/v/{name}", **more)  # type: ignore[arg-type]


def test_unit_axes_and_heads() -> None:
    data = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)  # [B, H, T, K]
    theirs = np.ascontiguousarray(data[0].transpose(1, 0, 2))  # [T, H, K]
    reference = Graph((value(0, "a", (1, 2, 3, 4)), value(1, "b", (1, 6))), ())
    candidate = Graph((value(0, "a", (3, 2, 4)), value(1, "b", (6,))), ())
    found = align(reference, candidate, lambda v: data, lambda v: theirs)
    a, b = found.pairs
    np.testing.assert_array_equal(a.layout.apply(theirs), data)
    assert b.layout == Layout((1, 6))
    np.testing.assert_array_equal(a.layout.undo(data).reshape(3, 2, 4), theirs)


def test_contents_decide_between_layouts() -> None:
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    wide = np.arange(18, dtype=np.float32).reshape(3, 3, 2)
    reference = Graph((value(0, "a", (3, 2, 3)),), ())
    candidate = Graph((value(0, "a", (3, 3, 2)),), ())
    found = align(reference, candidate, lambda v: wide.transpose(1, 2, 0), lambda v: wide)
    np.testing.assert_array_equal(found.pairs[0].layout.apply(wide), wide.transpose(1, 2, 0))
    same = align(
        Graph((value(0, "a", (3, 3)),), ()), Graph((value(0, "a", (3, 3)),), ()), lambda v: square, lambda v: square.T
    )
    assert same.pairs[0].layout == Layout((3, 3))  # equal shapes are taken at their word


def test_what_is_left_is_listed_with_its_reason() -> None:
    ops = (Op(0, "encode", "c", "aten.contiguous.default", (Read(0),), (1,)),)
    reference = Graph(
        (value(0, "a", (2,)), value(1, "c", (2,), op=0), value(2, "only", (5,)), value(3, "odd", (4,))), ops
    )
    candidate = Graph((value(0, "a", (2,)), value(1, "extra", (2,)), value(2, "odd", (5,))), ())
    zeros = np.zeros(1, np.float32)
    found = align(reference, candidate, lambda v: zeros, lambda v: zeros)
    assert [p.reference.name for p in found.pairs] == ["a"]
    assert {u.value.name: u.reason for u in found.only_reference} == {
        "c": "only moves values",
        "only": "no value of this name in the candidate",
        "odd": "the candidate's shape [5] against [4]",
    }
    assert {u.value.name for u in found.only_candidate} == {"extra", "odd"}
