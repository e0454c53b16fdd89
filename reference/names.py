"""Names of values: the path of the module that is running, and in it the op.

`model.encoder.layers.0.self_attn.softmax`; a layer of torch.nn with weights of its own is just its path
(`model.encoder.layers.0.fc1`). The n-th value (n >= 1) of the same name in a step gets `_n`; what is not floating
point has its dtype behind the op and is counted apart, so that masks and positions do not move the names of floats.
Leaves out values that no op made: inputs and weights have the names they come with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModulePath:
    """Which module is running now: a stack kept by global hooks while it is open."""

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.stack: list[tuple[str, nn.Module | None]] = [("", None)]
        self._handles: list[Any] = []

    def open(self) -> None:
        def enter(module: nn.Module, _args: Any) -> None:
            known = self.paths.get(id(module))
            self.stack.append((self.here if known is None else known, module))

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            self.stack.pop()

        self._handles = [
            register_module_forward_pre_hook(enter),
            # an exception inside the module must leave the stack right, too
            register_module_forward_hook(leave, always_call=True),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        del self.stack[1:]

    @property
    def here(self) -> str:
        return self.stack[-1][0]

    @contextmanager
    def inside(self, path: str) -> Iterator[None]:
        """A path that is no module: `generate`."""
        self.stack.append((path, None))
        try:
            yield
        finally:
            self.stack.pop()


class Namer:
    """Gives each value of a step its name."""

    def __init__(self, path: ModulePath) -> None:
        self.path = path
        self.reserved = {p for p in path.paths.values() if p}
        self.counts: Counter[str] = Counter()

    def new_step(self) -> None:
        self.counts.clear()

    def name(self, word: str, dtype: torch.dtype) -> str:
        path, module = self.path.stack[-1]
        if not dtype.is_floating_point:
            word = f"{word}:{str(dtype).removeprefix('torch.')}"
        if path and module is not None and _is_layer(module):
            own = type(module).__name__.lower().startswith(word.replace("_", ""))
            # `conv1_pad`, not `conv1.pad`: `conv1` is a value, and cannot hold others in the trace file
            return self._count(path, allowed=path) if own else self._count(f"{path}_{word}")
        return self._count(f"{path}.{word}" if path else word)

    def _count(self, name: str, allowed: str = "") -> str:
        while True:
            n = self.counts[name]
            self.counts[name] += 1
            counted = f"{name}_{n}" if n else name
            # the path of a module stays free for what is inside it
            if counted not in self.reserved or counted == allowed:
                return counted


def _is_layer(module: nn.Module) -> bool:
    """Is this a layer of torch.nn itself, with weights and without parts?"""
    return type(module).__module__.startswith("torch.nn.modules.") and bool(module._parameters) and not module._modules
