"""One line on stderr that says what is going on, shown only on a terminal and gone when the work is done.

Leaves out bars, rates and spinners: the steps of a run have no common length.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Tell = Callable[[str], None]

_INTERVAL = 0.1  # seconds between two redraws
_ERASE = "\r\x1b[K"


@contextmanager
def progress(label: str, stream: TextIO | None = None) -> Iterator[Tell]:
    """`with progress("reference") as tell: tell("encode")` shows `reference: encode` until the block ends."""
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield _silent
        return

    last = 0.0

    def tell(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _INTERVAL:
            last = now
            _show(out, f"{label}: {text}")

    _show(out, label)
    try:
        yield tell
    finally:
        out.write(_ERASE)
        out.flush()


def _show(out: TextIO, line: str) -> None:
    width = shutil.get_terminal_size().columns
    out.write(_ERASE + line[: width - 1])
    out.flush()


def _silent(text: str) -> None:
    """Progress off a terminal."""
