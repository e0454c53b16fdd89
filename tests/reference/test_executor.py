"""Replay of single ops: dtypes, strides, read-only memory, and what a hostile file may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad.errors import CompareError
from firstbad.graph import Op, Read
from firstbad.reference import conditions
from firstbad.reference.executor import Executor
from firstbad.reference.recorder import Recorder

RNG = np.random.default_rng(5)


def randn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def op(kind: str, *args: Any, writes: int = 1, **attrs: Any) -> Op:
    reads = tuple(Read(i) for i in sorted(set(_ids(args))))
    return Op(0, "encode", "x", kind, reads, tuple(range(100, 100 + writes)), {"args": list(args), **attrs})


def _ids(tree: Any) -> list[int]:
    if isinstance(tree, dict):
        return [tree["v"]] if "v" in tree else []
    return [i for t in tree for i in _ids(t)] if isinstance(tree, list | tuple) else []


def v(i: int) -> dict[str, int]:
    return {"v": i}


LINEAR = op("aten.linear.default", v(0), v(1), v(2), weights={"1": "fc.weight", "2": "fc.bias"})
W = {"fc.weight": randn(5, 8), "fc.bias": randn(5)}


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float64", 1e-14), ("float32", 1e-6), ("float16", 3e-3), ("bfloat16", 3e-2)]
)
def test_every_dtype(dtype: str, limit: float) -> None:
    x = randn(3, 8)
    (y,) = Executor(W).run(LINEAR, {0: x}, dtype)
    right = x.astype(np.float64) @ W["fc.weight"].T.astype(np.float64) + W["fc.bias"]
    assert y.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert np.abs(y - right).max() < limit
    if limit > 1e-5:
        assert np.abs(y - right).max() > 1e-5


def test_unknown_dtype_weight_and_input() -> None:
    with pytest.raises(CompareError, match="cannot replay in int8"):
        Executor(W).run(LINEAR, {0: randn(3, 8)}, "int8")
    with pytest.raises(CompareError, match=r"no weight `fc.weight`"):
        Executor({}).run(LINEAR, {0: randn(3, 8)}, "float32")
    with pytest.raises(CompareError, match="no array for input 0"):
        Executor(W).run(LINEAR, {}, "float32")
    with pytest.raises(CompareError, match=r"replay aten.linear.default `x` of encode in float32: mat1 and mat2"):
        Executor(W).run(LINEAR, {0: randn(3, 9)}, "float32")


def test_a_weight_can_be_replaced() -> None:
    x, other = randn(3, 8), randn(5, 8)
    (y,) = Executor(W).run(LINEAR, {0: x, 1: other}, "float64")
    np.testing.assert_allclose(y, x.astype(np.float64) @ other.T + W["fc.bias"], atol=1e-6)


def test_explicit_float32_follows_the_replay() -> None:
    softmax = op("aten.softmax.int", v(0), -1, {"dtype": "float32"})
    x = randn(2, 9)
    (y,) = Executor({}).run(softmax, {0: x}, "float64")
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), atol=1e-15)
    (to,) = Executor({}).run(op("aten.to.dtype", v(0), {"dtype": "int64"}, False, False, None), {0: x}, "float64")
    assert to.dtype == np.int64


def test_masks() -> None:
    where = op("aten.where.ScalarOther", v(0), v(1), -3.4028234663852886e38)
    mask, zero = np.array([True, False]), np.zeros((), np.float32)
    for dtype, low in [("float64", -3.4028234663852886e38), ("float32", -3.4028234663852886e38), ("float16", -65504.0)]:
        (y,) = Executor({}).run(where, {0: mask, 1: zero}, dtype)
        assert y.tolist() == [0.0, low]
    fill = op("aten.masked_fill.Scalar", v(0), v(1), {"f": "-inf"})
    (y,) = Executor({}).run(fill, {0: randn(2), 1: mask}, "bfloat16")
    assert y[0] == -np.inf and np.isfinite(y[1])


def test_integers_lists_and_several_outputs() -> None:
    x, ids = randn(4, 6), np.array([[2, 0]])
    run = Executor({}).run
    (rows,) = run(op("aten.index.Tensor", v(0), [None, v(1)]), {0: x, 1: ids}, "float64")
    np.testing.assert_array_equal(rows, x[:, ids])
    (found,) = run(op("aten.embedding.default", v(0), v(1), -1, False, False), {0: x, 1: ids}, "float64")
    np.testing.assert_array_equal(found, x[ids])
    (joined,) = run(op("aten.cat.default", [v(2), v(0)], 1), {0: x, 2: np.zeros((0,), np.float32)}, "float32")
    np.testing.assert_array_equal(joined, x)
    top, where = run(op("aten.topk.default", v(0), 2, -1, True, True, writes=2), {0: x}, "float64")
    np.testing.assert_array_equal(where, np.argsort(-x, -1)[:, :2])
    assert where.dtype == np.int64 and top.dtype == np.float64
    parts = run(op("aten.split.Tensor", v(0), 4, 1, writes=2), {0: x}, "float32")
    assert [p.shape for p in parts] == [(4, 4), (4, 2)]
    (best,) = run(op("aten.argmax.default", v(0), -1, False), {0: x}, "bfloat16")
    np.testing.assert_array_equal(best, x.astype(np.float32).argmax(-1))


def test_views_of_any_strides() -> None:
    x = randn(6, 4)
    run = Executor({}).run
    for given in (x.T, x[::-1].T, np.asfortranarray(x).T, np.broadcast_to(x[:, :1], (6, 4)).T):
        (y,) = run(op("aten.view.default", v(0), [2, 12]), {0: given}, "float32")
        np.testing.assert_array_equal(y, np.ascontiguousarray(given).reshape(2, 12))
    # a view in place counts in the strides of the recorded memory, whatever strides the replayed value has
    strided = op("aten.as_strided.default", v(0), [2, 3], [1, 6], 3, layout=[1, 6])
    memory = np.asfortranarray(x)
    right = np.lib.stride_tricks.as_strided(memory.T.ravel()[3:], (2, 3), (4, 24))
    for given in (x, memory):
        (y,) = run(strided, {0: given}, "float32")
        np.testing.assert_array_equal(y, right)


def test_read_only_memory_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    randn(64).tofile(path)
    before = path.read_bytes()
    x = np.memmap(path, np.float32, "r", shape=(8, 8))
    run = Executor({}).run
    (y,) = run(op("aten.transpose.int", v(0), 0, 1), {0: x}, "float32")
    assert np.shares_memory(y, x)
    assert not y.flags.writeable
    (z,) = run(op("aten.add.Tensor", v(0), v(0)), {0: x}, "float32")
    z += 1
    assert path.read_bytes() == before
    for dtype in (">f4", "<f8", np.float16):
        (w,) = run(op("aten.add.Tensor", v(0), v(0)), {0: x.astype(dtype)}, "float64")
        np.testing.assert_allclose(w, 2 * x, atol=1e-2)


HOSTILE: list[tuple[str, list[Any]]] = [
    ("os.system.default", ["touch HERE"]),
    ("aten.__class__.mro", []),
    ("aten.name.default", []),
    ("aten.from_file.default", ["/etc/passwd", False, 8]),
    ("aten.from_file.default", ["HERE", True, 8]),
    ("aten.save.default", [v(0), "HERE"]),
    ("aten.add_.Tensor", [v(0), v(0)]),
    ("aten.add.out", [v(0), v(0)]),
    ("aten.resize_.default", [v(0), [4]]),
    ("aten.set_.source_Storage", [v(0), v(0)]),
    ("aten._print.default", ["hello"]),
    ("aten._resize_output.default", [v(0), [1 << 40], {"device": "cpu"}]),
    ("aten.item.default", [v(0)]),
    ("prim.Print.default", []),
    ("aten..default", []),
    ("aten.add.__class__", []),
    ("aten.add", [v(0), v(0)]),
    ("profiler._record_function_enter.default", ["x"]),
    ("", []),
]


@pytest.mark.parametrize(("kind", "args"), HOSTILE)
def test_hostile_kinds_are_refused(tmp_path: Path, kind: str, args: list[Any]) -> None:
    here = tmp_path / "written"
    args = [a.replace("HERE", str(here)) if isinstance(a, str) else a for a in args]
    x = randn(8)
    before = x.copy()
    with pytest.raises(CompareError, match="cannot replay `"):
        Executor({}).run(op(kind, *args), {0: x}, "float32")
    assert not here.exists()
    np.testing.assert_array_equal(x, before)
    assert conditions.of(kind) is None or kind.startswith("aten.add")


@pytest.mark.parametrize(
    "args",
    [
        [{"v": "0"}],
        [{"v": 0, "f": "inf"}],
        [{}],
        [{"f": "1e999"}],
        [{"dtype": "Tensor"}],
        [{"dtype": "load"}],
        [{"layout": "float32"}],
        [{"__class__": "x"}],
        [object()],
        {"v": 0},
        "x",
    ],
)
def test_hostile_arguments_are_refused(args: Any) -> None:
    call = Op(0, "encode", "x", "aten.relu.default", (Read(0),), (1,), {"args": args})
    with pytest.raises(CompareError, match="recorded call"):
        Executor({}).run(call, {0: randn(3)}, "float32")


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("aten.zeros.default", [[1 << 40, 1 << 20]]),
        ("aten.as_strided.default", [v(0), [1 << 30], [1 << 30], 0]),
        ("aten.reshape.default", [v(0), [-1, 7]]),
        ("aten.index.Tensor", [v(0), [v(1)]]),
        ("aten.embedding.default", [v(0), v(1)]),
        ("aten.relu.default", [v(0), v(0), v(0)]),
        ("aten.einsum.default", ["ab,,->", [v(0)]]),
        ("aten.gather.default", [v(0), 0, v(1)]),
    ],
)
def test_impossible_calls_are_one_line(kind: str, args: list[Any]) -> None:
    with pytest.raises(CompareError, match=f"cannot replay {kind}") as raised:
        Executor({}).run(op(kind, *args), {0: randn(3, 4), 1: np.array([[9999999]])}, "float32")
    assert "\n" not in str(raised.value)


class Zoo(nn.Module):
    """One of each op that has a scale or a sequential form."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bare = nn.Linear(32, 24), nn.Linear(24, 24, bias=False)
        self.conv1 = nn.Conv1d(24, 8, 3, stride=2, padding=1, dilation=2, groups=4)
        self.conv2 = nn.Conv2d(2, 4, (3, 2), padding=(1, 0))
        self.norm, self.rms, self.group = nn.LayerNorm(24), nn.RMSNorm(24), nn.GroupNorm(2, 8)
        self.batch = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bare(self.linear(x))
        y = self.norm(x + 30) + self.rms(x) - 0.5
        scores = torch.matmul(y, y.transpose(1, 2)) / 3
        for act in (F.gelu, F.silu, torch.sigmoid, torch.tanh, torch.exp, torch.sin, torch.cos, torch.relu, torch.erf):
            y = y + act(x * 0.7)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        p = torch.softmax(scores, -1)
        q = torch.log_softmax(scores, 1)
        z = torch.bmm(p, y) + torch.addmm(y[0, 0], y[0], torch.eye(24), beta=0.5) + q.sum(1)[..., None]
        c = self.batch(self.group(self.conv1(z.transpose(1, 2))))
        square = self.conv2(z[:, None].expand(-1, 2, -1, -1))
        return c.sum() + square.mean([1, 2]).sum() + torch.sqrt(z.abs()).cumsum(1).sum()


