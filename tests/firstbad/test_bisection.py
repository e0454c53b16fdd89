"""A search on a graph of a thousand ops that PyTorch itself runs, rightly as the reference and wrongly as a candidate.

The candidate is the same model with one weight or constant changed; which, the search has to find from what little it
may store.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad.bisection import STATE, Search, bisect
from firstbad.errors import CompareError
from firstbad.graph import Graph, Op, Value
from firstbad.halving import halve
from firstbad.reference.executor import Executor
from firstbad.reference.recorder import Recorder
from firstbad.trace import TraceWriter, open_trace
from firstbad.want import EnoughError, chosen

D, BLOCKS = 8, 167  # six ops a block


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(D, D)
        self.second = nn.Linear(D, D)
        self.eps, self.scale, self.jitter = 1e-5, 0.1, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(x, (D,), None, None, self.eps)
        y = self.second(torch.tanh(self.first(h)))
        made: torch.Tensor = x + self.scale * (1 + self.jitter * random.random()) * y
        return made


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Recorded(list):  # type: ignore[type-arg]
    """A sink that keeps records and no arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []

    def value(self, v: Value, _array: object) -> Value:
        self.append(v)
        return v

    def op(self, op: Op) -> None:
        self.ops.append(op)


class Bench:
    """See the protocol in firstbad/bisection.py. `break_` and `mend` change the candidate before and after its run."""

    tokens = 1

    def __init__(self, model: Deep) -> None:
        self.model = model.eval().requires_grad_(False)
        self.executor = Executor({name: p.numpy().copy() for name, p in model.named_parameters()})
        self.x = torch.randn(3, D)
        self.fault: Callable[[Deep, float], None] = lambda _model, _sign: None
        self.candidates = 0
        self.wanted: list[int] = []

    def outline(self) -> Graph:
        sink = Recorded()
        self._record(sink, (), ())
        return Graph(tuple(sink), tuple(sink.ops))

    def candidate(self, path: Path, want: tuple[str, ...], stop: tuple[str, ...]) -> None:
        self.candidates += 1
        self.wanted.append(len(want))
        self.fault(self.model, 1.0)
        try:
            self._trace(path, "candidate", want, stop)
        finally:
            self.fault(self.model, -1.0)

    def reference(self, path: Path, want: tuple[str, ...], stop: tuple[str, ...], _tokens: tuple[int, ...]) -> None:
        self._trace(path, "reference", want, stop)

    def _trace(self, path: Path, role: str, want: tuple[str, ...], stop: tuple[str, ...]) -> None:
        with TraceWriter(path, role=role, engine="torch", meta={}) as writer:  # type: ignore[arg-type]
            self._record(writer, want, stop)
            writer.outputs({"tokens": [], "text": ""})
            writer.close(complete=True)

    def _record(self, sink: object, want: tuple[str, ...], stop: tuple[str, ...]) -> None:
        recorder = Recorder(self.model, sink, chosen(want), chosen(stop))  # type: ignore[arg-type]
        try:
            with torch.inference_mode(), recorder:
                recorder.begin("forward")
                self.model(recorder.input("x", self.x))
        except EnoughError:
            pass


@pytest.fixture(scope="module")
def deep() -> Bench:
    torch.set_num_threads(1)
    return Bench(Deep())


def search(bench: Bench, folder: Path, share: float | None = None, key: str = "one") -> Search:
    bench.candidates, bench.wanted = 0, []
    budget = None if share is None else lambda full: full * share
    return Search(bench, folder, budget, {"key": key}, lambda _: None)


def fault_of(block: int, kind: str) -> tuple[str, Callable[[Deep, float], None]]:
    """The value that is wrong, and what makes it so."""

    def change(model: Deep, sign: float) -> None:
        b = model.blocks[block]
        if kind == "weight":
            b.first.weight.mul_(1.5**sign)
        elif kind == "bias":
            b.second.bias.add_(0.25 * sign)  # a power of two on numbers below 1/2: taken back to within rounding
        elif kind == "eps":
            b.eps += 0.5 * sign
        else:
            b.scale += 0.05 * sign

    word = {"weight": "first", "bias": "second", "eps": "layer_norm", "scale": "mul"}[kind]
    return f"blocks.{block}.{word}", change


PLACES = [(0, "weight"), (83, "bias"), (120, "eps"), (166, "scale"), (41, "scale")]


@pytest.mark.parametrize(("block", "kind"), PLACES)
def test_one_wrong_op_of_a_thousand_with_a_fiftieth_of_the_bytes(
    deep: Bench, tmp_path: Path, block: int, kind: str
) -> None:
    name, deep.fault = fault_of(block, kind)
    state = search(deep, tmp_path, 0.02)
    found = bisect(state)
    assert [j.name for j in found] == [name]
    assert deep.candidates == len(state.runs) <= 4
    assert all(run.bytes <= 0.02 * state.full_bytes for run in state.runs)
    assert not state.full_capture
    assert not state.left_out


