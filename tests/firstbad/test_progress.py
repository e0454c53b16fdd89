"""Progress: a line that comes and goes on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io

import pytest

from firstbad import progress as module
from firstbad.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_off_a_terminal() -> None:
    stream = io.StringIO()
    with progress("reference", stream) as tell:
        tell("encode")
    assert stream.getvalue() == ""


def test_the_line_is_erased_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.0)
    stream = Terminal()
    with pytest.raises(ValueError, match="boom"), progress("reference", stream) as tell:
        tell("encode")
        raise ValueError("boom")
    assert stream.getvalue() == "\r\x1b[Kreference\r\x1b[Kreference: encode\r\x1b[K"


def test_redraws_are_rare_and_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    with progress("x" * 50, stream) as tell:
        for _ in range(1000):
            tell("step")
    shown = stream.getvalue().split("\r\x1b[K")
    assert len(shown) < 30
    assert max(map(len, shown)) < 20
