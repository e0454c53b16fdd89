"""Where in a value the error is, in words: "columns 128 to 159 of head 3", "the last row", "element [0, 2, 7]".

From the sums of every row and column against their limits, so that a stretch is told as one. Leaves out why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from firstbad.judge import Sums
from firstbad.noise import FACTOR, QUARTER, Floor
from firstbad.signature import folded, runs
from firstbad.statement import place, spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.local import Judged

MOST = 0.75
"""A part is worth telling where it is no more than this share of the value."""


def where(judged: Judged) -> str:
    """The part of a value that is wrong; "" for the whole."""
    return where_of(judged.sums, judged.floor, judged.exact, judged.pair.reference.shape, judged.worst.test)


def where_of(sums: Sums, floor: Floor, exact: bool, shape: Sequence[int], test: str) -> str:
    """As `where`, from its parts; `test` is the one that failed worst."""
    G, R, C = folded(shape)
    if test in ("nonfinite", "masked"):
        return place("element", sums.first_bad, shape)
    if sums.row_rms.size != G * R or sums.column_rms.shape != (G, C) or not sums.count:
        return ""
    limits = (0.0, 0.0) if exact else (FACTOR * floor.rows + QUARTER, FACTOR * floor.columns + QUARTER)
    rows = ~(sums.row_rms.reshape(G, R) <= limits[0])
    columns = ~(sums.column_rms <= limits[1])
    head = "head" if len(shape) == 4 else "group"
    if not rows.any() and not columns.any():
        return _of_test(sums, shape, test, head)
    groups = np.asarray(rows.any(1) | columns.any(1))
    bad_rows, bad_columns = np.asarray(rows[groups].any(0)), np.asarray(columns[groups].any(0))
    shares = {"row": bad_rows.mean() if R > 1 else 1.0, "column": bad_columns.mean() if C > 1 else 1.0}
    words = []
    for name, bad, other in (("row", bad_rows, "column"), ("column", bad_columns, "row")):
        # A dead column makes rows bad as well, here and there: the smaller part is told, or two that are stretches.
        stretch = len(runs(bad)) == 1 or shares[name] <= 2 * shares[other]
        if bad.any() and shares[name] <= MOST and stretch:
            words.append(_words(name, bad))
    if len(words) == 2 and bad_rows.sum() == bad_columns.sum() == groups.sum() == 1:
        return place("element", sums.element_index, shape)
    text = ", ".join(words)
    if G > 1 and groups.mean() <= MOST:
        which = f"{head}{'s' if groups.sum() > 1 else ''} {spans(runs(groups))}"
        text = f"{text} of {which}" if text else which
    return text


def _words(name: str, bad: NDArray[np.bool_]) -> str:
    stretches = runs(bad)
    if stretches == [(len(bad) - 1, len(bad) - 1)] and name == "row":
        return "the last row"
    return f"{name}{'s' if bad.sum() > 1 else ''} {spans(stretches)}"


def _of_test(sums: Sums, shape: Sequence[int], test: str, head: str) -> str:
    """Where only a finer test failed: no row or column is too large by itself."""
    _, R, C = folded(shape)
    many = len(shape) > 2 and folded(shape)[0] > 1
    if test == "gains":
        return f"{head} {sums.gains.index}"
    if test == "offsets":
        of = f" of {head} {sums.offsets.index // C}" if many else ""
        return f"column {sums.offsets.index % C}{of}"
    if test == "last":
        of = f" of {head} {sums.last.index}" if many else ""
        return f"the last row{of}" if R > 1 else ""
    if test in ("element", "exact"):
        return place("element", sums.element_index, shape)
    return ""
