"""The history of a gate: read with its torn lines, shown, and drawn where matplotlib is."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from firstbad.errors import UsageError
from firstbad.history import plot, read, series, spark


def line(n: int, error: float, case: str = "micro") -> str:
    errors = {"encode/a": error, "encode/b": 0.5} | ({"decode/c": 1.0} if n else {})
    head = {"time": f"2026-07-0{n + 1}", "commit": f"{n}" * 40, "case": case, "first_bad": ""}
    return json.dumps({**head, "verdict": "failed" if error > 1 else "passed", "errors": errors})


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join([line(0, 0.4), "{torn", "[]", line(1, 0.5), '{"errors": 3}', line(2, 3.0)]) + "\n")
    return path


def test_torn_lines_are_counted_and_left_out(history: Path) -> None:
    points, bad = read(history)
    assert bad == 3
    assert [point.verdict for point in points] == ["passed", "passed", "failed"]
    found = series(points)
    assert list(found) == ["encode/a", "encode/b", "decode/c"]  # what varies most first
    assert found["encode/a"] == [0.4, 0.5, 3.0]
    assert math.isnan(found["decode/c"][0])
    assert list(series(points, "decode/*")) == ["decode/c"]
    assert list(series(points, "e/b")) == ["encode/b"]


def test_sparks_are_logarithmic_with_gaps() -> None:
    assert spark([1, 10, 100, math.nan]) == "▁▅█ " or spark([1, 10, 100, math.nan]) == "▁▄█ "
    assert spark([math.nan]) == " "
    assert spark([2, 2]) == "▁▁"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*; write it with `firstbad gate --report history:"):
        read(tmp_path / "none")


def test_a_picture(history: Path, tmp_path: Path) -> None:
    points, _ = read(history)
    try:
        import matplotlib  # noqa: F401  only whether it is there
    except ModuleNotFoundError:
        with pytest.raises(UsageError, match=r"a plot needs matplotlib: pip install 'firstbad\[plot\]'"):
            plot(points, tmp_path / "plot.png")
        pytest.skip("needs matplotlib: pip install 'firstbad[plot]'")
    plot(points, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="cannot write"):
        plot(points, tmp_path / "plot.strange")


def test_by_command(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from firstbad.cli import main

    assert main(["history", str(history)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "micro, 3 runs, 0000000 to 2222222; errors in noise floors"
    assert out[1].split() == ["verdict", "✓✓✗"]
    assert out[2].split()[0] == "encode/a"
    assert out[2].endswith("0.4 to 3, now 3")
    assert out[-1] == "3 lines of the file are no runs and were left out"
    assert main(["history", str(history), "--case", "mikro"]) == 2
    assert "did you mean `micro`" in capsys.readouterr().err
