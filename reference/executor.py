"""Executes one recorded ATen op with any inputs, in any floating-point dtype: the arithmetic of a replay.

What a trace file names is data from anywhere, so only ATen ops that compute a tensor from tensors are run: nothing
that writes in place, draws random numbers, or touches a file. Leaves out which op to run with what: that is
firstbad/replay.py.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload, OpOverloadPacket

from firstbad.errors import CompareError
from firstbad.graph import Op

from . import call, conditions, grouped, sequential

WEIGHT_BUDGET = 1 << 30
"""Bytes of weights kept in the replay's dtypes; the least recently used go first."""

INPUT_BUDGET = 96 << 20
INPUT_LARGEST = 16 << 20
"""Bytes of converted inputs kept in all and of one: a decode step reads the same keys and values as the one before."""

PRIVATE = {
    *("_unsafe_view", "_reshape_alias", "_reshape_copy", "_to_copy", "_softmax", "_log_softmax", "_safe_softmax"),
    *("_conj", "_stack", "_unsafe_index", "_unsafe_index_put", "_fused_rms_norm", "_adaptive_avg_pool2d"),
    *("_native_batch_norm_legit_no_training", "_scaled_dot_product_flash_attention_for_cpu", "_convolution"),
    *("__and__", "__or__", "__xor__", "_grouped_mm"),
    *("_scaled_dot_product_attention_math", "_weight_norm", "_prelu_kernel", "_thnn_fused_lstm_cell"),
}
"""Ops with a leading underscore are internal (some crash on wrong sizes): these are met in recordings."""

