"""A model whose weights stay in their safetensors files: mapped into memory, read when an op wants them.

The pages are the file's own and unchanged, so the system takes them back whenever it needs the room: a model may be
larger than memory. What a file holds in half precision is widened once into a file without a name, which goes with
the process. Leaves out weights under other names than the model's own (experts that transformers joins on loading).
"""

from __future__ import annotations

import json
import math
import mmap
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from firstbad.errors import UsageError
from firstbad.run import ModelSpec
from firstbad.toolchain import cache_folder

from .executor import _tensor

TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
WIDENED = ("F16", "BF16", "F64")
PIECE = 4 << 20
"""Elements that are widened at a time."""

_HEADER = 100 << 20  # bytes: as the format's own reader has it


def load(folder: Path, factory: Any) -> Any:
    """The model in a folder of transformers, float32 and with eager attention; `factory`: its class, or an Auto one."""
    from transformers import AutoConfig

    auto: Any = AutoConfig  # untyped
    config = auto.from_pretrained(folder, local_files_only=True)
    make = factory.from_config if hasattr(factory, "from_config") else factory._from_config
    with _without_weights():
        model = make(config, attn_implementation="eager", dtype=torch.float32)
    held = arrays_of(folder)
    own = dict(model.state_dict())
    prefix = getattr(model, "base_model_prefix", "") + "."
    found = {}
    for name, array in held.items():
        known = next((n for n in (name, prefix + name, name.removeprefix(prefix)) if n in own), None)
        if known is None:
            continue
        if tuple(own[known].shape) != array.shape:
            raise UsageError(
                f"the weights do not fit the model: `{name}` is {list(array.shape)}, not {list(own[known].shape)}"
            )
        found[known] = _tensor(array)
    model.load_state_dict(found, strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, t in [*model.named_parameters(), *model.named_buffers()] if t.is_meta]
    if missing:
        raise UsageError(
            f"`{folder}` has no weight `{missing[0]}` under this name: run without --offload, or save the model again "
            "with the transformers that is installed"
        )
    return model


def no_offload(spec: ModelSpec) -> None:
    """Where the weights are in no file that can be mapped."""
    if spec.offload:
        raise UsageError("--offload leaves weights in safetensors files, and this model has none: run without it")


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of the folder's safetensors files, read-only; floats as float32."""
    index = folder / "model.safetensors.index.json"
    paths = [folder / "model.safetensors"]
    if index.is_file():
        names = json.loads(index.read_text("utf-8")).get("weight_map", {}).values()
        paths = [folder / Path(str(name)).name for name in dict.fromkeys(names)]
    if not all(path.is_file() for path in paths):
        raise UsageError(
            f"`{folder}` has no model.safetensors: --offload maps such files; save the model so, or run without it"
        )
    found: dict[str, np.ndarray] = {}
    narrow: dict[str, tuple[str, np.ndarray]] = {}
    for path in paths:
        for name, kind, array in _mapped(path):
            if kind in WIDENED:
                narrow[name] = kind, array
            else:
                found[name] = array
    return {**found, **_widened(narrow)}


def _mapped(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """(name, type in the file, array) of each tensor; no size is believed that the file does not hold."""
    with path.open("rb") as file:
        size = path.stat().st_size
        start = 8 + int.from_bytes(file.read(8), "little")
        if size < 8 or start > min(size, _HEADER):
            raise UsageError(f"cannot read `{path}`: it is no safetensors file")
        try:
            header = json.loads(file.read(start - 8))
            entries = [_entry(name, e) for name, e in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UsageError(f"cannot read the header of `{path}`: the file is damaged") from None
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for name, kind, shape, begin, end in entries:
        if kind not in TYPES:
            raise UsageError(f"`{name}` of `{path}` is of type {kind}: --offload takes {', '.join(TYPES)}")
        dtype = np.dtype(TYPES[kind])
        count = math.prod(shape)
        if min(shape, default=0) < 0 or not 0 <= begin <= end <= size - start or end - begin != count * dtype.itemsize:
            raise UsageError(f"`{name}` of `{path}` lies outside the file: the file is cut or damaged")
        array = np.frombuffer(pages, dtype, count, start + begin).reshape(shape)
        yield name, kind, array if array.flags.aligned else array.copy()


def _entry(name: str, entry: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...], int, int]:
    begin, end = map(int, entry["data_offsets"])
    return name, str(entry["dtype"]), tuple(map(int, entry["shape"])), begin, end


def _widened(narrow: Mapping[str, tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The same numbers as float32, in a file of their own that no name leads to."""
    total = sum(4 * array.size for _, array in narrow.values())
    if not total:
        return {name: np.zeros(array.shape, np.float32) for name, (_, array) in narrow.items()}
    place = cache_folder()
    place.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(place).free < total:
        raise UsageError(
            f"`{place}` has too little room for the {total / 1e9:.1f} GB of the weights as float32: set FIRSTBAD_CACHE "
            "to another folder"
        )
    with tempfile.TemporaryFile(dir=place) as file:
        for kind, array in narrow.values():
            flat = array.reshape(-1)
            for at in range(0, flat.size, PIECE):
                piece = flat[at : at + PIECE]
                if kind == "BF16":
                    file.write((piece.astype(np.uint32) << np.uint32(16)).tobytes())
                else:
                    file.write(piece.astype(np.float32).tobytes())
        file.flush()
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found, at = {}, 0
    for name, (_, array) in narrow.items():
        found[name] = np.frombuffer(pages, np.float32, array.size, at).reshape(array.shape)
        at += 4 * array.size
    return found


@contextmanager
def _without_weights() -> Iterator[None]:
    """Parameters of modules made meanwhile have a shape and no memory; buffers, which no file may hold, are made."""
    register = nn.Module.register_parameter

    def empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, None if param is None else nn.Parameter(param.to("meta"), requires_grad=False))

    nn.Module.register_parameter = empty  # type: ignore[method-assign]  # for as long as the model is made
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]  # as it was
