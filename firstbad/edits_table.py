"""Edits of kind `wrong_variant`: the op's values come from a table of a narrow type, as engines do for speed.

Leaves out tables that no engine is known to have.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstbad.case import Case
from firstbad.edit import Edit
from firstbad.edits_variant import word_of
from firstbad.gelu_table import gelu

GELU_TABLE = "gelu (tanh) from a table of float16"


def tables(case: Case) -> Iterator[Edit]:
    """GELU's tanh form, looked up by the nearest float16."""
    if len(case.ops) != 1 or word_of(case.ops[0]) != "gelu":
        return
    x = case.preview_value(case.ops[0].reads[0].value)
    if x is None:
        return
    for contracted in (True, False):
        yield Edit("wrong_variant", {"variant": GELU_TABLE, "model": "gelu (erf)"}, output=gelu(x, contracted))
