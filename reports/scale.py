"""How large an error is, for people: noise floors, steps of colour, numbers as text.

One scale for the map, the chart and the table: an error in noise floors, bad above 3. Leaves out colours (templates/).
"""

from __future__ import annotations

import math

from firstbad.noise import FACTOR

STEPS = (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
"""Upper ends of the steps of colour, in times of what is allowed (FACTOR noise floors); above the last: one more."""

EXACT, LIMIT_STEP, INFINITE = 0, 3, 9
"""Steps with a meaning of their own: no difference at all; the last that is allowed; not a number."""


def step_of(error: float | None, allowed: float) -> int:
    """The step of colour of an error: 0 exact, 1 to 3 allowed, 4 to 8 too large, 9 infinite or not a number."""
    if error is None or not math.isfinite(error):
        return INFINITE
    if error == 0:
        return EXACT
    times = error / allowed if allowed > 0 else math.inf
    return 1 + sum(times > end for end in STEPS)


def floors(error: float | None, allowed: float) -> float:
    """An error in noise floors, so that 3 is what is allowed."""
    if error is None or not math.isfinite(error):
        return math.inf
    return FACTOR * error / allowed if allowed > 0 else (math.inf if error else 0.0)


def number(x: float | None) -> str:
    """An error in two significant digits."""
    if x is None or not math.isfinite(x):
        return "infinite"
    return "0" if x == 0 else f"{x:.2g}"


def times(x: float | None) -> str:
    """A number of noise floors: 4,019,838 or 2.3."""
    if x is None or not math.isfinite(x):
        return "∞"
    return f"{x:,.0f}" if x >= 10 else f"{x:.2g}" if x < 1 else f"{x:.1f}"


def element(x: float | None) -> str:
    """One element of a value."""
    if x is None or math.isnan(x):
        return "NaN"
    return f"{x:.6g}" if math.isfinite(x) else ("inf" if x > 0 else "−inf")


def seconds(x: float) -> str:
    """A duration in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x * 1e9:.0f} ns" if x > 0 else "0"


def size(n: float) -> str:
    """Bytes."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= factor:
            return f"{n / factor:.3g} {unit}"
    return f"{n:.0f} B"
