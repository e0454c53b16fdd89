"""Lint: what is wrong with a run by its own records, without a reference and without arithmetic.

A `Finding` is one suspicion; it never makes a run diverge by itself. Here are the rules for one traced run: an op that
changed nothing, bytes that changed without a declared write, bytes that nobody wrote. Rules for a plan that was never
run belong to the engine that has plans (probes/lint.py). Leaves out everything that needs expected values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from firstbad.graph import READ_CHANGED, READ_UNWRITTEN, Graph, Op, Value
from firstbad.stale import stale

if TYPE_CHECKING:
    from firstbad.trace import Trace

RULES: Mapping[str, str] = {
    "read_before_written": "an op reads what no op has made yet",
    "never_read": "a value is made, or a weight is there, and nobody reads it",
    "reused": "a buffer is taken by another value before its last reader",
    "overlap": "two values that are alive at the same time share bytes",
    "extent": "an op reads less or more than its producer wrote",
    "in_place": "an op writes over a value that is still needed",
    "alignment": "a value starts where no vector load should",
    "weight_name": "an op uses another's weight although there is one of its own name",
    "siblings": "an op is wired unlike the same op of its sibling layers",
    "changed_nothing": "an op ran and left its output as it was, or as its input was",
    "undeclared_write": "bytes changed although no op declared a write there",
    "unwritten": "an op read bytes that nobody wrote",
    "weight_changed": "a weight is no longer what was loaded",
    "stale": "values were read when other ops had written over them: the probe came too late",
}

KEEPS = frozenset(
    "view reshape permute transpose contiguous cont copy cpy dup clone identity get_rows set_rows dropout causal_mask"
    " mask".split()
)
"""Kinds of op whose output may equal an input bit for bit: views, copies, rows (which may be all), a dropout that is
off, an empty mask."""


NOTHING_LATE: Mapping[int, Value] = {}


@dataclass(frozen=True)
class Finding:
    """One suspicion. `op` is where it would show, `value` the value concerned, `other` what stands in its way."""

    rule: str
    step: str
    op: str
    value: str
    text: str
    other: str = ""
    source: str = "plan"  # or "trace"

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.op, self.value, self.other} - {""})


def lint_run(trace: Trace) -> tuple[Finding, ...]:
    """Every finding of a run that was recorded."""
    return lint_trace(trace.graph, trace.outputs, stale(trace))


def lint_trace(
    graph: Graph, outputs: Mapping[str, Any], late: Mapping[int, Value] = NOTHING_LATE
) -> tuple[Finding, ...]:
    """Every finding of one run, in execution order; the same op in later steps is not repeated.

    `late`: what was read too late (see stale.py). What stood in memory then says nothing of the engine.
    """
    found: dict[tuple[str, str, str], Finding] = {}
    rules = _stale(graph, late) if late else (*_reads(graph), *_changed_nothing(graph))
    for finding in (*rules, *_weights(outputs)):
        found.setdefault((finding.rule, finding.op, finding.value), finding)
    order = {op.name: op.id for op in reversed(graph.ops)}
    return tuple(sorted(found.values(), key=lambda f: order.get(f.op, -1)))


def predicts(finding: Finding, fault: Mapping[str, Any]) -> bool:
    """Whether a finding speaks of a fault (as a result has it): of its op, or of a value that its cause names."""
    detail = fault["cause"]["detail"]
    named = {fault["value"], *(detail.get(k) for k in ("input", "read", "overwritten_by", "instead_of", "weight"))}
    steps = {fault["step"].partition(".")[0], *(s["step"].partition(".")[0] for s in fault["sites"])}
    return bool(finding.names & named) and (not finding.step or finding.step.partition(".")[0] in steps)


def extra(findings: Iterable[Finding], faults: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Findings as a result carries them, each beside the fault that it speaks of ("" where there is none)."""
    rows = []
    for finding in findings:
        fault = next((f for f in faults if predicts(finding, f)), None)
        rows.append({**asdict(finding), "fault": fault["value"] if fault else ""})
    return rows


