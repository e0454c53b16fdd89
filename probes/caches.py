"""Where keys and values are kept: straight in order of positions, in a ring of a window's size, or in pages.

`stream`: rows are appended where they are made, and readers see the cache itself. `ring` and `paged`: rows are stored
into slots by an op of their own and, in decode, loaded from them into the order of positions, which the reference makes
by joining old and new rows. A ring has as many slots as the window; layers that see everything have one that never
wraps. Leaves out which slot is which (engine/cache.c) and prefill, whose queries see the rows that were just made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .builder import Builder
from .plan import Dim, Plan

LAYOUTS = ("stream", "ring", "paged")
PAGE = 4
"""Positions of a page: few, so that a short run has several."""

HEADS = (0, 2, 1, 3)
"""[1, H, t, K] as it lies in memory: token by token."""

STREAM: Mapping[str, Any] = {"kept": True, "rows": True}


def kept(layout: str) -> Mapping[str, Any]:
    """How the tensor of new rows is declared."""
    return STREAM if layout == "stream" else {}


def slots(layout: str, window: int, positions: int) -> int:
    if layout == "paged":
        return -(-positions // PAGE) * PAGE
    return min(window, positions) if window else positions


def seen(
    b: Builder, layout: str, path: str, word: str, rows: str, loaded: str, *, heads: int, K: int, window: int, room: int
) -> str:
    """The rows that a query of this step sees, from its new `rows`; `loaded` is the reference's name for all of them.
    `room`: positions of the whole run."""
    if layout == "stream":
        return rows
    cache = (1, slots(layout, window, room), heads * K)
    attrs: dict[str, float] = {"page": PAGE} if layout == "paged" else {}
    stored = b.op("store_rows", f"{path}.{word}_cache", cache, {"x": rows}, attrs=attrs, kept=True)
    if b.name == "prefill":
        return rows
    n: Dim = "w" if window else "n"
    return b.op("load_rows", loaded, (1, heads, n, K), {"x": stored}, attrs=attrs, order=HEADS)


def table(plan: Plan) -> tuple[int, ...]:
    """Places of pages, last first: nothing lies where its position says."""
    return tuple(reversed(range(-(-plan.positions // PAGE))))
