"""The heat map of a terminal: the largest element of a block shows, with and without colours."""

from __future__ import annotations

import numpy as np

from firstbad.heat import heat, pooled
from firstbad.theme import PLAIN, Theme


def test_the_largest_of_a_block_keeps_its_sign() -> None:
    array = np.zeros((4, 6), np.float32)
    array[1, 1], array[3, 5] = -7, 2
    assert pooled(array, 2, 2).tolist() == [[-7, 0], [0, 2]]


def test_nan_wins_over_its_block() -> None:
    array = np.ones((2, 8), np.float32)
    array[1, 3] = np.nan
    assert np.isnan(pooled(array, 1, 2)[0, 0])
    assert pooled(array, 1, 2)[0, 1] == 1


def test_shades_without_colours() -> None:
    lines, end = heat(np.array([[0, 1, -9], [np.nan, np.inf, 9]], np.float32), 10, 10, PLAIN)
    assert lines == [" .@", "?!@"]
    assert end == 9


def test_one_bad_element_of_many_shows() -> None:
    array = np.zeros((1500, 384), np.float32)
    array[777, 100] = 1
    lines, _ = heat(array, 40, 20, PLAIN)
    assert len(lines) == 20
    assert sum(line.count("@") for line in lines) == 1


def test_a_long_vector_is_folded() -> None:
    lines, _ = heat(np.arange(1, 10001, dtype=np.float32), 50, 30, PLAIN)
    assert len(lines) == 30
    assert all(len(line) == 50 for line in lines)


def test_colours_pair_two_rows() -> None:
    lines, _ = heat(np.array([[-1.0], [1.0], [0.0]], np.float32), 10, 10, Theme(on=True))
    assert len(lines) == 2
    assert "\x1b[38;5;25m\x1b[48;5;223m▀" in lines[0] or "▀" in lines[0]
    assert "\x1b[49m" in lines[1]
    assert all(line.endswith("\x1b[0m") for line in lines)
