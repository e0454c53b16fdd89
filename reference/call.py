"""One ATen call as JSON and back: `{"args": [...], "kwargs": {...}}`, with value ids in place of tensors.

    {"v": 12}                  the value with id 12
    {"f": "-inf"}              a float that JSON cannot hold: "inf", "-inf", "nan"
    {"dtype": "float32"}       {"device": "cpu"}   {"layout": "strided"}   {"memory_format": "contiguous_format"}
    lists, numbers, booleans, strings and null as they are

Arguments equal to their default, which the dispatcher drops, are filled in from the schema, so that two engines (and
two versions of one) can be compared. Leaves out running the call (executor.py) and what a tensor is (storage.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from firstbad.errors import CompareError

Call = tuple[list[Any], dict[str, Any]]


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from tensors(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors(item)


def written(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that the call writes in place, by its schema."""
    bound = list(zip(op._schema.arguments, args, strict=False))
    bound += [(a, kwargs[a.name]) for a in op._schema.arguments if a.name in kwargs]
    return [t for a, given in bound if a.alias_info is not None and a.alias_info.is_write for t in tensors(given)]


def functional(op: OpOverload) -> tuple[OpOverload, bool]:
    """The op that returns what the in-place or out= `op` writes, and whether it is called without the out argument."""
    packet_name = op._schema.name.split("::")[1]
    reads = [a.name for a in op._schema.arguments if a.alias_info is None or not a.alias_info.is_write]
    if packet_name.endswith("_") and not packet_name.endswith("__"):
        packet = getattr(torch.ops.aten, packet_name[:-1], None)
        if isinstance(packet, OpOverloadPacket) and op._overloadname in overloads(packet):
            return getattr(packet, op._overloadname), False
    else:
        packet = getattr(torch.ops.aten, packet_name)
        for overload in overloads(packet):
            candidate: OpOverload = getattr(packet, overload)
            if not candidate._schema.is_mutable and [a.name for a in candidate._schema.arguments] == reads:
                return candidate, True
    raise CompareError(f"cannot record {op}: it writes in place and ATen has no functional form of it")


def overloads(packet: OpOverloadPacket) -> list[str]:
    return list(packet.overloads())


def encode(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], resolve: Callable[[torch.Tensor], int]
) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """(JSON template of the call, what it reads as (value id, name of the argument))."""
    reads: list[tuple[int, str]] = []

    def pack(given: Any, slot: str) -> Any:
        if isinstance(given, torch.Tensor):
            value = resolve(given)
            reads.append((value, slot))
            return {"v": value}
        if isinstance(given, list | tuple):
            return [pack(item, slot) for item in given]
        return _pack_plain(op, given)

    packed_args: list[Any] = []
    packed_kwargs: dict[str, Any] = {}
    for i, argument in enumerate(op._schema.arguments):
        if not argument.kwarg_only and i < len(args):
            packed_args.append(pack(args[i], argument.name))
        elif argument.name in kwargs:
            packed_kwargs[argument.name] = pack(kwargs[argument.name], argument.name)
        elif argument.has_default_value():
            default = pack(argument.default_value, argument.name)
            if argument.kwarg_only or packed_kwargs:
                packed_kwargs[argument.name] = default
            else:
                packed_args.append(default)
    return {"args": packed_args, "kwargs": packed_kwargs}, reads


def _pack_plain(op: OpOverload, given: Any) -> Any:
    if isinstance(given, float) and not math.isfinite(given):
        return {"f": str(given)}
    if given is None or isinstance(given, bool | int | float | str):
        return given
    if isinstance(given, torch.dtype | torch.layout | torch.memory_format):
        kind = type(given).__name__
        return {kind: str(given).removeprefix("torch.")}
    if isinstance(given, torch.device):
        return {"device": str(given)}
    raise CompareError(f"cannot record {op}: its argument {given!r} ({type(given).__name__}) is not plain data")


def decode(template: Mapping[str, Any], lookup: Callable[[int], torch.Tensor], floating: torch.dtype) -> Call:
    """Arguments of the call, with `lookup(id)` for each value and every floating-point dtype replaced by `floating`."""

    def unpack(item: Any) -> Any:
        if isinstance(item, list):
            return [unpack(i) for i in item]
        if isinstance(item, Mapping):
            return _unpack_one(item)
        if isinstance(item, float):
            return _within(item, floating)
        if item is None or isinstance(item, bool | int | str):
            return item
        raise CompareError(f"a recorded call holds {item!r}: record the reference again")

    def _unpack_one(item: Mapping[str, Any]) -> Any:
        (key, payload), *more = item.items() or [("", None)]
        if more:
            key = ""
        if key == "v" and isinstance(payload, int):
            return lookup(payload)
        if key == "f" and payload in ("inf", "-inf", "nan"):
            return float(payload)
        if key == "device":
            return torch.device("cpu")
        if key in ("dtype", "layout", "memory_format") and isinstance(payload, str):
            named = getattr(torch, payload, None)
            if isinstance(named, torch.dtype) and key == "dtype":
                return floating if named.is_floating_point else named
            if isinstance(named, torch.layout | torch.memory_format) and type(named).__name__ == key:
                return named
        raise CompareError(f"a recorded call holds {dict(item)!r}: record the reference again")

    args, kwargs = template.get("args", []), template.get("kwargs", {})
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
        raise CompareError("a recorded call is not a list of arguments: record the reference again")
    return [unpack(a) for a in args], {str(k): unpack(a) for k, a in kwargs.items()}


def _within(number: float, floating: torch.dtype) -> float:
    """A mask's float32 lowest value does not fit float16: the nearest that does."""
    if floating != torch.float16:
        return number
    limit = torch.finfo(floating).max
    return min(max(number, -limit), limit) if math.isfinite(number) else number