@pytest.fixture(scope="module")
def zoo() -> tuple[Any, dict[str, np.ndarray]]:
    import sys

    kept = sys.modules[next(m for m in sys.modules if m.endswith("reference.conftest"))].Kept()  # a fixture is per test
    torch.manual_seed(1)
    model = Zoo().eval().requires_grad_(False)
    for t in (*model.parameters(), model.batch.running_mean):
        t.add_(torch.randn(t.shape) * 0.3)
    x = torch.randn(2, 10, 32)
    with torch.inference_mode(), Recorder(model, kept) as recorder:
        recorder.begin("forward")
        model(recorder.input("x", x))
    return kept, {n: t.detach().numpy() for n, t in [*model.named_parameters(), *model.named_buffers()]}


def zoo_ops(zoo: tuple[Any, dict[str, np.ndarray]]) -> list[tuple[Op, dict[int, np.ndarray], np.ndarray, Executor]]:
    """Each op that makes a float value, its float32 inputs, and its output in float64 on them."""
    kept, weights = zoo
    executor, known = Executor(weights), kept.replay(weights)
    found = []
    for o in kept.ops:
        inputs = {r.value: known[r.value] for r in o.reads if r.value in known}
        exact = executor.run(o, inputs, "float64")[0]
        if exact.dtype == np.float64:
            found.append((o, inputs, exact, executor))
    return found


