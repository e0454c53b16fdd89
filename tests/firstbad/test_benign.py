"""Differences without effect are no faults; what only fades, is masked or shows elsewhere stays one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from firstbad.benign import _other, _remembers
from firstbad.graph import Op

Arrays = Mapping[str, np.ndarray]
Fault = Callable[[Arrays, Arrays], np.ndarray]
X, Q, K_ = "layers.1.attn_norm", "layers.1.attn.q_proj", "layers.1.attn.k_proj"
SCALED, SOFTMAX = "layers.1.attn.mul", "layers.1.attn.softmax"


def linear(x: np.ndarray, weight: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    made: np.ndarray = (x.astype(np.float64) @ weight.T.astype(np.float64) + bias).astype(np.float32)
    return made


def keys(bias: Any) -> Fault:
    return lambda v, w: linear(v[X], w[f"{K_}.weight"], bias)


def queries(factor: float) -> Fault:
    return lambda v, w: linear(v[X], w[f"{Q}.weight"] * factor, w[f"{Q}.bias"] * factor)


SOME = np.random.default_rng(4).standard_normal(32).astype(np.float32) * 0.3

WITHOUT_EFFECT: dict[str, tuple[dict[str, Fault], set[str]]] = {
    "a bias on the keys": ({K_: keys(SOME)}, {K_}),
    "a factor moved from k to q": (
        {Q: queries(2.0), K_: lambda v, w: linear(v[X], w[f"{K_}.weight"] * 0.5)},
        {Q, K_},
    ),
    "the scale folded into q": ({Q: queries(8**-0.5), SCALED: lambda v, _: v[Q]}, {Q, SCALED}),
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_without_effect(case: str, planted: ModuleType, recorded: Any, tmp_path: Path) -> None:
    faults, names = WITHOUT_EFFECT[case]
    result = planted.explained(recorded, planted.plant(recorded, faults, tmp_path / "c.h5"))
    assert (result.verdict, result.faults) == ("match", ())
    verdicts = dict(zip(result.values["name"], result.values["verdict"], strict=True))
    assert {name for name, verdict in verdicts.items() if verdict == "benign"} >= names
    assert verdicts[SOFTMAX] == "clean"
    assert [n for n in result.notes if n.startswith("benign: ") and all(name in n for name in names)]


WITH_EFFECT: dict[str, tuple[str, Fault]] = {
    "another bias in every row": (K_, keys(np.linspace(0, 1, 24)[:, None] * SOME)),
    "a bias on the keys in one row": (K_, keys(np.eye(24)[:, :1] * SOME)),
    "a column of k": (K_, lambda v, w: keys(0.0)(v, w) * (np.arange(32) != 5).astype(np.float32)),
    "q scaled alone": (Q, queries(1.01)),
    "beyond what an activation shows": (
        "layers.1.fc1",
        lambda v, w: np.minimum(linear(v["layers.1.norm"], w["layers.1.fc1.weight"], w["layers.1.fc1.bias"]), 9) - 1e-5,
    ),
}


@pytest.mark.parametrize("case", WITH_EFFECT)
def test_with_effect(case: str, fault: Callable[..., Any]) -> None:
    name, wrong = WITH_EFFECT[case]
    assert fault(name, wrong, budget=0.0).value == name


def test_what_forgets_proves_nothing() -> None:
    kinds = ("aten.gelu.default", "aten.argmax.default", "aten.relu.default", "aten.layer_norm.default")
    assert not any(_remembers(Op(0, "s", "n", kind)) for kind in (*kinds, "aten.masked_fill.Scalar"))
    assert all(_remembers(Op(0, "s", "n", kind)) for kind in ("aten.matmul.default", "aten.softmax.int"))


def test_other_numbers_hold_no_mask() -> None:
    mask = np.array([0.0, -3.4e38, 0.0], np.float32)
    np.testing.assert_array_equal(_other(mask), np.zeros(3))
    x = np.arange(100, dtype=np.float32)
    assert not np.array_equal(_other(x), x)
    assert sorted(_other(x)) == sorted(x)


def test_numbers_mapped_from_a_file_are_left_as_they_are() -> None:
    mapped = np.arange(12, dtype=np.float32).reshape(3, 4)
    mapped.flags.writeable = False
    other = _other(mapped)
    assert sorted(other.ravel()) == list(range(12))
    assert not np.array_equal(other, mapped)
