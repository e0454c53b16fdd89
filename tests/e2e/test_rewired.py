"""One wrong wire at each op: the edited op is the only fault where any value changes, and `match` where none does.

What changed is judged without firstbad: the broken engine's values against the same engine's healthy ones. Leaves out
edits that no plan could hold (another size) and values that are not there yet.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

from firstbad.probes import edits
from firstbad.probes.kinds import kind_of
from firstbad.probes.plan import STEPS, Plan, numbers
from firstbad.probes.plan_check import check, read_shape
from firstbad.result import Result

from .conftest import Bench

NOISE = 1e-5
"""Of a value's root mean square; the same kernels on the same inputs give the same bits, so there is a wide gap."""

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Wire:
    """An edit: `port` of `op` reads `wired` in the place of `right`."""

    step: str
    op: str
    kind: str
    port: str
    right: str
    wired: str


@dataclass(frozen=True)
class Outcome:
    wire: Wire
    changed: float
    expected: str  # kind of cause, or "match"
    problem: str  # "": as it should be


def wires(plan: Plan) -> Iterator[Wire]:
    """Every single-wire edit of the encoder and of a decode step to a value of the same size that exists by then."""
    for name in ("encode", "decode"):
        step = plan.steps[name]
        before = [t for s in STEPS[: STEPS.index(name)] for t in plan.steps[s].tensors.values() if t.kept]
        there = [t.name for t in before if t.name not in step.tensors] + [step.input]
        for op in step.ops:
            for port, right in op.inputs.items():
                for wired in there:
                    if wired != right and all(
                        _size(plan, name, op.kind, port, wired, n) == _size(plan, name, op.kind, port, right, n)
                        for n in (3, 7)
                    ):
                        yield Wire(name, op.name, op.kind, port, right, wired)
            there.append(op.name)


def _size(plan: Plan, step: str, kind: str, port: str, name: str, n: int) -> tuple[int, str]:
    tensor, ports = plan.tensor(step, name), kind_of(kind)
    assert tensor is not None
    assert ports is not None
    shape = read_shape(tensor, cached=port in ports.cached)
    return math.prod(numbers(shape, {"t": 1, "n": n})), tensor.dtype


def overwritten(plan: Plan, wire: Wire) -> str:
    """Whether the wired value's place is taken by something else when the op reads it ("taken"), or by the op's own
    output while it reads ("own"); the sizes of the first and of the last decode step must agree ("unclear").
    """
    answers = set()
    for n in (3, 4):
        sizes = {"t": 40, "n": 40} if wire.step == "encode" else {"t": 1, "n": n}
        step = plan.steps[wire.step]
        dead = plan.tensor(wire.step, wire.wired)
        assert dead is not None
        start, end = dead.offset, dead.offset + dead.bytes(sizes)
        answer, made = "", wire.wired not in {op.name for op in step.ops}
        for op in step.ops:
            own = step.tensors[op.name]
            meets = own.buffer == dead.buffer and own.offset < end and start < own.offset + own.bytes(sizes)
            if op.name == wire.op:
                answer = "own" if meets else answer
                break
            if made and meets:
                answer = "taken"
            made = made or op.name == wire.wired
        answers.add(answer)
    return answers.pop() if len(answers) == 1 else "unclear"