def test_a_right_engine_takes_one_run(deep: Bench, tmp_path: Path) -> None:
    deep.fault = lambda _model, _sign: None
    state = search(deep, tmp_path, 0.02)
    assert bisect(state) == ()
    assert deep.candidates == 1


def test_two_faults_are_found_together(deep: Bench, tmp_path: Path) -> None:
    (first, one), (second, two) = fault_of(20, "eps"), fault_of(140, "weight")

    def both(model: Deep, sign: float) -> None:
        one(model, sign)
        two(model, sign)

    deep.fault = both
    state = search(deep, tmp_path)
    assert [j.name for j in bisect(state)] == [first, second]
    assert deep.candidates == 2


def test_a_stopped_search_goes_on_with_its_finished_runs(deep: Bench, tmp_path: Path) -> None:
    name, deep.fault = fault_of(83, "bias")
    whole = search(deep, tmp_path / "whole", 0.02)
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    said: list[str] = []
    whole.tell = said.append
    bisect(whole)
    told = [line.split() for line in said if line.startswith(("run ", "about "))]
    runs = [int(words[1].rstrip(":")) for words in told if words[0] == "run"]
    assert runs == list(range(1, len(whole.runs) + 1))
    left = [int(words[1]) for words in told if words[0] == "about"]  # said before each run but the first
    assert all(abs(guess - (len(runs) - n)) <= 1 for n, guess in enumerate(left, 1)), (left, runs)
    assert left == sorted(left, reverse=True)

    stopped = search(deep, tmp_path / "stopped", 0.02)
    run, stopped_after = stopped.run, 2

    def limited(*args: object) -> None:
        if len(stopped.runs) == stopped_after:
            raise KeyboardInterrupt
        run(*args)  # type: ignore[arg-type]

    stopped.run = limited  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bisect(stopped)
    assert (tmp_path / "stopped" / STATE).is_file()

    again = search(deep, tmp_path / "stopped", 0.02)
    assert [j.name for j in bisect(again)] == [name]
    assert len(again.runs) == len(whole.runs)
    assert deep.candidates == len(whole.runs) - stopped_after

    other = search(deep, tmp_path / "stopped", 0.02, key="another model")
    bisect(other)
    assert deep.candidates == len(whole.runs), "runs of something else are not taken up"


def test_a_candidate_that_changes_from_run_to_run_is_noticed(deep: Bench, tmp_path: Path) -> None:
    _, change = fault_of(60, "eps")

    def restless(model: Deep, sign: float) -> None:
        change(model, sign)
        model.blocks[30].jitter += 0.2 * sign

    deep.fault = restless
    state = search(deep, tmp_path)
    bisect(state)
    assert state.unstable
    assert len(state.runs) <= 3


def test_a_candidate_that_stores_nothing_of_what_is_asked_ends_in_a_full_capture_or_an_error(
    deep: Bench, tmp_path: Path
) -> None:
    _, deep.fault = fault_of(60, "eps")
    state = search(deep, tmp_path)
    state.folder.mkdir(exist_ok=True)
    original = deep.candidate
    deep.candidate = lambda path, want, stop: original(path, ("*",) if want == ("*",) else ("nothing",), ())  # type: ignore[method-assign]
    try:
        found = bisect(state)
    finally:
        del deep.candidate
    assert state.full_capture
    assert [j.name for j in found] == ["blocks.60.layer_norm"]


@pytest.mark.parametrize(("block", "kind"), PLACES[1:4])
def test_one_value_a_run_is_a_search_by_halves(deep: Bench, tmp_path: Path, block: int, kind: str) -> None:
    name, deep.fault = fault_of(block, kind)
    state = search(deep, tmp_path)
    found = halve(state)
    assert [j.name for j in found] == [name]
    assert max(deep.wanted) == 1
    assert deep.candidates <= math.log2(6 * BLOCKS) + 3


def test_one_value_a_run_on_a_right_engine_is_one_run(deep: Bench, tmp_path: Path) -> None:
    deep.fault = lambda _model, _sign: None
    assert halve(search(deep, tmp_path)) == ()
    assert deep.candidates == 1


def test_traces_of_a_search_are_traces(deep: Bench, tmp_path: Path) -> None:
    name, deep.fault = fault_of(120, "eps")
    state = search(deep, tmp_path, 0.02)
    bisect(state)
    with open_trace(state.candidate_path) as theirs, open_trace(state.reference_path) as ours:
        held = [v.name for v in theirs.graph.values if v.dataset]
        assert name in held
        assert {v.name for v in ours.graph.values if v.dataset and v.kind == "value"} == set(held) - {"x"}
        with pytest.raises(CompareError, match="not stored"):
            theirs.array(next(v for v in theirs.graph.values if v.kind == "value" and not v.dataset))
