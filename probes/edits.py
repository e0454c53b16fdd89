"""Edits of a plan, to plant a fault or to repair one: another input, another place, another kernel or constant.

Each gives a new plan; nothing is checked here beyond the names, so that a broken plan can be made and run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import replace

from firstbad.errors import UsageError

from .lifetimes import assign
from .plan import Plan, PlanOp


def replan(plan: Plan) -> Plan:
    """Lifetimes and places worked out anew, as the planner would have for this call list."""
    return assign(plan)


def rewire(plan: Plan, step: str, op: str, port: str, tensor: str, *, planned_anew: bool = True) -> Plan:
    """Feeds another tensor to one input of one op.

    Without `planned_anew` every place stays: the tensor's buffer may hold something else by the time it is read.
    """
    if plan.tensor(step, tensor) is None:
        raise UsageError(f"no tensor `{tensor}` in {step}{_close(tensor, plan.steps[step].tensors)}")

    def edit(found: PlanOp) -> PlanOp:
        if port not in found.inputs:
            raise UsageError(f"`{op}` in {step} has no input `{port}`: it has {', '.join(found.inputs) or 'none'}")
        return replace(found, inputs={**found.inputs, port: tensor})

    edited = edit_op(plan, step, op, edit)
    return replan(edited) if planned_anew else edited


def move(plan: Plan, step: str, tensor: str, onto: str) -> Plan:
    """Puts one tensor where another lies: where both are alive, one overwrites the other."""
    tensors = plan.steps[step].tensors
    for name in (tensor, onto):
        if name not in tensors:
            raise UsageError(f"no tensor `{name}` in {step}{_close(name, tensors)}")
    moved = replace(tensors[tensor], buffer=tensors[onto].buffer, offset=tensors[onto].offset)
    return plan.with_step(replace(plan.steps[step], tensors={**tensors, tensor: moved}))


def set_attr(plan: Plan, step: str, op: str, key: str, value: float) -> Plan:
    """Gives one op another constant; `trap` ends the run there (a signal's number; 0 hangs; -S exits with S)."""
    return edit_op(plan, step, op, lambda found: replace(found, attrs={**found.attrs, key: value}))


def set_kind(plan: Plan, step: str, op: str, kind: str) -> Plan:
    """Runs one op by another kernel."""
    return edit_op(plan, step, op, lambda found: replace(found, kind=kind))


def set_weight(plan: Plan, step: str, op: str, port: str, weight: str) -> Plan:
    """Gives one op another weight."""
    return edit_op(plan, step, op, lambda found: replace(found, weights={**found.weights, port: weight}))


def edit_op(plan: Plan, step: str, op: str, edit: Callable[[PlanOp], PlanOp]) -> Plan:
    """Any edit of one op."""
    if step not in plan.steps:
        raise UsageError(f"no step `{step}` in the plan: it has {', '.join(plan.steps)}")
    ops = plan.steps[step].ops
    if not any(o.name == op for o in ops):
        raise UsageError(f"no op `{op}` in {step}{_close(op, [o.name for o in ops])}")
    edited = tuple(edit(o) if o.name == op else o for o in ops)
    return plan.with_step(replace(plan.steps[step], ops=edited))


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean `{close[0]}`?" if close else ""
