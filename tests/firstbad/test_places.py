"""Where a value is wrong, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firstbad.judge import judge
from firstbad.noise import Pool, excesses, floor
from firstbad.places import where_of

U = 2.0**-24
H, R, C = 4, 20, 160


def told(shape: tuple[int, ...], *parts: Any, size: float = 100.0) -> str:
    """The words for a value of this shape with an error in each part."""
    rng = np.random.default_rng(1)
    y = rng.standard_normal(shape)
    s = np.ones(shape, np.float32)
    t = y + U * rng.standard_normal(shape)
    c = t + U * rng.standard_normal(shape)
    for part in parts:
        c[part] = y[part] + size * U * (1 + rng.random(c[part].shape))
    sums = judge(c.astype(np.float32), y, t.astype(np.float32), s, u=U)
    limits = floor(sums, Pool(1.0, 1.5, 1.5, 4.0), None)
    worst = excesses(sums, limits, exact=False)[0]
    return where_of(sums, limits, False, shape, worst.test)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([np.s_[:, 3, :, 128:160]], "columns 128 to 159 of head 3"),
        ([np.s_[:, 2]], "head 2"),
        ([np.s_[:, :, 19]], "the last row"),
        ([np.s_[:, :, 16:]], "rows 16 to 19"),
        ([np.s_[:, 1, 5]], "row 5 of head 1"),
        ([np.s_[:, :, :, 8:16], np.s_[:, :, :, 40:48]], "columns 8 to 15 and 40 to 47"),
        ([np.s_[:, :, :, 3::8]], "columns every 8th from 3 to 155"),
        ([np.s_[:]], ""),
        ([np.s_[0, 1, 4, 7]], "element [0, 1, 4, 7]"),
    ],
)
def test_a_stretch_is_told_as_one(parts: list[Any], words: str) -> None:
    assert told((1, H, R, C), *parts) == words


def test_without_heads_nothing_is_called_a_head() -> None:
    assert told((1, R, C), np.s_[:, :, 5]) == "column 5"
    assert told((3, R, C), np.s_[1]) == "group 1"
