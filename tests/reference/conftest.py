"""A trace kept in memory, and a graph replayed from it: what the reference's own tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from firstbad.graph import Graph, Op, Value
from firstbad.reference.executor import Executor


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.arrays: dict[int, np.ndarray] = {}
        self.result: dict[str, Any] = {}

    def value(self, v: Value, array: np.ndarray | None) -> Value:
        assert v.id == len(self.values)
        if array is not None:
            assert array.shape == v.shape
            self.arrays[v.id] = np.array(array)
            v = replace(v, dataset=f"/values/{v.step}/{v.name}")
        self.values.append(v)
        return v

    def op(self, op: Op) -> None:
        assert op.id == len(self.ops)
        self.ops.append(op)

    def outputs(self, outputs: Any) -> None:
        self.result = dict(outputs)

    @property
    def graph(self) -> Graph:
        return Graph(tuple(self.values), tuple(self.ops))

    def named(self, step: str, name: str) -> Value:
        (found,) = [v for v in self.values if v.step == step and v.name == name]
        return found

    def stored(self, step: str) -> list[str]:
        return [v.name for v in self.values if v.step == step and v.dataset]

    def array(self, value: Value) -> np.ndarray:
        return self.arrays[value.same_as if value.same_as >= 0 else value.id]

    def replay(self, weights: dict[str, np.ndarray], dtype: str = "float32") -> dict[int, np.ndarray]:
        """Every value computed from inputs, constants and weights alone."""
        executor = Executor(weights)
        known = {i: a for i, a in self.arrays.items() if self.values[i].kind in ("input", "constant")}
        for op in self.ops:
            inputs = {r.value: known[r.value] for r in op.reads if r.value in known}
            known.update(zip(op.writes, executor.run(op, inputs, dtype), strict=True))
        return known

    def check_replay(self, weights: dict[str, np.ndarray]) -> None:
        """The graph says what the run did: replayed in float32 it gives every stored value, bit for bit."""
        known = self.replay(weights)
        for value in self.values:
            if value.kind == "value" and (value.dataset or value.same_as >= 0):
                np.testing.assert_array_equal(known[value.id], self.array(value), err_msg=f"{value.step} {value.name}")


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(7)
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    yield
    torch.set_num_threads(threads)
