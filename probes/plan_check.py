"""Reads a plan file that may come from anywhere, and refuses in one line what the engine could not run safely.

Refused: unknown kinds and ports, names without a tensor, sizes that do not fit a kernel, places outside a buffer.
Not refused, since these are the faults to be found: a wrong wire, two live tensors in one place, a wrong constant.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from firstbad.errors import UsageError

from .kinds import KINDS, NAIVE, ROWS, is_further, kind_of
from .plan import FORMAT, ITEM_BYTES, STEPS, VERSION, Plan, PlanOp, Step, Tensor, numbers, sizes_at

TYPES = ("float16", "bfloat16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "MXFP4")
"""How a weight may be stored beside float32, in the order of engine/blocks.h."""

_NAME = re.compile(r"[A-Za-z0-9_.:\-]{1,180}")
_DIM = re.compile(r"([1-9][0-9]{0,2})?[tnw]")
_KEY = re.compile(r"[a-z_]{1,15}")
_MAX_BYTES = 1 << 36  # of all buffers
_MAX_OPS = 100_000
_MAX_FILE = 1 << 28
_MAX_ATTRS = 8
_MAX_RANK = 4


def load(path: Path, *, further: bool = False) -> Plan:
    """The plan in a file, checked; UsageError in one line where it is none. `further`: as for `check`."""
    try:
        if path.stat().st_size > _MAX_FILE:
            raise UsageError(f"`{path}` is too large for a plan: give the JSON file that the planner wrote")
        data = json.loads(path.read_text("utf-8"), parse_constant=_no_constant)
    except OSError as e:
        raise UsageError(f"cannot read the plan `{path}`: {(e.strerror or str(e)).lower()}") from None
    except RecursionError:
        raise UsageError(f"`{path}` is nested too deeply for a plan: write it anew with the planner") from None
    except ValueError as e:
        raise UsageError(f"`{path}` is not JSON: {str(e).splitlines()[0].lower()}: mend it or write it anew") from None
    reader = _Reader(str(path))
    plan = reader.plan(data)
    check(plan, str(path), further=further)
    return plan


def check(plan: Plan, where: str, *, further: bool = False) -> None:
    """UsageError where the engine could not run the plan. `further`: kernels of a C file beside the engine's exist."""
    if sum(plan.buffers.values()) > _MAX_BYTES:
        raise UsageError(f"the buffers of `{where}` want {sum(plan.buffers.values())} bytes: 64 GiB are the most")
    for step in plan.steps.values():
        odd = next((op for op in step.ops if is_further(op.kind) and not further), None)
        if odd is not None:
            raise UsageError(
                f"op `{odd.name}` of {step.name} in `{where}` is of kind `{odd.kind}`, which the engine has no kernel "
                "of: give the C file that has one with --kernels FILE.c"
            )
        _check_ends(step, where)
        for sizes in _samples(step):
            for tensor in step.tensors.values():
                _check_place(plan, step, tensor, sizes, where)
            for op in step.ops:
                _check_op(plan, step, op, sizes, where)
                _check_pages(plan, step, op, sizes["n"], where)


def _check_ends(step: Step, where: str) -> None:
    """What the engine itself writes and reads: features or tokens in, the chosen token out."""
    fed, result = step.tensors[step.input], step.tensors[step.result]
    one = {"t": 1, "n": 1}
    if step.name == "encode":
        fits = fed.dtype == "float32" and len(fed.shape) == 3
    else:
        fits = fed.dtype == result.dtype == "int64" and result.count(one) == 1 == fed.count(one)
        fits = fits and (step.name == "decode" or "t" in fed.shape)
    if not fits:
        raise UsageError(
            f"`input` and `result` of {step.name} in `{where}` do not fit: features [1, M, 2T] or tokens [1, t] in, "
            "one token of int64 out"
        )


