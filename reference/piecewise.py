"""Executes ops with weights that may be larger than memory: a linear layer by some of the weight's rows at a time, a
look-up by the rows that it takes. Nothing that is derived from a weight is kept for long.

Leaves out weights of other ops (convolutions, experts in one product): they are converted whole, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from firstbad.graph import Op

from .executor import Executor

PIECE = 1 << 20
"""Elements of a weight that are converted at a time: 8 MB in float64."""

KEPT = 16 << 20
"""Bytes of what is derived from weights, and from inputs, that are kept."""


class Piecewise(Executor):
    """See the protocol in firstbad/replay.py; `weights` may be mapped files."""

    weight_budget = KEPT
    input_budget = KEPT
    input_largest = KEPT // 8

    def run(self, op: Op, inputs: Mapping[int, np.ndarray], dtype: str) -> list[np.ndarray]:
        looked_up = self._looked_up(op, inputs)
        if looked_up is not None:
            return super().run(_bare(op), looked_up, dtype)
        bare, run = _bare(op), super().run
        pieces = [run(bare, given, dtype)[0] for given, _ in self._pieces(op, inputs)]
        return [np.concatenate(pieces, -1)] if pieces else super().run(op, inputs, dtype)

    def scale(self, op: Op, inputs: Mapping[int, np.ndarray], output: np.ndarray) -> np.ndarray | None:
        bare, scale = _bare(op), super().scale
        pieces = [scale(bare, given, output[..., rows]) for given, rows in self._pieces(op, inputs)]
        known = [piece for piece in pieces if piece is not None]
        return np.concatenate(known, -1) if known else super().scale(op, inputs, output)

    def _pieces(self, op: Op, inputs: Mapping[int, np.ndarray]) -> Iterator[tuple[dict[int, np.ndarray], slice]]:
        """The inputs of the op for some rows of a large weight, and which those are; nothing for any other op."""
        args = [*op.attrs.get("args", ()), None, None]
        weight = self._weight_in(op, inputs, args[1]) if op.kind == "aten.linear.default" else None
        if weight is None or weight.size <= PIECE:
            return
        bias = self._weight_in(op, inputs, args[2])
        if args[2] is not None and bias is None:
            return
        step = max(1, PIECE // weight.shape[1])
        for start in range(0, len(weight), step):
            rows = slice(start, start + step)
            given = {**inputs, args[1]["v"]: weight[rows]}
            if bias is not None:
                given[args[2]["v"]] = bias[rows]
            yield given, rows

    def _looked_up(self, op: Op, inputs: Mapping[int, np.ndarray]) -> dict[int, np.ndarray] | None:
        """A look-up in a large table as one in the rows that it takes."""
        args = [*op.attrs.get("args", ()), None, None]
        table = self._weight_in(op, inputs, args[0]) if op.kind == "aten.embedding.default" else None
        at = inputs.get(args[1]["v"]) if table is not None and isinstance(args[1], Mapping) and "v" in args[1] else None
        if table is None or at is None or table.size <= PIECE or at.min(initial=0) < 0:
            return None
        if at.max(initial=0) >= len(table):
            return None
        places = np.arange(at.size, dtype=np.int64).reshape(at.shape)
        return {**inputs, args[0]["v"]: table[at.reshape(-1)], args[1]["v"]: places}

    def _weight_in(self, op: Op, inputs: Mapping[int, np.ndarray], argument: Any) -> np.ndarray | None:
        """The weight that the op takes there; None where it is a value of the run, or none."""
        if not isinstance(argument, Mapping) or "v" not in argument or argument["v"] in inputs:
            return None
        if str(argument["v"]) not in op.attrs.get("weights", {}):
            return None
        return self.weight(self._weight_name(op, argument["v"]))


def _bare(op: Op) -> Op:
    """The op with all of its weights among its inputs: none is looked up, or kept, by a name."""
    return replace(op, attrs={k: v for k, v in op.attrs.items() if k != "weights"})