def values(path: Path) -> Values:
    found: Values = {}

    def keep(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as file:
        file["values"].visititems(keep)
    return found


def change(healthy: Values, broken: Values) -> float:
    """The largest difference in units of the value's root mean square, over all values that both runs have."""
    worst = 0.0
    for name, right in healthy.items():
        if name not in broken:
            continue
        a, b = right.astype(np.float64), broken[name].astype(np.float64)
        number = np.isfinite(a) & (np.abs(a) < 1e30)
        if not np.array_equal(number, np.isfinite(b) & (np.abs(b) < 1e30)) or right.dtype.kind != "f":
            if not np.array_equal(a, b, equal_nan=True):
                return math.inf
            continue
        a, b = a[number], b[number]
        if a.size:
            worst = max(worst, float(np.abs(a - b).max()) / max(math.sqrt(float(np.mean(a**2))), 1e-30))
    return worst


def verdict_on(wire: Wire, result: Result, expected: str) -> str:
    """What is wrong with firstbad's answer; "" for nothing."""
    if expected == "match":
        return "" if result.verdict == "match" and not result.faults else f"{result.verdict} where nothing changed"
    if [f.value for f in result.faults] != [wire.op]:
        return f"faults at {[(f.value, f.step, f.cause.kind, f.times_noise) for f in result.faults]}"
    (fault,) = result.faults
    if fault.step != ("encode" if wire.step == "encode" else "decode.0"):
        return f"first seen in {fault.step}"
    detail = fault.cause.detail
    named = {
        "wrong_input": (detail.get("input"), detail.get("read")),
        "stale": (detail.get("instead_of"), detail.get("input")),
    }.get(fault.cause.kind)
    if fault.cause.kind != expected or named != (wire.right, wire.wired):
        return f"cause {fault.cause.kind} {dict(detail)}"
    return ""


def damage_on(wire: Wire, result: Result, healthy: Values, broken: Values) -> str:
    """Values of encode and prefill, whose history no token has changed: what differs much from the healthy run is
    damage, and what has the same bits is right. Between the two firstbad may say either.
    """
    columns = zip(*(result.values[c] for c in ("step", "name", "verdict")), strict=True)
    for step, name, verdict in columns:
        if step not in ("encode", "prefill") or name == wire.op:
            continue
        dataset = f"{step}/{name.replace('.', '/')}"
        same = np.array_equal(healthy[dataset], broken[dataset])
        if same and verdict != "clean":
            return f"{name} ({step}) is {verdict}, and has the bits of the healthy run"
        if not same and verdict == "clean" and change({"": healthy[dataset]}, {"": broken[dataset]}) > 1e-2:
            return f"{name} ({step}) is clean, and is not what the healthy run has"
    return ""


def run(bench: Bench, chosen: Sequence[Wire], *, planned_anew: bool) -> list[Outcome]:
    plan = bench.plan
    trace, _ = bench.run()
    healthy = values(trace)
    outcomes = []
    for wire in chosen:
        broken = edits.rewire(plan, wire.step, wire.op, wire.port, wire.wired, planned_anew=planned_anew)
        check(broken, "an edited plan")
        trace, output = bench.run(broken)
        found = values(trace)
        changed = change(healthy, found)
        kind = "stale" if not planned_anew and overwritten(plan, wire) == "taken" else "wrong_input"
        expected = kind if changed > NOISE else "match"
        result = bench.judge(trace, output)
        problem = verdict_on(wire, result, expected) or damage_on(wire, result, healthy, found)
        if not output.complete:
            problem = output.death
        elif 0 < changed <= NOISE:
            problem = problem or f"changed by {changed:.1e}: neither noise nor a change"
        outcomes.append(Outcome(wire, changed, expected, problem))
        trace.unlink()
    return outcomes


def table(title: str, outcomes: Sequence[Outcome]) -> str:
    rows = [
        f"\n\n{title}",
        f"{'step':8}{'op':20}{'edits':>6}{'change a value':>16}{'found':>7}{'inert':>7}{'match':>7}",
    ]
    kinds = dict.fromkeys((o.wire.step, o.wire.kind) for o in outcomes)
    for step, kind in [*kinds, ("all", "")]:
        those = [o for o in outcomes if step == "all" or (o.wire.step, o.wire.kind) == (step, kind)]
        live = [o for o in those if o.expected != "match"]
        inert = [o for o in those if o.expected == "match"]
        found, match = sum(not o.problem for o in live), sum(not o.problem for o in inert)
        rows.append(f"{step:8}{kind:20}{len(those):6}{len(live):16}{found:7}{len(inert):7}{match:7}")
    return "\n".join(rows)


def pick(plan: Plan, an_op: int, *, seed: int) -> list[Wire]:
    """At most so many of each op's edits."""
    by_op: dict[tuple[str, str], list[Wire]] = {}
    for wire in wires(plan):
        by_op.setdefault((wire.step, wire.op), []).append(wire)
    rng = random.Random(seed)
    return [wire for many in by_op.values() for wire in rng.sample(many, min(an_op, len(many)))]


def report(capsys: pytest.CaptureFixture[str], title: str, outcomes: Sequence[Outcome]) -> None:
    with capsys.disabled():
        print(table(title, outcomes))
    wrong = [f"{o.wire}, changed by {o.changed:.2g}, expected {o.expected}: {o.problem}" for o in outcomes if o.problem]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("an_op", [1, pytest.param(1000, marks=pytest.mark.slow)], ids=["one an op", "all"])
def test_one_wrong_wire_is_the_only_fault(micro: Bench, capsys: pytest.CaptureFixture[str], an_op: int) -> None:
    chosen = pick(micro.plan, an_op, seed=2)
    assert len(chosen) >= 80
    without = {(s, op.name) for s in ("encode", "decode") for op in micro.plan.steps[s].ops if op.inputs}
    without -= {(w.step, w.op) for w in chosen}
    assert len(without) <= 8, "ops whose every input has a size of its own"
    outcomes = run(micro, chosen, planned_anew=True)
    assert sum(o.expected != "match" for o in outcomes) >= 0.95 * len(chosen)
    report(capsys, "one wrong wire, lifetimes planned anew", outcomes)


@pytest.mark.parametrize("many", [24, pytest.param(1000, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_wire_to_a_dead_buffer_is_stale(micro: Bench, capsys: pytest.CaptureFixture[str], many: int) -> None:
    plan = micro.plan
    dead = [wire for wire in wires(plan) if overwritten(plan, wire) == "taken"]
    assert len(dead) >= 200
    outcomes = run(micro, random.Random(2).sample(dead, min(many, len(dead))), planned_anew=False)
    report(capsys, "one wrong wire to a dead buffer, nothing planned anew", outcomes)


def test_a_dead_value_of_another_order_in_memory(micro: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Attention's output lies token by token; who reads its place as another value reads it so."""
    op, dead = "model.encoder.layers.1.add_1", "model.encoder.layers.0.self_attn.matmul_1"
    chosen = [w for w in wires(micro.plan) if (w.op, w.port, w.wired) == (op, "a", dead)]
    assert [overwritten(micro.plan, w) for w in chosen] == ["taken"]
    report(capsys, "a dead value of another order", run(micro, chosen, planned_anew=False))
