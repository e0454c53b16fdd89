"""A module of one's own beside the ONNX model made of it: one pass, inputs by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.comparison import compare
from firstbad.errors import UsageError
from firstbad.probes import onnx as runtime
from firstbad.reference import own
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_reference
from firstbad.trace import open_trace

onnx = pytest.importorskip("onnx", reason="pip install 'firstbad[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'firstbad[onnx]'")

T, D, F = 48, 8, 40
MODULE = f"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear({D}, {F}), nn.Linear({F}, {D})

    def forward(self, x, by):
        return self.down(torch.nn.functional.silu(self.up(x * by)))

def make():
    torch.manual_seed(2)
    net = Net()
    with torch.no_grad():
        net.up.weight.mul_(12)  # arguments of -10: there a sigmoid has few digits
    return net
"""


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    (tmp_path / "net.py").write_text(MODULE, "utf-8")
    rng = np.random.default_rng(3)
    given = {"x": rng.standard_normal((1, T, D)).astype(np.float32), "by": np.full((1, T, 1), 1.5, np.float32)}
    np.savez(tmp_path / "in.npz", **given)  # type: ignore[arg-type]  # arrays by name
    return own.prepare(ModelSpec(f"{tmp_path / 'net.py'}:make", inputs=tmp_path / "in.npz"))


def model(path: Path, prepared: Prepared, names: tuple[str, ...] = ("x", "by"), act: str = "Sigmoid") -> Path:
    from onnx import TensorProto, helper, numpy_helper

    w = {name: np.asarray(array) for name, array in prepared.weights.items()}
    held = [numpy_helper.from_array(np.ascontiguousarray(a.T), name) for name, a in w.items()]
    lines = [
        ("Mul", names[:2] if len(names) > 1 else (names[0], names[0]), "m"),
        ("MatMul", ("m", "up.weight"), "a"),
        ("Add", ("a", "up.bias"), "u"),
        (act, ("u",), "s"),
        ("Mul", ("u", "s"), "g"),
        ("MatMul", ("g", "down.weight"), "b"),
        ("Add", ("b", "down.bias"), "y"),
    ]
    nodes = [helper.make_node(op, list(reads), [made]) for op, reads, made in lines]
    shapes: dict[str, Any] = {"by": [1, T, 1]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes.get(n, [1, T, D])) for n in names]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, T, D])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def result(prepared: Prepared, folder: Path, change: Callable[..., Path], **how: Any) -> Result:
    options = CaptureOptions(threads=1)
    path = change(folder / "net.onnx", prepared, **how)
    runtime.capture(f"{path},level=off", prepared, folder / "c.h5", options)
    capture_reference(own, prepared, folder / "r.h5", options)  # type: ignore[arg-type]  # a room
    with open_trace(folder / "r.h5") as ours, open_trace(folder / "c.h5") as theirs:
        return compare(ours, theirs, own.executor(prepared)).result


def test_it_matches(prepared: Prepared, tmp_path: Path) -> None:
    """Its sigmoid is half of 1 + tanh(x / 2), or as accurate: small ones have few digits, and are right."""
    found = result(prepared, tmp_path, model)
    assert (found.verdict, found.faults) == ("match", ())
    assert sum(found.coverage.compared.values()) >= 4
    assert found.coverage.weights_differ == ()


def test_another_activation_is_named(prepared: Prepared, tmp_path: Path) -> None:
    (fault,) = result(prepared, tmp_path, model, act="HardSigmoid").faults
    assert (fault.value, fault.op) == ("silu", "silu")


def test_one_input_under_another_name_is_fed_and_said(prepared: Prepared, tmp_path: Path) -> None:
    found = result(prepared, tmp_path, model, names=("sound", "by"))
    assert found.verdict == "match"
    assert "net.onnx calls the input x sound" in found.notes


def test_inputs_that_nobody_has_are_refused(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="wants the inputs p, q: there are x, by"):
        result(prepared, tmp_path, model, names=("p", "q"))
