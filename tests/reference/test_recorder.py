"""The recorder against models that do the awkward things: each graph, replayed, must give the run's own values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firstbad.errors import CompareError, UsageError
from firstbad.reference.recorder import Recorder
from firstbad.want import EnoughError, chosen


class Model(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.body = body

    def forward(self, *args: Any) -> Any:
        return self.body(self, *args)


def record(kept: Any, body: Callable[..., Any], *inputs: torch.Tensor, module: nn.Module | None = None) -> Any:
    """Run plainly and recorded: bit-equal results, and a graph that replays to them."""
    model = (module or Model(body)).eval().requires_grad_(False)
    weights = {n: t.detach().numpy().copy() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    buffers = {n: t.clone() for n, t in model.named_buffers()}
    with torch.inference_mode():
        plain = model(*[i.clone() for i in inputs])
        for name, tensor in model.named_buffers():
            tensor.copy_(buffers[name])
    copies = [i.clone() for i in inputs]
    with torch.inference_mode(), Recorder(model, kept) as recorder:
        recorder.begin("forward")
        result = model(*[recorder.input(f"x{i}", t) for i, t in enumerate(copies)])
        shown = recorder.id_of(result) if isinstance(result, torch.Tensor) else None
    for a, b in zip(flat(plain), flat(result), strict=True):
        np.testing.assert_array_equal(a, b)
    kept.check_replay(weights)
    if shown is not None:
        np.testing.assert_array_equal(kept.replay(weights)[shown], result.numpy())
    return kept


def flat(tree: Any) -> list[np.ndarray]:
    return [tree.numpy()] if isinstance(tree, torch.Tensor) else [a for t in tree for a in flat(t)]


X = torch.arange(24.0).reshape(2, 3, 4) / 7


def write_base_read_view(_m: Model, x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    view = base[:, 1]
    base.add_(1)
    return view * 3


def write_view_read_base(_m: Model, x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    base[:, 1].mul_(10)
    return base + 1


def write_view_read_other_view(_m: Model, x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    rows, turned = base.view(6, 4), base.transpose(0, 2)
    rows[2:4].zero_()
    return turned * 1.5


def split_and_write(_m: Model, x: torch.Tensor) -> torch.Tensor:
    a, b, c = (x * 2).split([1, 1, 2], dim=2)
    b.sub_(5)
    return torch.cat([c, a, b], dim=2)


def chained_views(_m: Model, x: torch.Tensor) -> torch.Tensor:
    base = x + 1
    view = base.permute(2, 0, 1)[1:3].unsqueeze(0)[0, :, :, ::2]
    base.neg_()
    view.mul_(2)
    return base.exp() + view.sum()


def permuted_root(_m: Model, x: torch.Tensor) -> torch.Tensor:
    base = torch.relu(x.permute(2, 0, 1))  # keeps the strides of its input: not contiguous
    base[1].add_(3)
    return base * 2


def same_object(m: Model, x: torch.Tensor) -> torch.Tensor:
    y = nn.functional.dropout(x * 2, 0.5, training=m.training).contiguous().to(torch.float32)
    return y.detach() + 1


def operators(_m: Model, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y += x
    y[0, 0] = 7
    y[y > 3] = 0.5
    y[:, [0, 2]] *= 2
    return y


def out_argument(_m: Model, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    torch.add(x, 1, out=y)
    torch.mul(x, y, out=y)
    return y


def uninitialised(_m: Model, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(4, 4)
    y[:2] = x[0, :2]
    y[2:].fill_(3)
    return y


def unsqueeze_in_place(_m: Model, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.unsqueeze_(0)
    y.add_(1)
    return y.squeeze(0)


def shares_storage_unseen(_m: Model, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y.data[1].as_strided((2, 2), (1, 2), 3) + 1


def foreach(_m: Model, x: torch.Tensor) -> list[torch.Tensor]:
    a, b = x * 2, x * 3
    torch._foreach_add_([a, b], 1.0)
    return [a * 1.5, b * 1.5]


def many_outputs(_m: Model, x: torch.Tensor) -> list[torch.Tensor]:
    top, where = torch.topk(x, 2, dim=-1)
    low, high = torch.aminmax(x)
    return [top, where, x.max(dim=1).indices, *torch.unbind(x * 2), *(x.sort().values).chunk(2), low, high]


def integers(m: Model, x: torch.Tensor) -> torch.Tensor:
    ids = torch.arange(x.shape[1]) + 2
    mask = ids[None, :] <= ids[:, None]
    bias = torch.where(mask, torch.zeros(()), torch.finfo(torch.float32).min)
    return torch.softmax(x @ x.transpose(1, 2) + bias, -1).argmax(-1)


def number_leaves(_m: Model, x: torch.Tensor) -> torch.Tensor:
    return x * x.max().item()


def lists_of_none(_m: Model, x: torch.Tensor) -> torch.Tensor:
    return x[:, torch.tensor([2, 0])] + x[:, None, 1].new_full((1,), float("inf")).isinf()


BODIES = [
    *(write_base_read_view, write_view_read_base, write_view_read_other_view, split_and_write, chained_views),
    *(permuted_root, same_object, operators, out_argument, uninitialised, unsqueeze_in_place, shares_storage_unseen),
    *(foreach, many_outputs, integers, number_leaves, lists_of_none),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_graph_replays_to_the_run(kept: Any, body: Callable[..., Any]) -> None:
    record(kept, body, X)


class StaticCache(nn.Module):
    """A key-value cache in registered buffers, written in place: weights that change under way."""

    cache: torch.Tensor
    length: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4, bias=False)
        self.register_buffer("cache", torch.zeros(2, 8, 4))
        self.register_buffer("length", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for t in range(x.shape[1]):
            self.cache.index_copy_(1, self.length, self.proj(x[:, t : t + 1]))
            self.length.add_(1)
        return self.cache @ x.transpose(1, 2)


def test_static_cache_holds_what_each_step_saw(kept: Any) -> None:
    record(kept, None, X, module=StaticCache())  # type: ignore[arg-type]
    caches = [v for v in kept.values if v.name.startswith("index_copy")]
    # copied at capture, not referred to: each holds the rows of its time, of two batches
    assert [int((kept.array(v) != 0).any(-1).sum()) for v in caches] == [2, 4, 6]


def test_view_is_of_what_it_shows_and_not_stored(kept: Any) -> None:
    record(kept, lambda m, x: m.fc(x).view(6, 4).t().contiguous() * 1.0, X)
    # `mul` equals a copy that is not stored: there is nothing to point at, so it is stored itself
    assert kept.stored("forward") == ["x0", "fc", "mul"]
    assert kept.named("forward", "view").kind == "view"
    assert kept.named("forward", "contiguous").reason == "copy of t"


def test_bit_equal_value_is_stored_once(kept: Any) -> None:
    record(kept, lambda m, x: (m.fc(x) * 1.0).softmax(-1) * 1.0 + 0.0, X)
    fc, mul = kept.named("forward", "fc"), kept.named("forward", "mul")
    assert mul.same_as == fc.id
    softmax = kept.named("forward", "softmax")
    assert kept.named("forward", "mul_1").same_as == kept.named("forward", "add").same_as == softmax.id


def test_negative_zero_is_not_zero(kept: Any) -> None:
    record(kept, lambda m, x: (x * 0.0) * -1.0, X)
    assert kept.named("forward", "mul_1").same_as == -1


def test_nan_equals_itself(kept: Any) -> None:
    record(kept, lambda m, x: (x / 0.0 - x / 0.0) * 1.0, X)
    assert kept.named("forward", "mul").same_as == kept.named("forward", "sub").id


def test_freed_memory_is_a_new_value(kept: Any) -> None:
    def body(_m: Model, x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for _ in range(50):  # the allocator gives the same address, Python the same id, again and again
            total = total + (x * 2).sum()
        return total

    record(kept, body, X)
    for op in kept.ops:
        if op.kind == "aten.mul.Tensor":
            assert op.reads[0].value == kept.named("forward", "x0").id


def test_schema_defaults_are_filled_in(kept: Any) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv1d(self.norm(x), torch.ones(2, 3, 1))

    record(kept, None, X, module=Norm())  # type: ignore[arg-type]
    norm, conv = kept.ops[0], kept.ops[-1]
    assert norm.attrs["args"][1:] == [[4], {"v": 0}, {"v": 1}, 1e-05, True]
    assert norm.attrs["weights"] == {"0": "norm.weight", "1": "norm.bias"}
    assert conv.attrs["args"][2:] == [None, [1], [0], [1], 1]


def test_names(kept: Any) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.act = nn.GELU()
            self.conv = nn.Conv1d(3, 3, 3, padding=1, padding_mode="circular")
            self.add = nn.ModuleDict({"fc": nn.Linear(4, 4)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.act(self.fc(x)) + self.fc(x)
            y = self.add["fc"](self.conv(y + 1))
            where = y.argmax(-1) + 1
            return y + where[..., None]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(self.block(x)).softmax(-1)

    record(kept, None, X, module=Outer())  # type: ignore[arg-type]
    names = [v.name for v in kept.values if v.step == "forward" and v.kind == "value"]
    once = "fc act.gelu fc_1 add_1 add_2 conv_pad conv add.fc argmax:int64 add:int64 add_3"
    assert names[: len(once.split())] == [f"block.{n}" for n in once.split()]
    assert names[-1] == "softmax"
    assert len(set(names)) == len(names)
    again = names[len(once.split()) :]
    assert again[:3] == ["block.fc_2", "block.act.gelu_1", "block.fc_3"]


def test_same_graph_in_another_dtype(kept: Any) -> None:
    record(kept, integers, X)
    other = type(kept)()
    model, doubled = Model(integers).double(), X.double()
    with torch.inference_mode(), Recorder(model, other) as recorder:
        recorder.begin("forward")
        model(recorder.input("x0", doubled))
    assert [v.name for v in other.values] == [v.name for v in kept.values]
    assert [o.kind for o in other.ops] == [o.kind for o in kept.ops]


def test_random_numbers_are_frozen(kept: Any) -> None:
    def body(_m: Model, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        noise = torch.randn(4)
        drawn = torch.zeros(4)
        drawn.uniform_()
        return nn.functional.dropout(x, 0.5, training=True) + noise + drawn

    record(kept, body, X)
    constants = {v.name for v in kept.values if v.kind == "constant"}
    assert constants == {"randn", "uniform", "dropout"}


def test_an_exception_leaves_hooks_and_names_right(kept: Any) -> None:
    def body(m: Model, x: torch.Tensor) -> torch.Tensor:
        try:
            m.fc(x[..., :2])
        except RuntimeError:
            return x + 1
        raise AssertionError

    record(kept, body, X)
    assert kept.named("forward", "add").kind == "value"
    with pytest.raises(ZeroDivisionError), torch.inference_mode(), Recorder(Model(body), type(kept)()):
        raise ZeroDivisionError
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_compiled_modules_are_refused(kept: Any) -> None:
    model = Model(same_object)
    with pytest.raises(UsageError, match="is compiled"):
        Recorder(torch.compile(model, backend="eager"), kept)  # type: ignore[arg-type]
    model.fc.compile(backend="eager")
    with pytest.raises(UsageError, match="module `fc` is compiled"):
        Recorder(model, kept)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda _m, x: (x * 2).resize_(4), "other memory under way"),
        (lambda _m, x: (x * 2).view(torch.int32).add_(1).view(torch.float32), "another dtype"),
    ],
)
def test_what_cannot_be_followed_is_refused(kept: Any, body: Callable[..., Any], message: str) -> None:
    with pytest.raises(CompareError, match=message):
        record(kept, body, X)


def test_tied_and_fused_weights(kept: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            fused = torch.randn(8, 4)
            self.q, self.k = nn.Parameter(fused[:4]), nn.Parameter(fused[4:])
            self.embed = nn.Embedding(5, 4)
            self.out = nn.Linear(4, 5, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            return self.out(x @ self.q @ self.k[:, 1:].t().t().new_zeros(4, 4) + x)

    record(kept, None, torch.tensor([0, 3]), module=Tied())  # type: ignore[arg-type]
    weights = [v.name for v in kept.values if v.kind == "weight"]
    assert weights == ["q", "k", "embed.weight"]
    assert all(v.hash and v.step == "weights" for v in kept.values if v.kind == "weight")
    out = kept.graph.ops[kept.named("forward", "out").op]
    assert out.attrs["weights"] == {"2": "embed.weight"}


def test_bfloat16_is_handed_over_as_its_bits(kept: Any) -> None:
    model, short = Model(lambda m, x: m.fc(x)).to(torch.bfloat16), X.to(torch.bfloat16)
    with torch.inference_mode(), Recorder(model, kept) as recorder:
        recorder.begin("forward")
        y = model(recorder.input("x", short))
    value = kept.named("forward", "fc")
    assert value.dtype == "bfloat16"
    assert kept.arrays[value.id].dtype == np.uint16
    np.testing.assert_array_equal(kept.arrays[value.id], y.view(torch.int16).numpy().view(np.uint16))


def test_steps_not_selected_are_recorded_without_arrays(kept: Any) -> None:
    model = Model(lambda m, x: m.fc(x) + 1)
    with torch.inference_mode(), Recorder(model, kept, stored=lambda step, _name: step == "b") as recorder:
        for step in ("a", "b"):
            recorder.begin(step)
            model(recorder.input("x", X))
    assert kept.stored("a") == ["x"]
    assert kept.named("a", "fc").reason == "not asked for"
    assert kept.stored("b") == ["x", "fc", "add"]


def test_a_run_ends_once_the_last_wanted_value_is_written(kept: Any) -> None:
    model = Model(lambda m, x: torch.relu(m.fc(x)) + 1)
    recorder = Recorder(model, kept, chosen(["b/fc"]), chosen(["b/fc"]))
    with torch.inference_mode(), pytest.raises(EnoughError), recorder:
        for step in ("a", "b", "c"):
            recorder.begin(step)
            model(recorder.input("x", X))
    assert kept.stored("a") == ["x"]
    assert kept.stored("b") == ["x", "fc"]
    assert [v.name for v in kept.values if v.step == "b"] == ["x", "fc"]
    assert not [v for v in kept.values if v.step == "c"]
    assert torch.equal(model(X), torch.relu(model.fc(X)) + 1), "the dispatch mode and the hooks are gone"
