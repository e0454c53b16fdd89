"""The hash of a value's content: sees order and sign, and is the same in Python and in C (`fb_hash`).

Of the bytes in logical (C) order, read as little-endian 64-bit words, each mixed with its position. Made to tell a
value that was overwritten from one that was not; leaves out any resistance to somebody who wants a collision.
"""

from __future__ import annotations

import numpy as np

from firstbad import native

_STEP = 0x9E3779B97F4A7C15
_MIX = 0xD6E8FEB86659FD93
_MASK = (1 << 64) - 1
_BLOCK = 1 << 14  # words: 128 kB, so that the scratch stays in the cache
_NATIVE_BYTES = 1 << 20  # from here on the compiled code pays; once it is there, for any array


def hash_array(array: np.ndarray) -> int:
    """The 64-bit hash of an array's elements in C order, never 0; shape and type do not enter, only bytes."""
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} has no bytes to hash")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    compiled = data.nbytes >= _NATIVE_BYTES or native.native.cache_info().currsize
    library = native.native() if compiled and data.nbytes >= 8 else None
    total = _sum_of_words(data) if library is None else library.hash_words(data)
    whole = data.nbytes // 8
    if data.nbytes % 8:
        last = int.from_bytes(data[whole * 8 :].tobytes(), "little")
        total += _mixed(last ^ ((whole + 1) * _STEP & _MASK))
    return _mixed((total & _MASK) ^ (data.nbytes * _STEP & _MASK)) or 1


def _sum_of_words(data: np.ndarray) -> int:
    """`hash_words` of native.py in NumPy alone: the oracle of the C code, and the way without a compiler."""
    whole = data.nbytes // 8
    words = data[: whole * 8].view("<u8")
    positions = np.arange(1, min(whole, _BLOCK) + 1, dtype=np.uint64) * np.uint64(_STEP)
    total = 0
    z = np.empty_like(positions)
    high = np.empty_like(positions)
    for start in range(0, whole, _BLOCK):
        n = min(_BLOCK, whole - start)
        zn, hn = z[:n], high[:n]
        np.add(positions[:n], np.uint64(start * _STEP & _MASK), out=zn)
        np.bitwise_xor(zn, words[start : start + n], out=zn)
        np.right_shift(zn, np.uint64(32), out=hn)
        np.bitwise_xor(zn, hn, out=zn)
        np.multiply(zn, np.uint64(_MIX), out=zn)
        np.right_shift(zn, np.uint64(32), out=hn)
        np.bitwise_xor(zn, hn, out=zn)
        total += int(zn.sum(dtype=np.uint64))
    return total


def _mixed(z: int) -> int:
    z = (z ^ (z >> 32)) * _MIX & _MASK
    return z ^ (z >> 32)