U = 2.0**-24


def test_scale_bounds_what_torch_loses(zoo: Any) -> None:
    """torch's own float32 error, in units of u x scale, stays within 6 + 6 sqrt(terms); exact ops are exact."""
    seen = set()
    for o, inputs, exact, executor in zoo_ops(zoo):
        scale = executor.scale(o, inputs, exact)
        assert scale is not None, o.kind
        assert scale.dtype == np.float32
        scale = np.broadcast_to(scale, exact.shape)
        error = np.abs(executor.run(o, inputs, "float32")[0] - exact)
        assert np.all(error <= (6 + 6 * np.sqrt(72)) * U * scale), o.kind
        if conditions.of(o.kind) is not conditions._zero:
            seen.add(o.kind.split(".")[1])
            # and it is a condition, not a blank cheque: within some decades of the value's own size
            assert np.median(scale) <= 1e3 * (np.median(np.abs(exact)) + 1e-3), o.kind
    assert {"linear", "conv1d", "conv2d", "layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax"} <= seen
    assert {"matmul", "bmm", "addmm", "gelu", "silu", "log_softmax", "mean", "sum", "cumsum", "pow", "rsqrt"} <= seen


def test_scale_of_linear_is_its_condition() -> None:
    x = randn(3, 8)
    (exact,) = Executor(W).run(LINEAR, {0: x}, "float64")
    scale = Executor(W).scale(LINEAR, {0: x}, exact)
    np.testing.assert_allclose(scale, np.abs(x) @ np.abs(W["fc.weight"]).T + np.abs(W["fc.bias"]), rtol=1e-6)


