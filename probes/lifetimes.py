"""A place in memory for every tensor of a plan, from who lives when: buffers are really reused.

Tensors that live on after their step get a buffer of their own (a cache: one for all steps); all others share one
arena, largest first, each at the lowest offset that no tensor alive at the same time has. Leaves out in-place ops: an
output never lies on an input of its op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .plan import Plan, Step, Tensor, sizes_at
from .plan_check import row_bytes

ARENA = "arena"
_ALIGN = 64


def assign(plan: Plan, *, reuse: bool = True) -> Plan:
    """The plan with buffers and offsets assigned anew; without `reuse` every tensor has bytes of its own."""
    buffers: dict[str, int] = {ARENA: _ALIGN}
    steps = {}
    start = 0
    for step in plan.steps.values():
        kept = {name: _own_buffer(plan, t, step, buffers) for name, t in step.tensors.items() if t.kept}
        shared = [t for name, t in step.tensors.items() if name not in kept]
        offsets, end = _place(step, shared, start, reuse=reuse)
        buffers[ARENA] = max(buffers[ARENA], end)
        if not reuse:
            start = end
        placed = {t.name: replace(t, buffer=ARENA, offset=offsets[t.name]) for t in shared}
        tensors = {name: kept.get(name) or placed[name] for name in step.tensors}
        steps[step.name] = replace(step, tensors=tensors)
    return replace(plan, buffers=buffers, steps=steps)


def lifetimes(step: Step) -> Mapping[str, tuple[int, int]]:
    """Tensor → (op that makes it, last op that reads it); -1 and the number of ops stand for before and after."""
    end = len(step.ops)
    made = {op.name: i for i, op in enumerate(step.ops)}
    lives = {name: (made.get(name, -1), made.get(name, -1)) for name in step.tensors}
    for i, op in enumerate(step.ops):
        for name in op.inputs.values():
            if name in lives:
                born, last = lives[name]
                # read before it is made: what an earlier run of the step left behind must survive
                lives[name] = (born, max(last, i)) if born < i else (-1, end)
    if step.result in lives:
        lives[step.result] = (lives[step.result][0], end)
    return lives


def _largest(step: Step) -> dict[str, int]:
    return sizes_at(step, step.limits["t"], step.limits["n"])


def _own_buffer(plan: Plan, tensor: Tensor, step: Step, buffers: dict[str, int]) -> Tensor:
    size = plan.positions * row_bytes(tensor) if tensor.rows else tensor.bytes(_largest(step))
    buffers[tensor.name] = max(buffers.get(tensor.name, 0), size)
    return replace(tensor, buffer=tensor.name, offset=0)


def _place(step: Step, tensors: list[Tensor], start: int, *, reuse: bool) -> tuple[dict[str, int], int]:
    lives = lifetimes(step)
    largest = _largest(step)
    sizes = {t.name: -(-t.bytes(largest) // _ALIGN) * _ALIGN for t in tensors}
    offsets: dict[str, int] = {}
    end = start
    if not reuse:
        for t in tensors:
            offsets[t.name] = end
            end += sizes[t.name]
        return offsets, end
    for t in sorted(tensors, key=lambda t: -sizes[t.name]):
        born, last = lives[t.name]
        taken = sorted(
            (offsets[o], offsets[o] + sizes[o]) for o in offsets if lives[o][0] <= last and lives[o][1] >= born
        )
        offset = 0
        for low, high in taken:
            if offset + sizes[t.name] <= low:
                break
            offset = max(offset, high)
        offsets[t.name] = offset
        end = max(end, offset + sizes[t.name])
    return offsets, end
