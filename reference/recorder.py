"""Records every ATen op of a PyTorch run as values and ops of a graph, while it runs and without changing a bit of it.

    with torch.inference_mode(), Recorder(model, writer) as recorder:
        recorder.begin("encode")
        model(recorder.input("x", x))

Under inference_mode the ops are at their natural level (linear, softmax, layer_norm). What is recorded is functional:
a write in place makes a new value, and a view taken before it is derived anew when it is read after it. Arrays go to
the writer at once (nothing is kept), and only those that somebody may want to compare: no views, no copies.

Bit-equal to the plain run of a model whose parameters have requires_grad off: with it on, PyTorch itself folds some
matmuls another way, but not under a dispatch mode.

Leaves out compiled modules (under a dispatch mode they silently run eager: refused), and following numbers that leave
the tensors (`.item()`): they are recorded as the constants they were in this run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from firstbad.errors import CompareError, UsageError
from firstbad.graph import Kind, Op, Read, Value
from firstbad.hashing import hash_array
from firstbad.want import Chosen, EnoughError, chosen

from . import call
from .names import ModulePath, Namer
from .storage import Memory, Root, geometry, span

SAME_TENSOR = {"detach_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "requires_grad_"}
"""In place, but on the tensor's shape only: nothing is written to memory."""

UNTRACKABLE = {"set_", "resize_", "resize_as_", "as_strided_", "set_data"}

COPIES = {
    *("contiguous", "clone", "to", "_to_copy", "reshape", "flatten", "cat", "repeat"),
    *("_reshape_copy", "detach_copy", "view_copy", "lift_fresh_copy"),
}
"""Ops whose whole work may be to copy: where they did only that, the copy is not stored."""

_EVERY, _NONE = chosen(None), chosen(())

SAMPLE = 64
"""Elements compared first, so that a full comparison happens only where it will most likely succeed."""


class Sink(Protocol):
    """What the recorder needs of a TraceWriter."""

    def value(self, v: Value, array: np.ndarray | None) -> Value: ...
    def op(self, op: Op) -> None: ...


@dataclass(frozen=True)
class _Call:
    """A call about to be written down: its template and what it read."""

    op: OpOverload
    template: dict[str, Any]
    reads: list[tuple[int, str]]
    inputs: list[tuple[int, torch.Tensor]]  # value id and the tensor that showed it
    start: int


