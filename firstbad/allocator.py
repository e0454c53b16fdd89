"""The C allocator, told to keep large blocks: a replay makes and drops arrays of tens of megabytes by the thousand.

By default glibc gives each of them fresh pages from the kernel, which zeroes them all: measured on a replay of Whisper
tiny.en 5 times the time. Only glibc has these switches; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST = 2**31 - 1  # the switches are C ints


def keep_large_blocks() -> bool:
    """Whether the allocator now serves large blocks from its heap and keeps them when they are freed."""
    if os.environ.get("MALLOC_MMAP_THRESHOLD_"):
        return False  # the user has said how it is to be
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _LARGEST))