def _samples(step: Step) -> list[dict[str, int]]:
    """Sizes to try: the least, the most and one between, so that no fit is a coincidence."""
    t, n = step.limits["t"], step.limits["n"]
    if step.name == "decode":
        return [sizes_at(step, 1, n_) for n_ in sorted({min(2, n), n // 2 or 1, n})]
    return [sizes_at(step, t_, t_) for t_ in sorted({min(2, t), t // 2 or 1, t})]


def _check_place(plan: Plan, step: Step, tensor: Tensor, sizes: Mapping[str, int], where: str) -> None:
    at = f"tensor `{tensor.name}` of {step.name} in `{where}`"
    if tensor.buffer not in plan.buffers:
        raise UsageError(f"{at} lies in `{tensor.buffer}`, which is no buffer{_close(tensor.buffer, plan.buffers)}")
    end = tensor.offset + tensor.bytes(sizes)
    if tensor.rows:
        end = tensor.offset + row_bytes(tensor) * sizes["n"]
    if end > plan.buffers[tensor.buffer]:
        raise UsageError(f"{at} ends at byte {end} of a buffer of {plan.buffers[tensor.buffer]}: plan it anew")
    if tensor.offset % ITEM_BYTES[tensor.dtype]:
        raise UsageError(f"{at} starts at byte {tensor.offset}: not a multiple of {ITEM_BYTES[tensor.dtype]}")


def _check_op(plan: Plan, step: Step, op: PlanOp, sizes: Mapping[str, int], where: str) -> None:
    at = f"op `{op.name}` of {step.name} in `{where}`"
    kind = kind_of(op.kind)
    if kind is None:
        known = [*KINDS, *(f"naive_{name}" for name in NAIVE)]
        raise UsageError(f"{at} is of kind `{op.kind}`, which the engine has not{_close(op.kind, known)}")
    if tuple(op.inputs) != kind.inputs and set(op.inputs) != set(kind.inputs):
        raise UsageError(
            f"{at} has the inputs {', '.join(op.inputs) or 'none'}: {op.kind} takes {', '.join(kind.inputs) or 'none'}"
        )
    if not set(kind.weights) - kind.optional <= set(op.weights) <= set(kind.weights):
        raise UsageError(
            f"{at} has the weights {', '.join(op.weights) or 'none'}: {op.kind} takes "
            f"{', '.join(kind.weights) or 'none'}"
        )
    counts = {}
    for port, name in op.inputs.items():
        tensor = plan.tensor(step.name, name)
        if tensor is None:
            raise UsageError(f"input `{port}` of {at} is `{name}`, which is no tensor{_close(name, step.tensors)}")
        wanted = "int64" if port in ("ids", "order") else "float32"
        if tensor.dtype != wanted:
            raise UsageError(f"input `{port}` of {at} is `{name}` of {tensor.dtype}: {wanted} is needed")
        shape = read_shape(tensor, cached=port in kind.cached, window="window" in op.attrs)
        counts[port] = math.prod(numbers(shape, sizes))
    for weight in op.weights.values():
        if weight not in plan.weights:
            raise UsageError(f"{at} uses the weight `{weight}`, which the plan lacks{_close(weight, plan.weights)}")
    output = step.tensors[op.name]
    if output.dtype != kind.makes:
        raise UsageError(f"{at} cannot make {output.dtype}")
    shapes = {port: plan.weights[weight] for port, weight in op.weights.items()}
    if not kind.fits(counts, shapes, numbers(output.shape, sizes), op.attrs, plan.heads):
        elements = ", ".join(f"{port} of {count}" for port, count in counts.items())
        raise UsageError(
            f"sizes do not fit in {at}: {elements or 'its weights'} elements for an output of {list(output.shape)}"
        )


def _check_pages(plan: Plan, step: Step, op: PlanOp, n: int, where: str) -> None:
    """A table of pages has a place within the cache for each position."""
    page = int(op.attrs.get("page", 0))
    if op.kind not in ROWS or not page:
        return
    cache = plan.tensor(step.name, op.name if op.kind == "store_rows" else op.inputs["x"])
    assert cache is not None  # the op was checked
    slots = math.prod(int(d) for d in cache.shape[:-1]) if all(isinstance(d, int) for d in cache.shape) else 0
    if not step.pages or len(step.pages) * page < n or max(step.pages) >= slots // page:
        raise UsageError(
            f"`pages` of {step.name} in `{where}` has no place for each of {n} positions in pages of {page} within the "
            f"{slots} slots of `{cache.name}`: mend the table or plan it anew"
        )


def read_shape(tensor: Tensor, *, cached: bool, window: bool = False) -> tuple[int | str, ...]:
    """What a reader sees: of a cache all rows so far, or those of the window, where the port asks for them."""
    if not cached or not tensor.rows:
        return tensor.shape
    axis = tensor.row_axis
    return (*tensor.shape[:axis], "w" if window else "n", *tensor.shape[axis + 1 :])


def row_bytes(tensor: Tensor) -> int:
    """Of one position in a cache."""
    width = math.prod(int(d) for axis, d in enumerate(tensor.shape) if axis != tensor.row_axis)
    return width * ITEM_BYTES[tensor.dtype]


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean `{close[0]}`?" if close else ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of a plan")


class _Reader:
    """JSON data → records; each method takes the data and a path for messages."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, what: str, wanted: str) -> NoReturn:
        raise UsageError(f"{what} in the plan `{self.where}` is not {wanted}: mend it or write the plan anew")

    def table(self, data: Any, what: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail(what, "an object")
        return data

    def name(self, data: Any, what: str) -> str:
        if not isinstance(data, str) or not _NAME.fullmatch(data):
            self.fail(what, "a name of letters, digits and _ . : -")
        return data

    def number(self, data: Any, what: str, low: int, high: int) -> int:
        if type(data) is not int or not low <= data <= high:
            self.fail(what, f"a whole number from {low} to {high}")
        return int(data)

    def flag(self, data: Any, what: str) -> bool:
        if not isinstance(data, bool):
            self.fail(what, "true or false")
        return data

    def plan(self, data: Any) -> Plan:
        data = self.table(data, "the whole")
        if data.get("format") != FORMAT:
            self.fail("`format`", f'"{FORMAT}"')
        if data.get("version") != VERSION:
            self.fail("`version`", f"{VERSION}, the one that this firstbad reads")
        buffers = {
            self.name(k, "a buffer"): self.number(v, f"buffer `{k}`", 1, _MAX_BYTES)
            for k, v in self.table(data.get("buffers"), "`buffers`").items()
        }
        weights = {
            self.name(k, "a weight"): self.shape(v, f"weight `{k}`")
            for k, v in self.table(data.get("weights"), "`weights`").items()
        }
        types = self.table(data.get("types", {}), "`types`")
        for name, stored in types.items():
            if name not in weights or stored not in TYPES:
                self.fail(f"`{name}` of `types`", f"a weight's type of {', '.join(TYPES)}")
        steps = self.table(data.get("steps"), "`steps`")
        if tuple(steps) not in (STEPS, STEPS[1:]):
            self.fail("`steps`", f"the object of {', '.join(STEPS)}, in this order")
        return Plan(
            self.number(data.get("heads"), "`heads`", 1, 1 << 20),
            self.number(data.get("positions"), "`positions`", 1, 1 << 20),
            buffers,
            weights,
            {name: self.step(name, step) for name, step in steps.items()},
            types,
        )

    def shape(self, data: Any, what: str) -> tuple[int, ...]:
        if not isinstance(data, list) or not 1 <= len(data) <= _MAX_RANK:
            self.fail(what, f"a list of 1 to {_MAX_RANK} sizes")
        return tuple(self.number(d, what, 1, 1 << 32) for d in data)

    def pages(self, data: Any, what: str) -> tuple[int, ...]:
        if not isinstance(data, list) or len(data) > 1 << 20:
            self.fail(what, "a list of places")
        return tuple(self.number(place, what, 0, 1 << 20) for place in data)

    def step(self, name: str, data: Any) -> Step:
        data = self.table(data, f"step `{name}`")
        limits = self.table(data.get("limits"), f"`limits` of {name}")
        tensors = {
            self.name(k, f"a tensor of {name}"): self.tensor(k, v, f"tensor `{k}` of {name}")
            for k, v in self.table(data.get("tensors"), f"`tensors` of {name}").items()
        }
        ops = data.get("ops")
        if not isinstance(ops, list) or len(ops) > _MAX_OPS:
            self.fail(f"`ops` of {name}", "a list of ops")
        step = Step(
            name,
            self.name(data.get("input"), f"`input` of {name}"),
            self.name(data.get("result"), f"`result` of {name}"),
            {
                k: self.number(limits.get(k), f"`{k}` of `limits` of {name}", 1, 1 << 20)
                for k in ("t", "n", *(["w"] if "w" in limits else []))
            },
            tensors,
            tuple(self.op(op, f"op {i} of {name}") for i, op in enumerate(ops)),
            self.pages(data.get("pages", []), f"`pages` of {name}"),
        )
        for what, tensor in (("input", step.input), ("result", step.result)):
            if tensor not in tensors:
                self.fail(f"`{what}` of {name}", f"one of its tensors{_close(tensor, tensors)}")
        for op in step.ops:
            if op.name not in tensors:
                self.fail(f"op `{op.name}` of {name}", f"the name of a tensor{_close(op.name, tensors)}")
        return step

    def tensor(self, name: str, data: Any, what: str) -> Tensor:
        data = self.table(data, what)
        shape = data.get("shape")
        if not isinstance(shape, list) or not 1 <= len(shape) <= _MAX_RANK:
            self.fail(f"`shape` of {what}", f"a list of 1 to {_MAX_RANK} sizes")
        dims = tuple(
            d if isinstance(d, str) and _DIM.fullmatch(d) else self.number(d, f"`shape` of {what}", 1, 1 << 32)
            for d in shape
        )
        if data.get("dtype") not in list(ITEM_BYTES):
            self.fail(f"`dtype` of {what}", " or ".join(ITEM_BYTES))
        order = data.get("order", [])
        if order and (not isinstance(order, list) or sorted(map(str, order)) != [str(i) for i in range(len(dims))]):
            self.fail(f"`order` of {what}", f"the numbers 0 to {len(dims) - 1} in some order")
        tensor = Tensor(
            name,
            dims,
            data["dtype"],
            self.name(data.get("buffer"), f"`buffer` of {what}"),
            self.number(data.get("offset"), f"`offset` of {what}", 0, _MAX_BYTES),
            tuple(int(d) for d in order),
            kept=self.flag(data.get("kept", False), f"`kept` of {what}"),
            rows=self.flag(data.get("rows", False), f"`rows` of {what}"),
        )
        if tensor.rows:
            others = [d for axis, d in enumerate(dims) if axis != tensor.row_axis]
            if len(dims) < 2 or any(isinstance(d, str) for d in others) or (len(dims) > 2 and dims[0] != 1):
                self.fail(what, "a cache of rows: [1, t, numbers], t outermost in memory")
        return tensor

    def op(self, data: Any, what: str) -> PlanOp:
        data = self.table(data, what)
        name = self.name(data.get("name"), f"the name of {what}")
        kind = self.name(data.get("kind"), f"the kind of {what}")
        attrs = self.table(data.get("attrs", {}), f"`attrs` of `{name}`")
        if len(attrs) > _MAX_ATTRS:
            self.fail(f"`attrs` of `{name}`", f"{_MAX_ATTRS} at most")
        for key, value in attrs.items():
            finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
            if not _KEY.fullmatch(key) or not finite:
                self.fail(f"`{key}` of `attrs` of `{name}`", "a number under a short name")
        ports = {}
        for key in ("inputs", "weights"):
            wired = self.table(data.get(key, {}), f"`{key}` of `{name}`")
            ports[key] = {port: self.name(v, f"`{port}` of `{name}`") for port, v in wired.items()}
        return PlanOp(name, kind, ports["inputs"], ports["weights"], attrs)