TEXT_ARGUMENTS = {
    *("approximate", "mode", "reduce", "rounding_mode", "padding", "indexing", "equation", "norm", "interpolation"),
    *("pad_mode", "side"),
}
"""The string arguments that are words of a computation; any other (a file's name) is refused."""

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Executor:
    """The model's ops, with its weights at hand; see the protocol in firstbad/replay.py."""

    stacks = True
    """An op does the same in every step, so that several can be computed together (firstbad/stack.py)."""

    weight_budget = WEIGHT_BUDGET
    input_budget = INPUT_BUDGET
    input_largest = INPUT_LARGEST

    def __init__(self, weights: Mapping[str, np.ndarray], minima: Mapping[str, np.ndarray] | None = None) -> None:
        self._weights = weights
        self.minima = minima or {}
        """Of quantised weights: what each block adds to all of its numbers, [rows, blocks]; see arithmetic.py."""
        self._cache: OrderedDict[tuple[str, str], torch.Tensor] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._inputs: OrderedDict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        self._input_bytes = 0

    def weight(self, name: str) -> np.ndarray:
        if name not in self._weights:
            raise CompareError(f"no weight `{name}` in the model: the trace is of another one")
        return self._weights[name]

    def run(self, op: Op, inputs: Mapping[int, np.ndarray], dtype: str) -> list[np.ndarray]:
        if dtype not in DTYPES:
            raise CompareError(f"cannot replay in {dtype}: known are {', '.join(DTYPES)}")
        floating = DTYPES[dtype]
        target = _target(op.kind)
        borrowed: set[int] = set()

        def look_up(value: int) -> torch.Tensor:
            if value in inputs:
                t = _tensor(inputs[value])
                if t.is_floating_point() and t.dtype != floating:
                    t = self.derived(t, dtype, lambda original: original.to(floating))
            else:
                t = self._weight_as(self._weight_name(op, value), dtype)
            borrowed.add(t.untyped_storage().data_ptr())
            return t

        args, kwargs = call.decode(op.attrs, look_up, floating)
        try:
            with torch.inference_mode():
                result = _run(target, op, args, kwargs)
        except CompareError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, MemoryError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise CompareError(f"cannot replay {op.kind} `{op.name}` of {op.step} in {dtype}: {reason}") from None
        return [_out(t, floating, borrowed) for t in call.tensors(result)]

    def scale(self, op: Op, inputs: Mapping[int, np.ndarray], output: np.ndarray) -> np.ndarray | None:
        found = grouped.condition if op.kind.startswith("aten._grouped_mm.") else conditions.of(op.kind)
        given_output = conditions.of_output(op.kind)
        if found is None and given_output is None:
            return None
        args, kwargs = self._arguments(op, inputs)
        with torch.inference_mode():
            if given_output is not None:
                made = _tensor(output).to(torch.float32)
                scale: torch.Tensor | None = conditions.by_rows(given_output, made, *args, **kwargs)
            elif found is not None:
                scale = found(_Absolutes(self, op), *args, **kwargs)
        if scale is None:
            return None
        if scale.shape != output.shape and scale.numel() != 1:
            scale = scale.reshape(output.shape) if scale.numel() == output.size else scale.expand(output.shape)
        return np.asarray(scale.to(torch.float32).numpy())

    def sequential(
        self, op: Op, inputs: Mapping[int, np.ndarray], samples: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        found = grouped.sequential if op.kind.startswith("aten._grouped_mm.") else sequential.of(op.kind)
        if found is None:
            return None
        args, kwargs = self._arguments(op, inputs)
        with np.errstate(over="ignore", invalid="ignore"):  # a mask in the place of what is multiplied: no order helps
            return found(sequential.Sampler(samples, seed), *args, **kwargs)

    def _arguments(self, op: Op, inputs: Mapping[int, np.ndarray]) -> call.Call:
        """The call's arguments in float32."""

        def look_up(value: int) -> torch.Tensor:
            if value in inputs:
                t = _tensor(inputs[value])
                return t.to(torch.float32) if t.is_floating_point() else t
            return self._weight_as(self._weight_name(op, value), "float32")

        return call.decode(op.attrs, look_up, torch.float32)

    def _weight_name(self, op: Op, value: int) -> str:
        names = op.attrs.get("weights", {})
        name = names.get(str(value)) if isinstance(names, Mapping) else None
        if not isinstance(name, str):
            raise CompareError(f"no array for input {value} of {op.kind} `{op.name}` in step {op.step}")
        return name

    def _weight_as(self, name: str, dtype: str) -> torch.Tensor:
        original = _tensor(self.weight(name))
        if not original.is_floating_point() or original.dtype == DTYPES[dtype]:
            return original
        return self.cached((name, dtype), lambda: original.to(DTYPES[dtype]))

    def derived(self, t: torch.Tensor, what: str, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """`make(t)`, kept while the budget lasts; `t` is kept with it, so that its address is not given to another."""
        key = (t.data_ptr(), t.shape, t.stride(), t.dtype, what)
        with self._lock:
            if key in self._inputs:
                self._inputs.move_to_end(key)
                return self._inputs[key][1]
        made = make(t)
        if made.nbytes <= self.input_largest:
            with self._lock:
                self._inputs[key] = (t, made)
                self._input_bytes += made.nbytes
                while self._input_bytes > self.input_budget:
                    _, (_, dropped) = self._inputs.popitem(last=False)
                    self._input_bytes -= dropped.nbytes
        return made

    def cached(self, key: tuple[str, str], make: Any) -> torch.Tensor:
        """What is derived from a weight, made once while the budget lasts."""
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        made: torch.Tensor = make()
        with self._lock:
            if key not in self._cache:
                self._cache[key] = made
                self._cached_bytes += made.nbytes
            while self._cached_bytes > self.weight_budget and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._cached_bytes -= dropped.nbytes
        return made


class _Absolutes:
    """|w| of the op's weights, kept: a decode step reads the same ones again and again."""

    def __init__(self, executor: Executor, op: Op) -> None:
        self._executor = executor
        names = op.attrs.get("weights", {})
        self._names = {executor.weight(n).__array_interface__["data"][0]: n for n in names.values()}

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        name = self._names.get(t.data_ptr())
        if name is None:
            return self._executor.derived(t, "abs", torch.abs)
        return self._executor.cached((name, "abs"), t.abs)


@lru_cache(maxsize=1024)
def _target(kind: str) -> OpOverload:
    """The ATen op that a trace names; refused unless it only computes a tensor."""
    match = re.fullmatch(r"aten\.(_{0,2}[A-Za-z][A-Za-z0-9_]*)\.([A-Za-z][A-Za-z0-9_]*)", kind)
    packet = getattr(torch.ops.aten, match[1], None) if match else None
    if match is None or not isinstance(packet, OpOverloadPacket) or match[2] not in call.overloads(packet):
        raise CompareError(f"cannot replay `{kind}`: it is no ATen op of this PyTorch")
    target: OpOverload = getattr(packet, match[2])
    schema = target._schema
    texts = {a.name for a in schema.arguments if "str" in str(a.type).lower() and "stream" not in str(a.type).lower()}
    safe = (
        not schema.is_mutable
        and any("Tensor" in str(r.type) for r in schema.returns)
        and texts <= TEXT_ARGUMENTS
        and not any(str(a.type) in ("Storage", "Generator", "Stream", "Any") for a in schema.arguments)
        and (not match[1].startswith("_") or match[1] in PRIVATE or match[1].startswith("_foreach_"))
    )
    if not safe:
        raise CompareError(f"cannot replay `{kind}`: only ops that compute a tensor from tensors are run from a file")
    return target


def _run(target: OpOverload, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
    word = op.kind.split(".")[1]
    if word in ("view", "_unsafe_view", "_reshape_alias") and isinstance(args[1], list):
        return args[0].reshape(args[1])  # replayed inputs may have other strides
    if word in ("as_strided", "as_strided_scatter"):
        layout = op.attrs.get("layout")
        if isinstance(layout, list) and all(isinstance(s, int) for s in layout):
            base = torch.empty_strided(args[0].shape, layout, dtype=args[0].dtype)
            args = [base.copy_(args[0]), *args[1:]]
    if word == "_grouped_mm":
        return grouped.product(*args, **kwargs)
    if word == "argmax" and args[0].dtype in (torch.bfloat16, torch.float16):
        args = [args[0].float(), *args[1:]]
    return target(*args, **kwargs)


class _Borrowed:
    """A read-only array as NumPy's interface lets PyTorch take it without a warning; nothing here writes to it."""

    def __init__(self, array: np.ndarray) -> None:
        self.keep = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _tensor(array: np.ndarray) -> torch.Tensor:
    """An array as a tensor, without a copy where PyTorch can hold it."""
    array = np.asarray(array)
    if array.dtype.byteorder == ">" or any(s < 0 or s % array.itemsize for s in array.strides):
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = np.asarray(_Borrowed(array)) if array.size else array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise CompareError(f"cannot replay with an array of {array.dtype}") from None


def _out(t: torch.Tensor, floating: torch.dtype, borrowed: set[int]) -> np.ndarray:
    if t.is_floating_point() and t.dtype != floating:
        t = t.to(floating)
    if t.dtype in (torch.bfloat16, torch.float16):
        t = t.float()
    t = t.resolve_conj().resolve_neg()
    array: np.ndarray = t.numpy()
    if t.untyped_storage().data_ptr() in borrowed:
        array.flags.writeable = False  # a view of an input, which may be a mapped file
    return array
