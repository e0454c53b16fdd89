"""The hash against a word-by-word reading of its definition."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad import native
from firstbad.hashing import hash_array

M = 2**64 - 1


def by_definition(data: bytes) -> int:
    h = 0
    for i in range(0, len(data), 8):
        word = int.from_bytes(data[i : i + 8].ljust(8, b"\0"), "little")
        z = word ^ ((i // 8 + 1) * 0x9E3779B97F4A7C15 & M)
        z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93 & M
        h = (h + (z ^ (z >> 32))) & M
    h ^= len(data) * 0x9E3779B97F4A7C15 & M
    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93 & M
    return (h ^ (h >> 32)) or 1


@given(st.binary(max_size=200))
def test_the_definition(data: bytes) -> None:
    assert hash_array(np.frombuffer(data, np.uint8)) == by_definition(data)


@pytest.mark.parametrize("size", [8 * (1 << 14), 8 * (1 << 14) + 3, 8 * (1 << 15) + 8, 8 * (1 << 15) - 1])
def test_block_edges(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    assert hash_array(data) == by_definition(data.tobytes())


@pytest.mark.parametrize("size", [1, 8, 9, 24, 1000, 1 << 20, (1 << 20) + 5, (1 << 22) + 8 * 3 + 1])
def test_arrays_hash_the_same_in_c(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    if native.native() is None:
        pytest.skip("no C compiler")
    in_c = hash_array(data), hash_array(data[1:])  # the second is not aligned
    monkeypatch.setattr(native, "native", cache(lambda: None))
    assert in_c == (hash_array(data), hash_array(data[1:]))


def test_fixed_values() -> None:
    assert hash_array(np.zeros(0, np.float32)) == 1
    assert hash_array(np.zeros(1, np.float32)) == by_definition(b"\0" * 4) != hash_array(np.zeros(2, np.float32))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=40), st.data())
def test_order_and_sign_are_seen(numbers: list[float], data: st.DataObject) -> None:
    array = np.array(numbers, np.float32)
    i = data.draw(st.integers(0, len(array) - 1))
    flipped = array.copy()
    flipped[i] = -flipped[i]
    assert hash_array(flipped) != hash_array(array)
    swapped = array[::-1]
    if swapped.tobytes() != array.tobytes():
        assert hash_array(swapped) != hash_array(array)


def test_logical_order_counts_not_memory() -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert hash_array(a.transpose(2, 0, 1)) == hash_array(a.transpose(2, 0, 1).copy())
    assert hash_array(np.asfortranarray(a)) == hash_array(a)
    assert hash_array(a[:, ::2]) == hash_array(a[:, ::2].copy())
    assert hash_array(a.astype(">f4")) == hash_array(a)
    assert hash_array(a.reshape(-1)) == hash_array(a)
    assert hash_array(np.array(1.5, np.float32)) == hash_array(np.array([1.5], np.float32))


def test_objects_are_refused() -> None:
    with pytest.raises(TypeError):
        hash_array(np.array([object()]))
