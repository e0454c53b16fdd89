"""Wrong ONNX models: the healthy model exported once, then edited node by node as a fault's data says.

An edit is ["node", file, name of the node, how, ...]. The exporter is that of the adapter's tests.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

EXPORTER = Path(__file__).parents[2] / "tests" / "probes" / "exported.py"


def exported(model: Any, folder: Path) -> Path:
    """encoder.onnx, decoder.onnx and decoder_with_past.onnx of a Whisper."""
    spec = importlib.util.spec_from_file_location("exported", EXPORTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder.mkdir(parents=True, exist_ok=True)
    made: Path = module.whisper(model, folder)
    return made


def edited(healthy: Path, edits: Sequence[Sequence[Any]], folder: Path) -> Path:
    """A copy with every edit made."""
    import onnx

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(healthy, folder)
    for what, file, name, how, *rest in edits:
        if what != "node":
            raise ValueError(f"no edit `{what}` of an ONNX model")
        model = onnx.load(str(folder / file))
        node = next(n for n in model.graph.node if n.name == name)
        HOW[how](model, node, *rest)
        onnx.save(model, str(folder / file))
    return folder


def _input(_model: Any, node: Any, at: int, name: str) -> None:
    node.input[at] = name


def _input_of(model: Any, node: Any, at: int, other: str, place: int) -> None:
    """What another node reads at `place` (its weight, whatever the exporter called it)."""
    node.input[at] = next(n for n in model.graph.node if n.name == other).input[place]


def _attribute(_model: Any, node: Any, name: str, value: Any) -> None:
    import onnx

    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def _bypass(model: Any, node: Any, at: int) -> None:
    """The node is gone: whoever read its output reads its input instead."""
    for other in model.graph.node:
        for i, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[i] = node.input[at]
    model.graph.node.remove(node)


def _weight(model: Any, node: Any, at: int, how: str, *rest: Any) -> None:
    """The initializer (or constant) that the node reads, changed."""
    from onnx import numpy_helper

    name = f"{node.name}.changed"
    held = {i.name: i for i in model.graph.initializer}
    for other in model.graph.node:
        if other.op_type == "Constant":
            held[other.output[0]] = other.attribute[0].t
    array = np.ascontiguousarray(WEIGHT[how](numpy_helper.to_array(held[node.input[at]]), *rest))
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[at] = name


def _no_column(w: np.ndarray, column: int) -> np.ndarray:
    w = w.copy()
    w[..., column] = 0
    return w


def _bf16(w: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(w, np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)).view(np.float32)


HOW: Mapping[str, Callable[..., None]] = {
    "input": _input,
    "input_of": _input_of,
    "attribute": _attribute,
    "bypass": _bypass,
    "weight": _weight,
}
WEIGHT: Mapping[str, Callable[..., np.ndarray]] = {
    "transposed": lambda w: w.T,
    "times": lambda w, factor: w * np.asarray(factor, w.dtype),
    "no_column": _no_column,
    "bf16": _bf16,
}
