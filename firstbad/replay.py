"""Replay: the reference's graph executed on the candidate's own values, in float64 and in the candidate's dtype.

One sweep over the graph judges every value: an op reads the candidate's values where the candidate has them, and
what the sweep itself computed where it has not. Nothing is executed twice, however many values a region spans.
Leaves out the judging (noise.py) and the arithmetic (an Executor, made by the model room).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from firstbad.graph import Op

if TYPE_CHECKING:
    import numpy as np


class Executor(Protocol):
    """Executes one op of a recorded reference graph with any inputs, in any floating-point dtype.

    Arrays cross this line as NumPy arrays (no copies: torch.from_numpy and .numpy()); read-only inputs are never
    written; outputs are logical arrays of any strides.
    """

    def run(self, op: Op, inputs: Mapping[int, np.ndarray], dtype: str) -> list[np.ndarray]:
        """The op's outputs in the order of `op.writes`, computed in `dtype` ("float64", "float32", "bfloat16" ...).

        Floating inputs are cast to `dtype` first, as are floating dtype arguments of the call; weights are taken from
        the model where `inputs` has no entry for them. bfloat16 and float16 results come back as float32 arrays.
        """
        ...

    def scale(self, op: Op, inputs: Mapping[int, np.ndarray], output: np.ndarray) -> np.ndarray | None:
        """Element-wise error scale of the op's first output for u = 1: its condition, float32, broadcastable to it.

        linear, matmul, conv: |x||w| + |b|; add: |a| + |b|; ... None where no condition is known.
        """
        ...

    def sequential(
        self, op: Op, inputs: Mapping[int, np.ndarray], samples: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The worst declared order: float32 with every sum taken one term after the other, on sampled elements.

        Returns (flat indices into the first output, their values as float32); whole rows of the last axis are sampled
        for softmax and layer_norm, single outputs for sums of products. None: the op has no sum.
        """
        ...

    def weight(self, name: str) -> np.ndarray:
        """A weight by its parameter name."""
        ...


def call_arguments(op: Op) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The recorded call of a reference op as (args, kwargs) templates; see reference/call.py."""
    return op.attrs.get("args", ()), op.attrs.get("kwargs", {})
