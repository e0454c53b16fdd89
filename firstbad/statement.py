"""Words for places and sizes: the text of a result, made last; words for causes are in cause_words.py.

Every function takes plain data and returns one sentence without a full stop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def place(test: str, index: int, shape: Sequence[int]) -> str:
    """The slice a test failed in: "row 17", "column 130 of head 3", "element [0, 2, 7]", "" for the whole."""
    if index < 0 or test in ("whole", "gain"):
        return ""
    rows = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    groups = math.prod(shape[:-2]) if len(shape) > 2 else 1
    if test == "rows":
        head = f" of group {index // rows}" if groups > 1 else ""
        last = " (the last)" if index % rows == rows - 1 and rows > 1 else ""
        return f"row {index % rows}{last}{head}"
    if test == "columns":
        head = f" of group {index // columns}" if groups > 1 else ""
        return f"column {index % columns}{head}"
    if test == "groups":
        return f"group {index}"
    return f"element {list(unravel(index, shape))}"


def spans(stretches: Sequence[tuple[int, int]]) -> str:
    """Stretches of indices in words: "128 to 159", "0 to 3 and 8 to 11", "every 4th from 3"."""
    if len(stretches) > 3 and all(a == b for a, b in stretches):
        steps = {b[0] - a[0] for a, b in itertools.pairwise(stretches)}
        if len(steps) == 1:
            step = steps.pop()
            ending = {1: "st", 2: "nd", 3: "rd"}.get(step % 10 if step % 100 not in (11, 12, 13) else 0, "th")
            return f"every {step}{ending} from {stretches[0][0]} to {stretches[-1][0]}"
    words = [str(a) if a == b else f"{a} to {b}" for a, b in stretches[:4]]
    if len(stretches) > 4:
        return ", ".join(words) + f" and {len(stretches) - 4} more stretches"
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """A flat index as one index an axis."""
    out = []
    for n in reversed(shape):
        out.append(index % n)
        index //= n
    return tuple(reversed(out))


def short(name: str) -> str:
    """The last parts of a module path that still say which layer: "v_proj of encoder layer 1"."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit() and i > 0:
            side = next((p for p in reversed(parts[: i - 1]) if p not in ("model", "layers")), "")
            inner = ".".join(parts[i + 1 :])
            return f"{inner or parts[i - 1]} of {side + ' ' if side else ''}layer {part}"
    return name


def number(x: float | None) -> str:
    """An error in two significant digits, as people write it."""
    if x is None or not math.isfinite(x):
        return "infinite"
    return "0" if x == 0 else f"{x:.2g}"


def times(x: float | None) -> str:
    """How many times the noise floor."""
    if x is None or not math.isfinite(x):
        return "no error is allowed here"
    return f"{x:,.0f} times the noise floor" if x >= 10 else f"{x:.1f} times the noise floor"
