"""check: kernels and functions against PyTorch, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import firstbad
from firstbad import MismatchError
from firstbad.kept_errors import read, write
from firstbad.measured import Row

X = np.random.Generator(np.random.PCG64(3)).standard_normal((6, 16)).astype(np.float32)
W = np.random.Generator(np.random.PCG64(4)).standard_normal((5, 16)).astype(np.float32)
T = torch.from_numpy(X)

RIGHT: dict[str, tuple[Callable, Callable, object]] = {  # type: ignore[type-arg]
    "numpy against torch": (lambda x, w: x @ w.T, torch.nn.functional.linear, (X, W)),
    "sequential sums": (
        lambda x, w: np.stack([np.cumsum(x * row, 1, dtype=np.float32)[:, -1] for row in w], 1),
        torch.nn.functional.linear,
        (X, W),
    ),
    "one argument": (lambda x: np.maximum(x, 0), torch.relu, X),
    "names": (lambda x, w: x @ w.T, lambda x, w: x @ w.T, {"x": X, "w": W}),
    "a module": (lambda x: torch.nn.functional.layer_norm(x, (16,)), torch.nn.LayerNorm(16), T),
    "a view": (lambda x: x.T, lambda x: x.T, X),
    "the input itself": (lambda x: x, lambda x: x, T),
    "several outputs": (lambda x: (x * 2, x + 1), lambda x: {"a": x * 2, "b": x + 1}, X),
    "integers": (lambda x: x.argmax(-1), lambda x: x.argmax(-1), X),
    "half the bits": (lambda x: torch.tanh(x.bfloat16()), torch.tanh, torch.from_numpy(X).bfloat16().float()),
    "strides": (lambda x: x + 1, lambda x: x + 1, X[:, ::3]),
    "backwards": (lambda x: x + 1, lambda x: x + 1, X[::-1]),
    "a number beside": (lambda x, n: np.roll(x, n, 0), lambda x, n: torch.roll(x, n, 0), (X, 2)),
    "empty": (lambda x: x + 1, lambda x: x + 1, X[:0]),
}


@pytest.mark.parametrize("what", RIGHT)
def test_right(what: str) -> None:
    candidate, reference, inputs = RIGHT[what]
    assert firstbad.check(candidate, reference, inputs).verdict == "match"


WRONG: dict[str, tuple[Callable, Callable, object, str]] = {  # type: ignore[type-arg]
    "a hundredth more": (lambda x: x @ x.T, lambda x: x @ x.T * 1.01, X, "times the noise floor"),
    "sample variance": (
        lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5),
        torch.nn.LayerNorm(16),
        T,
        "wrong_variant: layer_norm computes sample variance",
    ),
    "one NaN": (
        lambda x: np.where(np.arange(16) == 3, np.nan, x * 2).astype(np.float32),
        lambda x: x * 2,
        X,
        "no error is allowed here",
    ),
    "a shape": (lambda x: x[:3], lambda x: x, X, r"the output has shape \[3, 16\], the reference's \[6, 16\]"),
    "a count": (lambda x: (x, x), lambda x: x, X, "2 outputs, the reference has 1"),
    "nothing": (lambda x: None, lambda x: x, X, "0 outputs, the reference has 1"),
    "a type": (lambda x: (x * 2).astype(np.int32), lambda x: x * 2, X, "the output is int32, the reference's float32"),
    "an index": (lambda x: x.argmin(-1), lambda x: x.argmax(-1), X, "no error is allowed here"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong(what: str) -> None:
    candidate, reference, inputs, words = WRONG[what]
    with pytest.raises(MismatchError, match=words) as caught:
        firstbad.check(candidate, reference, inputs, budget=3)
    assert "given " in str(caught.value)


def test_an_input_written_over_is_told_unless_the_reference_does_so() -> None:
    def in_place(x):  # type: ignore[no-untyped-def]
        x += 1
        return x

    with pytest.raises(MismatchError, match="it wrote over its input `x`"):
        firstbad.check(in_place, lambda x: x + 1, X.copy())
    assert firstbad.check(in_place, in_place, X.copy()).verdict == "match"


def test_strides_are_said_and_kept(tmp_path: Path) -> None:
    seen = []

    def kernel(x: np.ndarray) -> np.ndarray:
        seen.append(x.strides)
        return x * np.float32(2)

    with pytest.raises(MismatchError, match=r"given +x float32 \[6, 6\], strides \[16, 3\] elements"):
        firstbad.check(kernel, lambda x: x * 3, X[:, ::3], output=tmp_path)
    assert seen == [(64, 12)]
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "result.json").is_file()


def test_a_reference_without_tensors_is_wrong_usage() -> None:
    with pytest.raises(firstbad.UsageError, match="the reference returns no tensor"):
        firstbad.check(lambda x: x, lambda x: None, X)


def test_errors_of_tests_are_kept_a_line_a_value(tmp_path: Path) -> None:
    row = Row("call", "softmax", "softmax", (2, 3), "float32", (), False, (0.5,) * 6, (1.0,) * 6, 2)
    path = tmp_path / "deep" / "test_x.jsonl"
    write(path, "test_b", [row])
    write(path, "test_a", [row])
    write(path, "test_b", [row])
    assert path.read_text().count("\n") == 2
    known = read(path, "test_a")
    assert known is not None
    assert known.rows == (row,)
    assert read(path, "test_c") is None
