"""A plan in the form that the C engine reads: flat text, each name joined with its buffer and offset.

Written for one run: prompt, end token and suppressed ids are in it. See engine/program.h for the words. Leaves out
the weights themselves, which are laid end to end in a file of their own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from firstbad.errors import UsageError
from firstbad.precision import LOW
from firstbad.run import Prepared
from firstbad.weights import stored_as

from .kinds import kind_of
from .plan import Plan, PlanOp, Step, Tensor
from .plan_check import TYPES, read_shape, row_bytes

DTYPES = {"float32": 0, "int64": 6}  # of firstbad.h
_ALIGN = 64
BLOCKS = {  # stored as → (numbers, bytes) of a block, as in engine/blocks.c
    "float32": (1, 4),
    "float16": (1, 2),
    "bfloat16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
    "MXFP4": (32, 17),
}


def lower(plan: Plan, prepared: Prepared, *, max_tokens: int | None = None, poison: bool = False) -> str:
    """The program for one run; `poison` fills every buffer with NaN first."""
    room = plan.steps["prefill"].limits["t"]
    if not 0 < len(prepared.prompt) <= room:
        raise UsageError(f"the plan has room for a prompt of 1 to {room} tokens, this one has {len(prepared.prompt)}")
    most = plan.positions - len(prepared.prompt) + 1
    tokens = most if max_tokens is None else min(max_tokens, most)
    begin = sorted({*prepared.suppress, *prepared.begin_suppress})
    buffers = {name: i for i, name in enumerate(plan.buffers)}
    weights = {name: i for i, name in enumerate(plan.weights)}
    offsets, _ = weight_offsets(plan)
    lines = [
        "firstbad-program 1",
        f"config {plan.heads} {plan.positions} {prepared.eos} {tokens} {int(poison)}",
        _numbers("prompt", prepared.prompt),
        _numbers("suppress", prepared.suppress),
        _numbers("begin_suppress", begin),
        _numbers("buffers", tuple(plan.buffers.values())),
        f"weights {len(weights)}",
        *(f"{n} {_type(plan, n)} {offsets[n]} {len(shape)} {_words(shape)}" for n, shape in plan.weights.items()),
        f"steps {len(plan.steps)}",
    ]
    for name, step in plan.steps.items():
        lines += [
            f"step {name}",
            _tensor("input", step.tensors[step.input], buffers),
            _tensor("result", step.tensors[step.result], buffers),
            f"{step.limits.get('w', plan.positions)} {_numbers('pages', step.pages)} {len(step.ops)}",
            *(_op(plan, step, op, buffers, weights) for op in step.ops),
        ]
    return "\n".join([*lines, "end", ""])


def _type(plan: Plan, name: str) -> int:
    return 1 + TYPES.index(plan.types[name]) if name in plan.types else 0


def weight_offsets(plan: Plan) -> tuple[Mapping[str, int], int]:
    """Where each weight starts in the weights file, and how long the file is."""
    offsets = {}
    end = 0
    for name, shape in plan.weights.items():
        offsets[name] = end
        numbers, size = BLOCKS[plan.types.get(name, "float32")]
        end += -(-math.prod(shape) // numbers * size // _ALIGN) * _ALIGN
    return offsets, end


def write_weights(
    plan: Plan,
    weights: Mapping[str, np.ndarray],
    path: Path,
    *,
    only: Collection[str] | None = None,
    blocks: Mapping[str, tuple[str, np.ndarray]] | None = None,
) -> None:
    """The plan's weights end to end, as the engine maps them; `only` these, zeros for the others. `blocks`: those that
    the model's file stores so (see Prepared.stored)."""
    offsets, end = weight_offsets(plan)
    with path.open("wb") as file:
        for name, shape in plan.weights.items():
            array = weights.get(name)
            if array is None:
                raise UsageError(f"the model has no weight `{name}`, which the plan uses: plan it for this model")
            if array.shape != shape or array.dtype != np.float32:
                raise UsageError(
                    f"the model's `{name}` is {array.dtype} {list(array.shape)}, the plan wants float32 {list(shape)}: "
                    "plan it for this model"
                )
            if only is None or name in only:
                file.seek(offsets[name])
                file.write(_stored(name, array, plan.types.get(name, "float32"), blocks or {}).data)
        file.truncate(end)


def _stored(name: str, array: np.ndarray, stored: str, blocks: Mapping[str, tuple[str, np.ndarray]]) -> np.ndarray:
    if stored in LOW or stored == "float32":
        return np.ascontiguousarray(stored_as(np.ascontiguousarray(array), stored))
    kind, rows = blocks.get(name, ("", array))
    if kind != stored:
        raise UsageError(f"the plan wants `{name}` as {stored}, and the model's file has it as {kind or 'numbers'}")
    return np.ascontiguousarray(rows)


def _op(plan: Plan, step: Step, op: PlanOp, buffers: Mapping[str, int], weights: Mapping[str, int]) -> str:
    kind = kind_of(op.kind)
    assert kind is not None  # the plan was checked
    return " ".join(
        [
            f"op {op.kind} {op.name} {len(op.attrs)}",
            *(f"{key} {float(value)!r}" for key, value in op.attrs.items()),
            str(len(kind.inputs)),
            *_inputs(plan, step, op, buffers),
            str(len(op.weights)),
            *(f"{port} {weights[op.weights[port]]}" for port in kind.weights if port in op.weights),
            _tensor("y", step.tensors[op.name], buffers),
        ]
    )


def _inputs(plan: Plan, step: Step, op: PlanOp, buffers: Mapping[str, int]) -> Iterator[str]:
    """Each port's name joined with the table of tensors: this is where a wire gets its buffer."""
    kind = kind_of(op.kind)
    assert kind is not None  # the plan was checked
    for port in kind.inputs:
        tensor = plan.tensor(step.name, op.inputs[port])
        assert tensor is not None  # the plan was checked
        yield _tensor(port, tensor, buffers, whole_cache=port in kind.cached, window="window" in op.attrs)


def _tensor(
    port: str, tensor: Tensor, buffers: Mapping[str, int], *, whole_cache: bool = False, window: bool = False
) -> str:
    shape = read_shape(tensor, cached=whole_cache, window=window)
    row = row_bytes(tensor) if tensor.rows else 0
    begins = (2 if window else 1) if whole_cache and tensor.rows else 0  # of program.h: window, start, own
    order = tensor.order or tuple(range(len(shape)))
    return (
        f"{port} {tensor.name} {DTYPES[tensor.dtype]} {buffers[tensor.buffer]} {tensor.offset} {row} {begins} "
        f"{len(shape)} {_words(shape)} {_words(order)}"
    )


def _numbers(keyword: str, numbers: tuple[int, ...] | list[int]) -> str:
    return _words((keyword, len(numbers), *numbers))


def _words(items: tuple[int | str, ...]) -> str:
    return " ".join(str(item) for item in items)