def test_scale_of_masked_softmax_is_finite() -> None:
    x = randn(2, 6)
    x[:, 3:] = [-np.inf, -3.4e38, -1e9]
    softmax = op("aten.softmax.int", v(0), -1, None)
    (exact,) = Executor({}).run(softmax, {0: x}, "float64")
    scale = Executor({}).scale(softmax, {0: x}, exact)
    assert scale is not None and np.isfinite(scale).all()
    assert (scale[:, 3:] == 0).all() and (scale[:, :3] >= exact[:, :3]).all()


def test_no_scale_is_said() -> None:
    x = randn(3)
    assert Executor({}).scale(op("aten.lgamma.default", v(0)), {0: x}, x) is None
    assert Executor({}).sequential(op("aten.relu.default", v(0)), {0: x}, 8, 0) is None


def test_sequential_is_near_and_in_order(zoo: Any) -> None:
    seen = set()
    for o, inputs, exact, executor in zoo_ops(zoo):
        made = executor.sequential(o, inputs, 96, 3)
        if made is None:
            continue
        where, values = made
        seen.add(o.kind.split(".")[1])
        scale = np.broadcast_to(executor.scale(o, inputs, exact), exact.shape).ravel()[where]
        assert values.dtype == np.float32 and values.shape == where.shape
        assert len(np.unique(where)) == len(where) >= min(exact.size, 24)
        assert np.all(np.abs(values - exact.ravel()[where]) <= 80 * U * scale), o.kind
        again = executor.sequential(o, inputs, 96, 3)
        assert again is not None and np.array_equal(again[0], where) and np.array_equal(again[1], values)
    assert {"linear", "conv1d", "conv2d", "layer_norm", "rms_norm", "softmax", "log_softmax"} <= seen
    assert {"matmul", "bmm", "addmm", "mean", "sum"} <= seen


