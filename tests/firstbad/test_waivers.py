"""Waivers: what they cover, until when, and a file that was spoilt."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from firstbad.errors import UsageError
from firstbad.waivers import FILE, Waiver, day, read, write

ONE = Waiver("tiny", "*.v_proj", "known since May", "2026-12-31")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    other = Waiver("*", "a.b", "another", "2027-01-01")
    path = write(tmp_path / "new", (ONE, other))
    assert set(read(tmp_path / "new")) == {ONE, other}
    assert path.read_text().splitlines() == sorted(path.read_text().splitlines())
    assert read(tmp_path) == ()


def test_it_covers_names_and_patterns_until_the_last_day() -> None:
    assert ONE.covers("tiny", "layers.1.v_proj")
    assert not ONE.covers("other", "layers.1.v_proj")
    assert not ONE.covers("tiny", "layers.1.k_proj")
    assert not ONE.expired(datetime.date(2026, 12, 31))
    assert ONE.expired(datetime.date(2027, 1, 1))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"case": "a"}',
        '{"case": "a", "fault": "b", "reason": "c", "until": "tomorrow"}',
        '{"case": "a", "fault": 3, "reason": "c", "until": "2026-12-31"}',
        "<<<<<<< HEAD",
    ],
)
def test_a_spoilt_line(line: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f"\n{line}\n")
    with pytest.raises(UsageError, match=r"line 2 of .* is no waiver"):
        read(tmp_path)


def test_dates() -> None:
    assert day("2026-02-28") == datetime.date(2026, 2, 28)
    with pytest.raises(UsageError, match=r"`31.12.2026` is no date"):
        day("31.12.2026")
