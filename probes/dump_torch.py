"""PyTorch files (.pt, .pth): tensors in dicts and lists, loaded without running any code from the file."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import CompareError

from .dumped import Dumped, cut, files, name_of

KNOWN = ".pt"


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    import torch

    for path in files(folder, ".pt", ".pth", without=taken):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            told = "holds more than tensors (or is cut), and no code of a file is run: save tensors only"
            raise CompareError(f"`{path}` {told}") from None
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            raise cut(path, error) from None
        single = isinstance(content, torch.Tensor)
        yield from _tensors(content, name_of(path, folder) if single else "", path)


def _tensors(content: Any, name: str, path: Path) -> Iterator[Dumped]:
    import torch

    if isinstance(content, torch.Tensor):
        tensor = content.detach().contiguous()
        low = tensor.dtype == torch.bfloat16
        array = tensor.view(torch.int16).numpy().view(np.uint16) if low else tensor.numpy()
        yield Dumped(name, array, path, "bfloat16" if low else "")
    elif isinstance(content, dict):
        for key, item in content.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key), path)
    elif isinstance(content, list | tuple):
        for i, item in enumerate(content):
            yield from _tensors(item, f"{name}.{i}" if name else str(i), path)
