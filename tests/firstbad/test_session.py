"""What a run leaves in its folder when the candidate does not get to its first value."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firstbad import session
from firstbad.errors import CompareError
from firstbad.run import CaptureOptions
from firstbad.trace import TraceWriter


def test_a_candidate_that_dies_at_once_is_not_judged_by_an_older_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "candidate.h5"
    TraceWriter(path, "candidate", "torch").close(complete=True)
    assert path.exists()
    seen = []

    def capture(argument: str, _prepared: Any, trace: Path, _options: Any) -> None:
        seen.append((argument, trace.exists()))
        raise CompareError("the candidate left no trace")

    monkeypatch.setattr(session, "load", lambda room, kind: SimpleNamespace(capture=capture, kind=(room, kind)))
    prepared: Any = None
    with pytest.raises(CompareError):
        session.capture_candidate("torch:FILE.py:factory", prepared, path, CaptureOptions())
    assert seen == [("FILE.py:factory", False)]
    assert not path.exists()