def _reads(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops:
        for read in op.reads:
            value = graph.values[read.value] if read.value >= 0 else None
            name = value.name if value else ""
            if read.state == READ_UNWRITTEN:
                text = f"{op.name} reads {read.extent:,} bytes in `{read.slot}` that nobody wrote"
                yield Finding("unwritten", op.step, op.name, name, text, source="trace")
            elif read.state == READ_CHANGED and value is not None:
                writers = [graph.values[v] for v in read.overwritten_by]
                if writers:
                    rule = "in_place" if _same_op(graph, value, writers[-1]) else "reused"
                    other = writers[-1].name
                    text = f"{op.name} reads {name} after {other} was written over it"
                    yield Finding(rule, op.step, op.name, name, text, other, "trace")
                else:
                    text = f"{name} changed before {op.name} read it, and no op declared a write there"
                    last = _last_good(graph, value, op)
                    if last is not None:
                        text += f"; it was still right when {last.name} ({last.step}) read it"
                    other = last.name if last else ""
                    yield Finding("undeclared_write", op.step, op.name, name, text, other, "trace")


def _same_op(graph: Graph, value: Value, writer: Value) -> bool:
    """Whether the op that wrote over the value had it as an input: an op in place."""
    return writer.op >= 0 and any(read.value == value.id for read in graph.ops[writer.op].reads)


def _last_good(graph: Graph, value: Value, before: Op) -> Op | None:
    readers = [graph.ops[i] for i in graph.readers.get(value.id, ()) if i < before.id]
    good = [op for op in readers if any(r.value == value.id and r.state != READ_CHANGED for r in op.reads)]
    return good[-1] if good else None


def _changed_nothing(graph: Graph) -> Iterator[Finding]:
    """Outputs that equal what stood in their place before, or an input; by hashes, so only where they were taken."""
    standing: dict[int, Value] = {}  # address → the value written there last
    for op in graph.ops:
        for written in op.writes if not op.attrs.get("alone") else ():  # what nothing reads may be anything
            value = graph.values[written]
            before = standing.get(value.address) if value.address else None
            source = _copied(graph, op, value)
            if source is not None:
                text = f"{op.name} gave back {source.name} bit for bit: it computed nothing"
                yield Finding("changed_nothing", op.step, op.name, value.name, text, source.name, "trace")
            elif before is not None and _left(graph, op, value, before):
                text = f"{op.name} left what {before.name} ({before.step}) had put there: it wrote nothing"
                yield Finding("changed_nothing", op.step, op.name, value.name, text, before.name, "trace")
            if value.address:
                standing[value.address] = value


def _copied(graph: Graph, op: Op, value: Value) -> Value | None:
    if op.kind.partition(".")[0] in KEEPS or not value.hash or not _is_float(value):
        return None
    for read in op.reads:
        source = graph.values[read.value] if read.value >= 0 else None
        if source is not None and source.kind != "weight" and _equal(source, value):
            return source
    return None


def _left(graph: Graph, op: Op, value: Value, before: Value) -> bool:
    """The same bytes as before, from an op that had other inputs than whoever put them there."""
    if not value.hash or not _is_float(value) or not _equal(before, value):
        return False
    earlier = graph.ops[before.op] if before.op >= 0 else None
    return earlier is None or earlier.name != op.name or _inputs(graph, earlier) != _inputs(graph, op)


def _inputs(graph: Graph, op: Op) -> list[int]:
    return [graph.values[r.value].hash for r in op.reads if r.value >= 0]


def _equal(a: Value, b: Value) -> bool:
    return a.hash == b.hash != 0 and a.dtype == b.dtype and math.prod(a.shape) == math.prod(b.shape)


def _is_float(value: Value) -> bool:
    return "float" in value.dtype


def _stale(graph: Graph, late: Mapping[int, Value]) -> Iterator[Finding]:
    first = graph.values[min(late)]
    over = late[first.id].name
    text = f"{len(late)} values were read too late, the first of them after {over} was written over it"
    yield Finding("stale", first.step, first.name, first.name, text, over, "trace")


def _weights(outputs: Mapping[str, Any]) -> Iterator[Finding]:
    for name in outputs.get("weights_changed", ()):
        text = f"the weight {name} was written over during the run"
        yield Finding("weight_changed", "", "", str(name), text, source="trace")
