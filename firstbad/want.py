"""Which values of a run are stored, and after which one the run may end: patterns as in firstbad.h.

A pattern with a slash is `step/name`, one without is a name in any step; `*` stands for anything. Leaves out how each
engine is told: the C header reads the same patterns from its environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from firstbad.run import CaptureOptions

Chosen = Callable[[str, str], bool]
"""(step, name) → whether it is one of them."""


class EnoughError(Exception):
    """The last wanted value is there: whoever runs the engine ends it here. Not an error that a user sees."""


def patterns_of(options: CaptureOptions) -> list[str] | None:
    """The patterns of the values to be stored; None: all of them."""
    if options.want is not None:
        return list(options.want)
    if not options.steps:
        return None
    return [pattern for step in options.steps for pattern in (f"{step}/*", f"{step}.*/*")]


def chosen(patterns: Iterable[str] | None) -> Chosen:
    """Whether a value is named by one of the patterns; None: each is."""
    if patterns is None:
        return lambda _step, _name: True
    matcher = _compiled(tuple(patterns))
    return lambda step, name: bool(matcher(step, name))


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> Chosen:
    full = {p for p in patterns if "/" in p and "*" not in p}
    bare = {p for p in patterns if "/" not in p and "*" not in p}
    loose = [p for p in patterns if "*" in p]
    with_step = _regex(p for p in loose if "/" in p)
    without = _regex(p for p in loose if "/" not in p)

    def match(step: str, name: str) -> bool:
        both = f"{step}/{name}"
        return both in full or name in bare or bool(with_step(both)) or bool(without(name))

    return match


def _regex(patterns: Iterable[str]) -> Callable[[str], object]:
    parts = [".*".join(re.escape(part) for part in p.split("*")) for p in patterns]
    return re.compile("|".join(parts), re.DOTALL).fullmatch if parts else lambda _text: None
