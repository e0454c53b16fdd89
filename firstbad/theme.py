"""Colour by meaning, for a terminal and nowhere else.

NO_COLOR switches it off, FORCE_COLOR on, in this order; then a pipe or a dumb terminal gets none.
Leaves out layout: what stands where is decided by whoever writes the line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

# Cyan against red stays apart for colour-blind eyes; every use says the same in words as well.
_CODES = {"good": "36", "bad": "1;31", "warn": "33", "dim": "2", "name": "1", "number": "35"}


@dataclass(frozen=True)
class Theme:
    """Each method wraps a text in the colour of its meaning, or returns it as it is."""

    on: bool

    def good(self, text: str) -> str:
        return self._paint("good", text)

    def bad(self, text: str) -> str:
        return self._paint("bad", text)

    def warn(self, text: str) -> str:
        return self._paint("warn", text)

    def dim(self, text: str) -> str:
        return self._paint("dim", text)

    def name(self, text: str) -> str:
        """A value, an op, a file."""
        return self._paint("name", text)

    def number(self, text: str) -> str:
        return self._paint("number", text)

    def _paint(self, meaning: str, text: str) -> str:
        return f"\x1b[{_CODES[meaning]}m{text}\x1b[0m" if self.on and text else text


PLAIN = Theme(on=False)


def theme_for(stream: TextIO) -> Theme:
    """The theme for what is written to `stream`."""
    if os.environ.get("NO_COLOR"):
        return PLAIN
    if os.environ.get("FORCE_COLOR"):
        return Theme(on=True)
    return Theme(on=stream.isatty() and os.environ.get("TERM") != "dumb")
