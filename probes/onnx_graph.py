"""An ONNX model made observable: optimised first and saved as it is then, and every tensor of that made an output.

So looking does not undo a fusion: the observed model is run with optimisation off. Data beside the model (above 2 GB)
stays beside it. Leaves out running (onnx.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import CompareError, UsageError

LEVELS = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

MOVES = frozenset("Reshape Transpose Squeeze Unsqueeze Flatten Identity Expand Shape Size".split())
"""Nodes whose outputs show what another node computed, or say only how large it is."""


@dataclass(frozen=True)
class Node:
    """One node of the optimised graph."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Observed:
    """A model ready to be run and looked at."""

    path: Path  # as the user gave it
    session: Any  # with every tensor an output
    plain: Any  # the model as it runs when nobody looks
    inputs: dict[str, tuple[Any, ...]]  # name → shape, names for what is dynamic
    outputs: tuple[str, ...]  # the model's own
    nodes: tuple[Node, ...]
    initializers: dict[str, np.ndarray]
    seen: tuple[str, ...]  # what `session` returns


def modules() -> tuple[Any, Any]:
    """(onnx, onnxruntime), which are an extra."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"ONNX models need {error.name}: pip install 'firstbad[onnx]'") from None
    return onnx, onnxruntime


def observe(path: Path, level: str, providers: list[str], folder: Path, threads: int | None) -> Observed:
    """Loads, optimises, saves into `folder`, adds outputs, loads again."""
    onnx, ort = modules()
    optimised = folder / f"{path.stem}.optimised.onnx"
    plain = _session(ort, path, level, providers, threads, save=optimised)
    model = _load(onnx, optimised)
    for node in model.graph.node:
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise UsageError(
                f"`{path}` has a {node.op_type} node with a body, which cannot be looked into: export without"
            )
    own = tuple(o.name for o in model.graph.output)
    made = [o for node in model.graph.node for o in node.output if o]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if name not in own)
    looked_at = folder / f"{path.stem}.observed.onnx"
    onnx.save(model, str(looked_at))  # data outside the file is referred to as before
    session = _session(ort, looked_at, "off", providers, threads)
    onnx.external_data_helper.load_external_data_for_model(model, str(folder))
    return Observed(
        path=path,
        session=session,
        plain=plain,
        inputs={i.name: tuple(i.shape) for i in session.get_inputs()},
        outputs=own,
        nodes=tuple(_node(onnx, node) for node in model.graph.node),
        initializers={i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer},
        seen=tuple(o.name for o in session.get_outputs() if str(o.type).startswith("tensor")),
    )


def _session(
    ort: Any, path: Path, level: str, providers: list[str], threads: int | None, save: Path | None = None
) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    options.log_severity_level = 3  # it warns that a saved model is for this machine only: that is what is wanted
    options.intra_op_num_threads = threads or 0
    if save is not None:
        options.optimized_model_filepath = str(save)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{save.name}.data")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1048576")
    try:
        return ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the library has classes of its own for what is wrong with a file
        raise CompareError(f"ONNX Runtime cannot load `{path}`: {_line(error)}") from None


def _load(onnx: Any, path: Path) -> Any:
    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf has classes of its own
        raise CompareError(f"cannot read `{path}` as an ONNX model: {_line(error)}") from None


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")[:200]


def _node(onnx: Any, node: Any) -> Node:
    attributes = {}
    for attribute in node.attribute:
        given = onnx.helper.get_attribute_value(attribute)
        if isinstance(given, bytes):
            given = given.decode("utf-8", "replace")
        if isinstance(given, int | float | str) or (isinstance(given, list) and len(given) < 16):
            attributes[attribute.name] = list(given) if isinstance(given, list) else given
    return Node(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes)
