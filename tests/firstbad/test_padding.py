"""Which elements of a value lie at padding, from the step's own mask."""

from __future__ import annotations

import numpy as np

from firstbad.graph import Graph, Value
from firstbad.padding import Padding, without

MASK = np.array([[1, 1, 1], [0, 0, 1]])


def of(shape: tuple[int, ...], mask: np.ndarray = MASK) -> np.ndarray | None:
    B, S = mask.shape
    values = (
        Value(0, "prefill", "attention_mask", "input", (B, S), "int64"),
        Value(1, "prefill", "input_ids", "input", (B, 3), "int64"),
        Value(2, "prefill", "x", "value", shape, "float32", 0),
    )
    found = Padding(Graph(values, ()), lambda v: mask if v.id == 0 else None).of(values[2])
    return None if found is None else np.broadcast_to(found, shape)


def test_the_axis_of_tokens_is_found() -> None:
    rows = of((2, 3, 5))
    assert rows is not None
    assert rows.all(2).tolist() == [[False] * 3, [True, True, False]]
    flat = of((6, 5))
    assert flat is not None
    assert flat.all(1).tolist() == [False, False, False, True, True, False]
    heads = of((2, 3, 3, 5))  # H == T: the rows are the queries
    assert heads is not None
    assert heads[1, :, :2].all()
    assert not heads[1, :, 2].any()
    scores = of((2, 4, 3, 9))
    assert scores is not None
    assert scores.sum() == 4 * 2 * 9


def test_what_has_no_axis_of_tokens_counts_in_full() -> None:
    assert of((7, 5)) is None
    assert of((2,)) is None
    assert of((2, 3, 5), np.ones((2, 3), np.int64)) is None
    later = np.concatenate([MASK, np.ones((2, 1), np.int64)], 1)
    assert of((2, 3, 5), later) is not None, "the last three of four positions are fed"


def test_ignored_elements_are_replaced() -> None:
    a, b = np.zeros(3), np.ones(3)
    assert without(a, None, b) is a
    assert without(a, np.array([True, False, True]), b).tolist() == [1, 0, 1]
