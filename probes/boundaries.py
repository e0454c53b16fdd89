"""Values at the boundaries of modules, where ops cannot be seen: compiled models.

Stands in for the reference's recorder in a model room. Each block (an entry of a ModuleList) is compiled by itself and
hooked outside of what is compiled, so that looking changes nothing inside; so are the modules outside of the blocks.
Which value a module read is told by the storage of its arguments. Leaves out what happens between modules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from firstbad.errors import UsageError
from firstbad.graph import Kind, Op, Read, Value
from firstbad.hashing import hash_array
from firstbad.trace import TraceWriter
from firstbad.want import Chosen, EnoughError, chosen

_EVERY, _NONE = chosen(None), chosen(())

TENSOR_LIMIT = 4
"""Tensors looked for in an output: a module's first is what it hands on, the rest are caches and masks."""


def compile_blocks(model: nn.Module, backend: str) -> None:
    """Every block's forward compiled; its hooks stay outside."""
    from torch import _dynamo

    known = _dynamo.list_backends(exclude_tags=())
    if backend not in known:
        raise UsageError(f"no backend `{backend}` for torch.compile: known: {', '.join(known)}")
    for block in blocks(model).values():
        compiled: Any = torch.compile(block.forward, backend=backend)
        block.forward = compiled


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost entries of the model's module lists, by path."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not _within(path, found):
            found.update({f"{path}.{name}": child for name, child in module.named_children()})
    return found


def _within(path: str, outer: dict[str, nn.Module]) -> bool:
    return any(path.startswith(f"{o}.") for o in outer)


@dataclass(frozen=True)
class _Seen:
    """A tensor that was recorded; kept, so that its memory is not given to another."""

    value: int
    tensor: torch.Tensor


class Boundaries:
    """The recorder's face: begin a step, take an input, be a context."""

    def __init__(self, model: nn.Module, sink: TraceWriter, stored: Chosen = _EVERY, stop: Chosen = _NONE) -> None:
        self.sink = sink
        self.stored = stored
        self.stop = stop
        self.step = "weights"
        self.write_seconds = 0.0
        self._values = 0
        self._ops = 0
        self._seen: dict[int, _Seen] = {}
        self._counts: dict[str, int] = {}
        self._handles: list[Any] = []
        self._model = model
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._value(name, "weight", tensor.detach())

    def __enter__(self) -> Boundaries:
        inner = blocks(self._model)
        for path, module in self._model.named_modules():
            leaf = not list(module.children())
            if path and not isinstance(module, nn.ModuleList) and not _within(path, inner) and (leaf or path in inner):
                self._handles.append(module.register_forward_hook(self._hook(path), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def begin(self, step: str) -> None:
        self.step = step
        self._counts.clear()

    def input(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self._value(name, "input", tensor)
        return tensor

    @contextmanager
    def inside(self, _path: str) -> Iterator[None]:
        yield

    def _hook(self, path: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            started = time.monotonic_ns()
            tensors = [t for t in _tensors(output) if t.is_floating_point()][:1]
            if not tensors or self.step == "weights":
                return
            known = [self._seen.get(id(t)) for t in _tensors((args, tuple(kwargs.values())))]
            reads = tuple(Read(seen.value) for seen in known if seen is not None)
            n = self._counts.get(path, 0)
            self._counts[path] = n + 1
            name = f"{path}_{n}" if n else path
            written = self._value(name, "value", tensors[0], op=self._ops)
            kind = type(module).__name__
            self.sink.op(Op(self._ops, self.step, name, kind, reads, (written,), start_ns=started, end_ns=started))
            self._ops += 1
            if self.stop(self.step, name):
                raise EnoughError

        return record

    def _value(self, name: str, kind: Kind, tensor: torch.Tensor, op: int = -1) -> int:
        on_host = tensor.detach().cpu()
        bits = on_host.view(torch.int16) if on_host.dtype == torch.bfloat16 else on_host
        array = bits.numpy().view(np.uint16) if bits is not on_host else bits.numpy()
        keeps = kind != "weight" and self.stored(self.step, name)
        reason = "" if keeps else "a weight: its hash is recorded" if kind == "weight" else "not asked for"
        dtype = str(tensor.dtype).removeprefix("torch.")
        content = hash_array(array) if kind != "value" else 0
        value = Value(self._values, self.step, name, kind, tuple(tensor.shape), dtype, op, reason=reason, hash=content)
        started = time.perf_counter()
        self.sink.value(value, array if keeps else None)
        self.write_seconds += time.perf_counter() - started
        self._seen[id(tensor)] = _Seen(self._values, tensor)
        self._values += 1
        return self._values - 1


class Unseen:
    """The recorder's face where nobody looks."""

    write_seconds = 0.0

    def __init__(self, *_: object) -> None:
        self.step = ""

    def __enter__(self) -> Unseen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, step: str) -> None:
        self.step = step

    def input(self, _name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    @contextmanager
    def inside(self, _path: str) -> Iterator[None]:
        yield


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [t for item in tree for t in _tensors(item)][:TENSOR_LIMIT]
    if isinstance(tree, dict):
        return _tensors(list(tree.values()))
    return []