def plain_loop(first: float, terms: np.ndarray, last: float = 0.0) -> np.float32:
    acc = np.float32(first)
    for term in terms.astype(np.float32):
        acc = np.float32(acc + term)
    return np.float32(acc + np.float32(last))


def worst(terms: np.ndarray, bias: float, *others: np.ndarray) -> np.float32:
    """Of the plain loops over these terms, with the bias first or last, the one that is furthest off."""
    exact = float(terms.sum(dtype=np.float64)) + float(bias)
    made = [f for order in (terms, *others) for f in (plain_loop(0, order, bias), plain_loop(bias, order))]
    return max(made, key=lambda y: abs(float(y) - exact))


def c_like_softmax(x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        acc, e = np.float32(0), np.exp(row - row.max())
        for term in e:
            acc = np.float32(acc + term)
        out[i] = e / acc
    return out


@pytest.mark.parametrize("K", [1, 7, 300])
@pytest.mark.parametrize("large", [1, 1000])
def test_sequential_is_the_worst_plain_loop(K: int, large: int) -> None:
    x, weights = randn(3, K), {"fc.weight": randn(5, K), "fc.bias": randn(5) * large}
    made = Executor(weights).sequential(LINEAR, {0: x}, 1000, 0)
    assert made is not None
    W, B = weights["fc.weight"], weights["fc.bias"]
    by_hand = [[worst(x[i] * W[j], B[j]) for j in range(5)] for i in range(3)]
    off, least = (
        np.abs(np.array(y, np.float64).reshape(3, 5) - (x.astype(np.float64) @ W.T + B)) for y in (made[1], by_hand)
    )
    np.testing.assert_allclose(off, least, atol=1e-7 * large)
    rows = Executor({}).sequential(op("aten.softmax.int", v(0), -1, None), {0: x}, 3 * K, 0)
    assert rows is not None
    np.testing.assert_array_equal(rows[1].reshape(3, K), c_like_softmax(x))


@pytest.mark.parametrize("bias", [0.0, 100.0])
def test_sums_by_tap_count_too(bias: float) -> None:
    """A filter whose taps cancel: nothing is left on the way channel by channel, much tap by tap."""
    C = 500
    x, w = np.repeat(np.abs(randn(1, C, 1)), 3, 2), np.abs(randn(1, C, 1)) * np.array([1, 0, -1], np.float32)
    conv = op("aten.conv1d.default", v(0), v(1), v(2), [1], [0], [1], 1)
    made = Executor({}).sequential(conv, {0: x, 1: w, 2: np.array([bias], np.float32)}, 8, 0)
    assert made is not None
    terms = (x[0] * w[0]).astype(np.float32)  # [C, taps]
    assert made[1].ravel().tolist() == [worst(terms.ravel(), bias, terms.T.ravel())]
    assert plain_loop(0, terms.ravel()) == 0 != plain_loop(0, terms.T.ravel())


def test_weights_are_cast_once_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(W)
    executor.run(LINEAR, {0: randn(3, 8)}, "float64")
    first = executor._weight_as("fc.weight", "float64")
    assert executor._weight_as("fc.weight", "float64") is first
    monkeypatch.setattr(executor, "weight_budget", 8 * 40 + 8)
    executor.run(LINEAR, {0: randn(3, 8)}, "bfloat16")
    assert executor._cached_bytes <= 8 * 40 + 8
