"""Edits of kind `wrong_constant`: rotary positions turn by other angles than the model's, because of another base.

The model keeps base^(-2 i / K) as a table; the engine has the base as a parameter. The one that the probe saw comes
first, then it is solved for. Leaves out scaled positions and other orders of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, SIMPLE, Edit
from firstbad.edits_constant import solved

TABLE = "inv_freq"


def rotary(case: Case) -> Iterator[Edit]:
    """Another base of the angles."""
    for i in case.region.weights:
        name = case.reference.graph.values[i].name
        if name.rpartition(".")[2] != TABLE:
            continue
        own = np.asarray(case.executor.weight(name), np.float64)
        if own.size < 2 or not 0 < own[-1] < 1:
            continue
        powers = np.arange(own.size) / own.size
        model = float(own[-1] ** (-1 / powers[-1]))
        if np.abs(model**-powers / own - 1).max() > 1e-5:  # a table that follows from no base
            continue

        def make(number: float, i: int = i, powers: Any = powers, model: float = model) -> Edit:
            detail = {
                "what": "base of rotary positions",
                "number": float(f"{number:.6g}"),
                "model": float(f"{model:.6g}"),
            }
            return Edit("wrong_constant", detail, {i: np.asarray(number**-powers, np.float32)}, cost=FITTED)

        seen = case.op.attrs.get("base") if case.op is not None else None
        if isinstance(seen, float) and seen > 1 and abs(seen / model - 1) > 1e-4:
            found = make(seen)
            yield Edit(found.kind, {**found.detail, "seen": True}, found.replaced, cost=SIMPLE)
        yield from solved(case, make, model)
