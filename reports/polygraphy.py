"""Polygraphy's RunResults (JSON) of both runs, for `polygraphy` and whoever reads it: `report --report polygraphy`.

The values of the first step that both runs have, under their names, the candidate's as the second runner. Leaves out
what no trace stores.
"""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.errors import CompareError
from firstbad.material import Material

if TYPE_CHECKING:
    from firstbad.trace import Trace

FILE = "polygraphy.json"


def render(material: Material) -> str:
    """RunResults with the runners `firstbad-reference` and `firstbad-candidate`; an iteration for each step."""
    if material.reference is None or material.candidate is None:
        raise CompareError(f"the traces are needed for `polygraphy`: {'; '.join(material.missing)}")
    steps = [s for s in material.reference.graph.steps if s in material.candidate.graph.steps]
    sides = (("firstbad-reference", material.reference), ("firstbad-candidate", material.candidate))
    runners = [[name, [_iteration(trace, step, name) for step in steps]] for name, trace in sides]
    return json.dumps({"lst": runners, "polygraphy_class": "RunResults"}, indent=1)


def _iteration(trace: Trace, step: str, runner: str) -> dict[str, Any]:
    values = [v for v in trace.graph.values if v.step == step and v.kind == "value" and trace.stored(v)]
    outputs = {v.name: {"values": _encoded(trace.array(v)), "polygraphy_class": "LazyArray"} for v in values}
    return {"outputs": outputs, "runtime": None, "runner_name": runner, "polygraphy_class": "IterationResult"}


def _encoded(array: np.ndarray) -> dict[str, str]:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return {"array": base64.b64encode(file.getvalue()).decode("ascii"), "polygraphy_class": "ndarray"}