class Recorder(TorchDispatchMode):
    def __init__(
        self,
        model: nn.Module,
        sink: Sink,
        stored: Chosen = _EVERY,
        stop: Chosen = _NONE,
        follow: Callable[[str, str], np.ndarray | None] | None = None,
    ) -> None:
        """`follow(step, name)`: places that top-k is to give back in place of its own; None: its own."""
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch has no types here
        self.follow = follow
        self.sink = sink
        self.stored = stored
        self.stop = stop
        self.values: list[Value] = []
        self.ops = 0
        self.step = ""
        self.write_seconds = 0.0
        self._memory = Memory()
        self._path = ModulePath(model)
        self._names = Namer(self._path)
        _refuse_compiled(model)
        self._add_weights(model)

    def __enter__(self) -> Recorder:
        self._path.open()
        super().__enter__()  # type: ignore[no-untyped-call]  # PyTorch has no types here
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # PyTorch has no types here
        self._path.close()

    # What the model room says.

    def begin(self, step: str) -> None:
        self.step = step
        self._names.new_step()
        self._memory.forget_dead()

    def input(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` enters the step from outside under this name."""
        with _disable_current_modes():
            value = self._add(name, "input", tensor, hash=hash_array(_array(tensor)))
            self._memory.add(tensor, value.id)
        return tensor

    @contextmanager
    def inside(self, path: str) -> Iterator[None]:
        """Ops outside any module are named under `path`."""
        with self._path.inside(path):
            yield

    def id_of(self, tensor: torch.Tensor) -> int:
        """The value that a tensor shows now."""
        with _disable_current_modes():
            return self._resolve(tensor)

    # What PyTorch says.

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        word = func._schema.name.split("::")[1]
        if word in UNTRACKABLE:
            raise CompareError(f"cannot record {func}: it gives a tensor other memory under way")
        if func._schema.is_mutable and word not in SAME_TENSOR:
            return self._in_place(func, args, kwargs)
        start = time.monotonic_ns()
        result = func(*args, **kwargs)
        inputs = [*call.tensors(args), *call.tensors(kwargs)]
        outputs = list(call.tensors(result))
        if all(any(o is i for i in inputs) for o in outputs):  # dropout in eval mode, `.to` of the same dtype
            return result
        if word.startswith(("empty", "new_empty")):
            for o in outputs:
                o.zero_()  # what nobody has written yet: the same in every run
        if _draws(func, args, kwargs) or word.startswith(("empty", "new_empty")):
            for o in outputs:
                self._freeze(o, word)
            return result
        made = self._call(func, args, kwargs, start)
        if word == "as_strided":
            self._resolve(outputs[0])  # it counts in the whole storage, not in the view that it was called on
        else:
            self._record(made, word, outputs)
        return result

    def _call(self, func: OpOverload, args: Any, kwargs: Any, start: int) -> _Call:
        inputs: list[tuple[int, torch.Tensor]] = []

        def resolve(t: torch.Tensor) -> int:
            inputs.append((self._resolve(t), t))
            return inputs[-1][0]

        template, reads = call.encode(func, args, kwargs, resolve)
        return _Call(func, template, reads, inputs, start)

    def _record(self, made: _Call, word: str, outputs: list[torch.Tensor]) -> None:
        """Write down an op that returned `outputs`: values of their own, or views of its inputs."""
        if all(self._memory.find(o) is not None for o in outputs):
            return  # the same memory in the same geometry: detach, alias, a view of the same shape
        writes = []
        names = [self._names.name(word, o.dtype) for o in outputs]
        if word == "topk" and self.follow is not None and self._followed(made, outputs, names[1]):
            made = replace(made, template={**made.template, "followed": True})
        for o, name in zip(outputs, names, strict=True):
            if self._memory.root(o) is not None:
                value = self._add(name, "view", o, op=self.ops)
                self._memory.add_view(o, value.id)
            else:
                value = self._add(name, "value", o, op=self.ops, made=made, word=word)
                self._memory.add(o, value.id)
            writes.append(value.id)
        self._write_op(made, word, writes)

    def _followed(self, made: _Call, outputs: list[torch.Tensor], name: str) -> bool:
        """Put the candidate's choice into the outputs of a top-k, where it is another; what comes after goes by it."""
        places, scores = outputs[1], made.inputs[0][1]
        theirs = self.follow(self.step, name) if self.follow is not None else None
        if theirs is None or theirs.shape != tuple(places.shape) or theirs.dtype.kind not in "iu":
            return False
        args = made.template["args"]
        axis = args[2] if len(args) > 2 else -1
        given = torch.from_numpy(np.array(theirs)).to(places.device, places.dtype)
        if torch.equal(given, places) or not bool(((given >= 0) & (given < scores.shape[axis])).all()):
            return False
        places.copy_(given)
        outputs[0].copy_(scores.gather(axis, places))
        return True

    def _in_place(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """A write in place becomes an op that returns the new content, and to a view a second one that puts it back."""
        word = func._schema.name.split("::")[1].rstrip("_")
        targets = call.written(func, args, kwargs)
        start = time.monotonic_ns()
        if torch.Tag.nondeterministic_seeded in func.tags:
            for t in targets:
                self._resolve(t)
            result = func(*args, **kwargs)
            for t in targets:
                self._put_back(t, self._add(self._names.name(word, t.dtype), "constant", t).id)
            return result
        pure, drops_out = call.functional(func)
        if len(pure._schema.returns) != len(targets) and not _returns_list(pure):
            raise CompareError(f"cannot record {func}: it returns more than what it writes in place")
        outs = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        pure_kwargs = {k: v for k, v in kwargs.items() if not (drops_out and k in outs)}
        made = self._call(pure, args, pure_kwargs, start)
        if drops_out:
            for t in targets:
                self._resolve(t)
        result = func(*args, **kwargs)
        values = [
            self._add(self._names.name(word, t.dtype), "value", t, op=self.ops, made=made, word=word, written=True)
            for t in targets
        ]
        self._write_op(made, word, [v.id for v in values])
        for t, value in zip(targets, values, strict=True):
            self._put_back(t, value.id)
        return result

    def _put_back(self, t: torch.Tensor, value: int) -> None:
        """`t` now shows `value`: so does its part of the memory it lies in."""
        root = self._memory.root_to_write(t)
        if geometry(t) == root.geometry:
            root.overwrite(value)
            return
        whole = self._whole(root, t)
        template = {
            "args": [{"v": root.value}, {"v": value}, list(t.shape), list(t.stride()), _offset(root, t)],
            "kwargs": {},
        }
        reads = [(root.value, "self"), (value, "src")]
        made = _Call(torch.ops.aten.as_strided_scatter.default, template, reads, [], time.monotonic_ns())
        name = self._names.name("as_strided_scatter", t.dtype)
        new = self._add(name, "value", whole, op=self.ops)
        self._write_op(made, "as_strided_scatter", [new.id], layout=root)
        root.overwrite(new.id)
        root.known[geometry(t)] = value

    # Which value a tensor shows.

    def _resolve(self, t: torch.Tensor) -> int:
        value = self._memory.find(t)
        if value is not None:
            return value
        root = self._memory.root(t)
        if root is None:
            return self._freeze(t, "constant")
        self._whole(root, t)
        template = {"args": [{"v": root.value}, list(t.shape), list(t.stride()), _offset(root, t)], "kwargs": {}}
        made = _Call(torch.ops.aten.as_strided.default, template, [(root.value, "self")], [], time.monotonic_ns())
        view = self._add(self._names.name("as_strided", t.dtype), "view", t, op=self.ops)
        self._write_op(made, "as_strided", [view.id], layout=root)
        root.known[geometry(t)] = view.id
        return view.id

    def _whole(self, root: Root, t: torch.Tensor) -> torch.Tensor:
        """The root that `t` lies in, as a tensor; refuses what strides cannot say."""
        dtype, shape, strides, offset = root.geometry
        if dtype != t.dtype or not root.is_dense:
            raise CompareError(
                f"cannot record a view of `{self.values[root.value].name}` in step {self.step}: its memory has gaps "
                "or is read as another dtype after a write in place"
            )
        return t.as_strided(shape, strides, offset)

    def _freeze(self, t: torch.Tensor, word: str) -> int:
        """A tensor from nowhere (made outside, random, uninitialised) is stored as a constant."""
        value = self._add(self._names.name(word, t.dtype), "constant", t)
        self._memory.add(t, value.id)
        return value.id

    # Writing down.

    def _add_weights(self, model: nn.Module) -> None:
        self.step = "weights"
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            detached = tensor.detach()
            value = self._add(name, "weight", detached, hash=hash_array(_array(detached)))
            if self._memory.find(detached) is None:
                self._memory.add(detached, value.id)

    def _add(
        self,
        name: str,
        kind: Kind,
        t: torch.Tensor,
        *,
        op: int = -1,
        hash: int = 0,
        made: _Call | None = None,
        word: str = "",
        written: bool = False,
    ) -> Value:
        """Give the value its id, and its content to the writer where it is to be stored."""
        itemsize = t.element_size()
        low, high = span(geometry(t))
        value = Value(
            id=len(self.values),
            step=self.step,
            name=name,
            kind=kind,
            shape=tuple(t.shape),
            dtype=str(t.dtype).removeprefix("torch."),
            op=op,
            hash=hash,
            extent=high - low,
            strides=() if t.is_contiguous() else tuple(s * itemsize for s in t.stride()),
        )
        array = None
        if kind in ("view", "weight"):
            value = replace(value, reason="shows the memory of another value" if kind == "view" else "weight")
        elif kind == "value" and not self.stored(self.step, name):
            value = replace(value, reason="not asked for")
        else:
            value = self._find_same(value, t, made, word, written)
            if value.same_as < 0 and not value.reason:
                array = _array(t)
        start = time.perf_counter()
        value = self.sink.value(value, array)
        self.write_seconds += time.perf_counter() - start
        self.values.append(value)
        return value

    def _find_same(self, value: Value, t: torch.Tensor, made: _Call | None, word: str, written: bool) -> Value:
        """What is bit-equal to an input of its op is not stored again."""
        for source, tensor in [] if made is None or written else made.inputs:
            original = self.values[source]
            if original.kind == "weight" or not _same_bits(t, tensor, reshaped=word in COPIES):
                continue
            if original.dataset or original.same_as >= 0:
                return replace(value, same_as=source if original.dataset else original.same_as)
            if word in COPIES:
                return replace(value, reason=f"copy of {original.name}")
        return value

    def _write_op(self, made: _Call, word: str, writes: list[int], layout: Root | None = None) -> None:
        attrs = dict(made.template)
        weights = {str(v): self.values[v].name for v, _ in made.reads if self.values[v].kind == "weight"}
        if weights:
            attrs["weights"] = weights
        if layout is not None:
            attrs["layout"] = list(layout.geometry[2])  # the strides that the template's offsets count in
        if word in ("to", "_to_copy") and _rounds(made, self.values[writes[0]]):
            attrs["rounds"] = True
        name = self.values[writes[0]].name if writes else f"{self._path.here}.{word}"
        op = Op(
            id=self.ops,
            step=self.step,
            name=name,
            kind=str(made.op),
            reads=tuple(Read(v, slot) for v, slot in made.reads),
            writes=tuple(writes),
            attrs=attrs,
            start_ns=made.start,
            end_ns=time.monotonic_ns(),
        )
        start = time.perf_counter()
        self.sink.op(op)
        self.write_seconds += time.perf_counter() - start
        self.ops += 1
        if any(self.stop(self.step, self.values[w].name) for w in writes):
            raise EnoughError


def _draws(op: OpOverload, args: Any, kwargs: Any) -> bool:
    """Does this call draw random numbers? Fused attention could, but does so only for its dropout."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    names = [a.name for a in op._schema.arguments]
    if "dropout_p" not in names:
        return True
    at = names.index("dropout_p")
    return bool(args[at] if at < len(args) else kwargs.get("dropout_p", 0.0))


def _offset(root: Root, t: torch.Tensor) -> int:
    """Elements from the root's first to the tensor's first."""
    return int(t.storage_offset()) - root.geometry[3]


def _rounds(made: _Call, to: Value) -> bool:
    """Does this cast lose bits?"""
    source = made.inputs[0][1].dtype
    target = getattr(torch, to.dtype)
    if not source.is_floating_point:
        return bool(target.is_floating_point)
    return not (target.is_floating_point and torch.finfo(target).bits >= torch.finfo(source).bits)


def _returns_list(op: OpOverload) -> bool:
    return len(op._schema.returns) == 1 and "List" in str(op._schema.returns[0].type)


def _array(t: torch.Tensor) -> np.ndarray:
    """The tensor's memory as a NumPy array (bfloat16 as its bits)."""
    t = t.detach().cpu()
    return t.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.bfloat16 else t.numpy()


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _same_bits(a: torch.Tensor, b: torch.Tensor, *, reshaped: bool) -> bool:
    """Bit for bit the same elements in the same logical order; -0.0 is not 0.0, and a NaN is itself."""
    if a.dtype != b.dtype or a.numel() != b.numel() or a.numel() == 0 or a.dtype not in _BITS_OF:
        return False
    if a.shape != b.shape:
        if not reshaped:
            return False
        b = b.reshape(a.shape)
    a, b = a.view(_BITS[a.element_size()]), b.view(_BITS[b.element_size()])
    if a.dim() and not torch.equal(_corner(a), _corner(b)):
        return False
    return torch.equal(a, b)


_BITS_OF = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int64, torch.int32}


def _corner(t: torch.Tensor) -> torch.Tensor:
    while t.dim() > 1:
        t = t[t.shape[0] // 2]
    return t[:SAMPLE]


def _refuse_compiled(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise UsageError(
                f"module `{path or type(module).__name__}` is compiled with torch.compile, which runs eager while it "
                "is recorded: give the plain module as the reference"
            )
