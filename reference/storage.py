"""Which value a tensor shows: storages followed through views, in-place writes, and reuse of freed memory.

A storage holds one value or several that do not overlap (its roots). A tensor is known by its geometry (dtype,
shape, strides, offset): the same geometry in the same storage shows the same value until somebody writes there;
after that everything else in that root is stale and must be derived anew from the root's new value.

Identity is the storage's, never an address or an id(): a weak reference pins each storage's record, so a freed and
reused address is a new storage. Leaves out recording (recorder.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from firstbad.errors import CompareError

Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


def geometry(t: torch.Tensor) -> Geometry:
    return t.dtype, tuple(t.shape), tuple(t.stride()), int(t.storage_offset())


def span(g: Geometry) -> tuple[int, int]:
    """First byte, and the byte after the last, of the storage that the tensor touches."""
    dtype, shape, strides, offset = g
    if 0 in shape:
        return offset * dtype.itemsize, offset * dtype.itemsize
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return offset * dtype.itemsize, (last + 1) * dtype.itemsize


def is_dense(g: Geometry) -> bool:
    """Does the tensor fill its span, each element once?"""
    low, high = span(g)
    expected = 1
    for n, s in sorted(zip(g[1], g[2], strict=True), key=lambda ns: (ns[1], ns[0])):
        if n != 1 and s != expected:
            return False
        expected *= n
    return expected * g[0].itemsize == high - low or 0 in g[1]


@dataclass
class Root:
    """A value that owns a part of a storage."""

    geometry: Geometry
    value: int
    known: dict[Geometry, int] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
    is_dense: bool = True

    def overwrite(self, value: int) -> None:
        self.value = value
        self.known = {self.geometry: value}


def _pin(handle: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(handle)


@dataclass
class _Storage:
    pin: StorageWeakRef
    roots: list[Root] = field(default_factory=list)


class Memory:
    """All storages seen so far."""

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}

    def knows(self, t: torch.Tensor) -> bool:
        """Does the tensor's storage hold a known value?"""
        return self._of(t) is not None

    def add(self, t: torch.Tensor, value: int) -> None:
        """`t` owns its memory and shows `value`."""
        storage = self._of(t)
        if storage is None:
            handle = t.untyped_storage()
            storage = self._storages[handle._cdata] = _Storage(_pin(handle))
        g = geometry(t)
        storage.roots.append(Root(g, value, {g: value}, span(g), is_dense(g)))

    def add_view(self, t: torch.Tensor, value: int) -> None:
        """`t` shares the memory of a known value and shows `value`."""
        root = self.root(t)
        if root is not None:
            root.known[geometry(t)] = value

    def find(self, t: torch.Tensor) -> int | None:
        """The value that `t` shows; None: unknown, or stale since a write."""
        storage = self._of(t)
        if storage is None:
            return None
        g = geometry(t)
        for root in storage.roots:
            if g in root.known:
                return root.known[g]
        return None

    def root(self, t: torch.Tensor) -> Root | None:
        """The value whose memory `t` lies in; None: none holds all of it."""
        storage = self._of(t)
        if storage is None:
            return None
        low, high = span(geometry(t))
        for root in storage.roots:
            first, end = root.span
            if first <= low and high <= end:
                return root
        return None

    def root_to_write(self, t: torch.Tensor) -> Root:
        """The one value that a write to `t` changes."""
        storage = self._of(t)
        low, high = span(geometry(t))
        roots = [] if storage is None else storage.roots
        touched = [r for r in roots if max(low, r.span[0]) < min(high, r.span[1])]
        root = self.root(t)
        if root is None or any(other is not root for other in touched):
            raise CompareError("cannot record a write in place to memory that several values share")
        return root

    def forget_dead(self) -> None:
        self._storages = {key: s for key, s in self._storages.items() if not s.pin.expired()}

    def _of(self, t: torch.Tensor) -> _Storage | None:
        return self._storages.get(t.untyped_storage()._cdata)
