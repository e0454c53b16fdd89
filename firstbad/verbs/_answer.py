"""A verb's last act: the result on stdout, as text or as JSON, and its exit code."""

from __future__ import annotations

import sys

from firstbad.result import Result


def answer(result: Result, json: bool) -> int:
    """Prints `result` and returns its exit code."""
    from firstbad.rooms import load
    from firstbad.theme import theme_for

    print(result.to_json() if json else load("reports", "terminal").render(result, theme_for(sys.stdout)))
    return result.exit_code
