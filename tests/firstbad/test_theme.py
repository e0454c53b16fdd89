"""Colour: on a terminal only, and NO_COLOR and FORCE_COLOR are honoured."""

from __future__ import annotations

import io

import pytest

from firstbad.theme import PLAIN, Theme, theme_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "terminal", "on"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_when(env: dict[str, str], terminal: bool, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert theme_for(Terminal() if terminal else io.StringIO()).on is on


def test_paint() -> None:
    meanings = ("good", "bad", "warn", "dim", "name", "number")
    painted = [getattr(Theme(on=True), meaning)("x") for meaning in meanings]
    assert len(set(painted)) == len(meanings)
    assert all(text.startswith("\x1b[") and text.endswith("x\x1b[0m") for text in painted)
    assert all(getattr(PLAIN, meaning)("x") == "x" for meaning in meanings)
    assert Theme(on=True).bad("") == ""
