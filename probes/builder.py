"""Builds one step of a plan: each method call is one op and gives back the name of its value.

Leaves out which ops a model has (planner*.py) and where tensors lie (lifetimes.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .plan import Dim, PlanOp, Step, Tensor


class Builder:
    """Collects one step; each method call is one op and gives back the name of its value."""

    def __init__(self, name: str, weights: dict[str, tuple[int, ...]], limits: Mapping[str, int]) -> None:
        self.name = name
        self.weights = weights
        self.limits = limits
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[PlanOp] = []
        self._counts: Counter[str] = Counter()

    def next(self, path: str, *words: str) -> str:
        """The name of what an op of this word makes, as the reference counts them; of the last of several words."""
        name = ""
        for word in words:
            name = f"{path}.{word}" if path else word
            n = self._counts[name]
            self._counts[name] += 1
            name = f"{name}_{n}" if n else name
        return name

    def fed(self, name: str, shape: tuple[Dim, ...], dtype: str = "float32") -> str:
        self.tensors[name] = Tensor(name, shape, dtype)
        return name

    def op(
        self,
        kind: str,
        name: str,
        shape: tuple[Dim, ...],
        inputs: Mapping[str, str],
        *,
        weights: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
        attrs: Mapping[str, float] | None = None,
        order: tuple[int, ...] = (),
        dtype: str = "float32",
        kept: bool = False,
        rows: bool = False,
    ) -> str:
        weights = weights or {}
        self.weights.update(weights.values())
        self.tensors[name] = Tensor(name, shape, dtype, order=order, kept=kept, rows=rows)
        ports = {port: weight for port, (weight, _) in weights.items()}
        self.ops.append(PlanOp(name, kind, dict(inputs), ports, dict(attrs or {})))
        return name

    def linear(self, name: str, x: str, shape: tuple[Dim, ...], inner: int, *, bias: bool = True, **more: Any) -> str:
        cols = shape[-1]
        assert isinstance(cols, int)
        weights: dict[str, tuple[str, tuple[int, ...]]] = {"weight": (f"{name}.weight", (cols, inner))}
        if bias:
            weights["bias"] = (f"{name}.bias", (cols,))
        return self.op("linear", name, shape, {"x": x}, weights=weights, **more)

    def layer_norm(self, name: str, x: str, shape: tuple[Dim, ...], D: int, **more: Any) -> str:
        weights = {"weight": (f"{name}.weight", (D,)), "bias": (f"{name}.bias", (D,))}
        return self.op("layer_norm", name, shape, {"x": x}, weights=weights, attrs={"eps": 1e-5}, **more)

    def same(self, kind: str, name: str, shape: tuple[Dim, ...], **inputs: str) -> str:
        return self.op(kind, name, shape, inputs)

    def step(self, fed: str, result: str) -> Step:
        return Step(self.name, fed, result, dict(self.limits), self.tensors, tuple(self.ops))
