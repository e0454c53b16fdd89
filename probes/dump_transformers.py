"""What transformers' model debugger writes: a tree of modules (JSON) with a .safetensors file for each value.

    with model_addition_debugger_context(model, debug_path="dump", use_repr=False, do_prune_layers=False):
        model(**inputs)

Leaves out trees of printed numbers (use_repr=True): those are cut short.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firstbad.errors import CompareError

from .dump_safetensors import entries
from .dumped import Dumped, cut, json_of

KNOWN = "the output of transformers' model debugger"
TREE = "*_debug_tree_FULL_TENSORS.json"


def claims(folder: Path) -> Iterator[Path]:
    """What modules were given, which others' outputs hold already."""
    if any(folder.glob(TREE)):
        yield from folder.glob("*_inputs*.safetensors")


def read(folder: Path, _taken: frozenset[Path]) -> Iterator[Dumped]:
    for path in sorted(folder.glob(TREE)):
        tree = json_of(path)
        root = tree.get("module_path") if isinstance(tree, dict) else None
        if not isinstance(root, str):
            raise CompareError(f"`{path}` is no tree of transformers' model debugger")
        seen: set[Path] = set()
        for module, place in _leaves(tree, path):
            file = folder / place
            if file in seen:
                continue  # called again: the file holds the last call only
            seen.add(file)
            if not file.is_file():
                raise cut(path, f"the file `{place}` that it names is missing")
            yield from entries(file, folder, module.removeprefix(f"{root}."))


def _leaves(node: Any, path: Path) -> Iterator[tuple[str, str]]:
    """(module, file) of each output."""
    outputs = node.get("outputs")
    tensors = [outputs] if isinstance(outputs, dict) else outputs if isinstance(outputs, list) else []
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, dict) and "value" in tensor:
            if not isinstance(tensor["value"], str) or not tensor["value"].endswith(".safetensors"):
                raise CompareError(f"`{path}` holds printed numbers: dump again with use_repr=False")
            yield (f"{node['module_path']}.{i}" if i else node["module_path"]), tensor["value"]
    for child in node.get("children", ()):
        yield from _leaves(child, path)
