"""The error scale of each ATen op: how far rounding alone may move an output, in units of u.

For a sum of products it is the condition |x||w| + |b|; for the rest the same idea: each rounding in the textbook
formula, carried to the output. Ops that only move values have scale 0: they must be exact. Ops not listed have none.

Each function takes |.| (which keeps the absolute values of weights) and then the op's own arguments in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad.judge import softmax_scale

Tensor = torch.Tensor
Absolute = Callable[[Tensor], Tensor]
Condition = Callable[..., "Tensor | None"]


def of(kind: str) -> Condition | None:
    """The scale function of an op kind like "aten.linear.default"."""
    word = kind.split(".")[1] if kind.startswith("aten.") and kind.count(".") == 2 else ""
    if word in EXACT:
        return _zero
    return TABLE.get(word)


EXACT = frozenset(
    "view reshape _unsafe_view _reshape_alias transpose t permute contiguous clone alias detach expand expand_as "
    "repeat repeat_interleave unsqueeze squeeze slice select narrow split split_with_sizes chunk unbind flatten "
    "unflatten movedim swapaxes cat concat stack _stack index index_select _unsafe_index gather embedding take "
    "flip roll dropout where masked_fill triu tril zeros ones eye full arange zeros_like ones_like full_like "
    "new_zeros new_ones new_full index_copy index_put _unsafe_index_put scatter copy slice_scatter "
    "select_scatter as_strided as_strided_scatter diagonal unfold pad constant_pad_nd neg abs sign relu "
    "threshold clamp clamp_min clamp_max hardtanh max min amax amin maximum minimum max_pool1d max_pool2d "
    "max_pool2d_with_indices sort topk floor ceil round trunc masked_scatter fill zero".split()
)


def of_output(kind: str) -> Callable[..., Tensor] | None:
    """The scale function of an op kind that takes the op's output too, in float32, before its arguments.

    Its result does not depend on more than a row, so it is called with some rows at a time.
    """
    word = kind.split(".")[1] if kind.startswith("aten.") and kind.count(".") == 2 else ""
    return OF_OUTPUT.get(word)


CACHED = 1 << 17
"""Elements that are taken at a time: half a megabyte each of what is read and made, so that it stays in the cache."""


def by_rows(scale: Callable[..., Tensor], y: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`scale` of a large value some rows at a time; whole where the rows are no rows."""
    along = kwargs.get("dim", args[0] if args else -1)
    last = not isinstance(along, int) or along in (-1, x.dim() - 1)
    if x.numel() < 2 * CACHED or x.dim() < 2 or not last or not (x.is_contiguous() and y.is_contiguous()):
        return scale(y, x, *args, **kwargs)
    made = torch.empty_like(x)
    C = x.shape[-1]
    rows, of, to = x.view(-1, C), y.view(-1, C), made.view(-1, C)
    step = max(1, CACHED // C)
    rest = (-1, *args[1:]) if args else args
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        to[part] = scale(of[part], rows[part], *rest, **kwargs)
    return made


def _zero(_abs: Absolute, *_: Any, **__: Any) -> Tensor:
    return torch.zeros(())


def _linear(abs_: Absolute, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return F.linear(x.abs(), abs_(w), None if b is None else abs_(b))


def _matmul(abs_: Absolute, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(abs_(a), abs_(b))


def _addmm(abs_: Absolute, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return abs(beta) * abs_(c) + abs(alpha) * torch.matmul(abs_(a), abs_(b))


def _conv(dims: int) -> Condition:
    op: Any = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]

    def condition(abs_: Absolute, x: Tensor, w: Tensor, b: Tensor | None = None, *rest: Any, **kwargs: Any) -> Tensor:
        made: Tensor = op(x.abs(), abs_(w), None if b is None else abs_(b), *rest, **kwargs)
        return made

    return condition


def _magnitude(x: Any) -> Any:
    return x.abs() if isinstance(x, torch.Tensor) else abs(x)


def _add(_abs: Absolute, a: Any, b: Any, *rest: Any, alpha: float = 1) -> Tensor:
    alpha = rest[0] if rest else alpha
    return torch.as_tensor(_magnitude(a) + abs(alpha) * _magnitude(b))


def _product(_abs: Absolute, a: Any, b: Any) -> Tensor:
    return torch.as_tensor(_magnitude(a * b))


def _quotient(_abs: Absolute, a: Any, b: Any, *, rounding_mode: str | None = None) -> Tensor | None:
    return torch.as_tensor(_magnitude(a / b)) if rounding_mode is None else None


def _sum(_abs: Absolute, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return x.abs().sum() if dim is None else x.abs().sum(dim, keepdim)


def _mean(_abs: Absolute, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return x.abs().mean() if dim is None else x.abs().mean(dim, keepdim)


def _softmax(y: Tensor, x: Tensor, dim: int, *_: Any) -> Tensor:
    """y (1 + |x - max|): the rounding of exp and of its argument; and the sum's share, Σ y |x - max|."""
    if dim in (-1, x.dim() - 1) and (made := softmax_scale(y.numpy(), x.numpy())) is not None:
        return torch.from_numpy(made)
    below = torch.sub(x.amax(dim, keepdim=True), x)
    own = below.clamp_(max=1e30).mul_(y)  # where masked: 0 × inf must be 0
    share = own.sum(dim, keepdim=True).add_(1)
    return own.addcmul_(y, share)


def _log_softmax(_abs: Absolute, x: Tensor, dim: int, *_: Any) -> Tensor:
    y = torch.log_softmax(x, dim)
    p = y.exp()
    below = x - x.amax(dim, keepdim=True)
    share = torch.where(p == 0, torch.zeros(()), p * (1 + below.abs())).sum(dim, keepdim=True)
    return below.abs() + y.abs() + share


def _layer_norm(
    _abs: Absolute, x: Tensor, shape: list[int], w: Tensor | None, b: Tensor | None, eps: float = 1e-5, *_: Any
) -> Tensor:
    """|g| rstd (2 |x - mean| + mean |x|) + |b|: the mean's own error is what cancels in x - mean."""
    dims = list(range(-len(shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    scale = 2 * centred.abs() + x.abs().mean(dims, keepdim=True)
    scale = scale / (centred.square().mean(dims, keepdim=True) + eps).sqrt()
    scale = scale if w is None else scale * w.abs()
    return scale if b is None else scale + b.abs()


def _rms_norm(_abs: Absolute, x: Tensor, shape: list[int], w: Tensor | None, eps: float | None = None) -> Tensor:
    dims = list(range(-len(shape), 0))
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    y = 2 * x.abs() / (x.square().mean(dims, keepdim=True) + eps).sqrt()
    return y if w is None else y * w.abs()


def _group_norm(
    _abs: Absolute, x: Tensor, groups: int, w: Tensor | None, b: Tensor | None, eps: float = 1e-5, *_: Any
) -> Tensor:
    parts = x.reshape(x.shape[0], groups, -1)
    centred = parts - parts.mean(-1, keepdim=True)
    scale = 2 * centred.abs() + parts.abs().mean(-1, keepdim=True)
    scale = (scale / (centred.square().mean(-1, keepdim=True) + eps).sqrt()).reshape(x.shape)
    channels = (1, -1) + (1,) * (x.dim() - 2)
    scale = scale if w is None else scale * w.abs().reshape(channels)
    return scale if b is None else scale + b.abs().reshape(channels)


def _batch_norm(
    _abs: Absolute,
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    _momentum: float,
    eps: float,
    *_: Any,
) -> Tensor | None:
    if training or mean is None or var is None:
        return None
    channels = (1, -1) + (1,) * (x.dim() - 2)
    scale = (x.abs() + mean.abs().reshape(channels)) / (var.reshape(channels) + eps).sqrt()
    scale = scale if w is None else scale * w.abs().reshape(channels)
    return scale if b is None else scale + b.abs().reshape(channels)


def _gelu(y: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """0.5 |x| (1 + |erf|), as 1 + erf cancels for negative x, and the argument's rounding: x² φ(x).

    The first is |y| or, for negative x, |x| - |y|: the larger of the two.
    """
    square, size, y = x.square(), x.abs(), y.abs()
    scale = torch.maximum(size.sub_(y), y)
    scale.addcmul_(square.mul(-0.5).exp_(), square, value=0.3989423)
    return scale.mul_(2) if approximate == "tanh" else scale  # the argument is a sum with a cube in it


def _sigmoid(_abs: Absolute, x: Tensor) -> Tensor:
    """An engine may take half of 1 + tanh(x / 2), which cancels for negative x as gelu's 1 + erf does (ONNX Runtime's
    sigmoid is so accurate, and no more)."""
    y = torch.sigmoid(x)
    return torch.maximum(y * (1 + x.abs() * (1 - y)), torch.sigmoid(x.abs()))


def _silu(abs_: Absolute, x: Tensor) -> Tensor:
    return x.abs() * _sigmoid(abs_, x)


def _tanh(_abs: Absolute, x: Tensor) -> Tensor:
    y = torch.tanh(x)
    return y.abs() + x.abs() * (1 - y.square())


def _exp(_abs: Absolute, x: Tensor) -> Tensor:
    return torch.where(torch.isinf(x), torch.zeros(()), torch.exp(x) * (1 + x.abs()))


def _log(_abs: Absolute, x: Tensor) -> Tensor:
    return torch.log(x).abs() + 1


def _sin(_abs: Absolute, x: Tensor) -> Tensor:
    return torch.sin(x).abs() + (x * torch.cos(x)).abs()


def _cos(_abs: Absolute, x: Tensor) -> Tensor:
    return torch.cos(x).abs() + (x * torch.sin(x)).abs()


def _pow(_abs: Absolute, x: Any, e: Any) -> Tensor:
    base, exponent = torch.as_tensor(x), torch.as_tensor(e)
    logarithm = base.abs().clamp_min(1e-30).log().abs()
    if not isinstance(e, torch.Tensor) and float(e).is_integer():
        return base.pow(exponent).abs() * abs(float(e))
    return base.pow(exponent).abs() * (1 + exponent.abs() * logarithm)


def _itself(op: Callable[[Tensor], Tensor]) -> Condition:
    """One correctly rounded function: relative error u."""
    return lambda _abs, x: op(x).abs()


def _cast(abs_: Absolute, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """A cast rounds (at most) once; to the same or a wider dtype it is exact, and the executor replays it so."""
    return abs_(x)


TABLE: dict[str, Condition] = {
    **dict.fromkeys(("linear",), _linear),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _addmm),
    **{f"conv{n}d": _conv(n) for n in (1, 2, 3)},
    **dict.fromkeys(("add", "sub", "rsub"), _add),
    **dict.fromkeys(("mul", "multiply"), _product),
    **dict.fromkeys(("div", "divide"), _quotient),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _log_softmax),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    **dict.fromkeys(("rms_norm", "_fused_rms_norm"), _rms_norm),
    **dict.fromkeys(("to", "_to_copy"), _cast),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "sum": _sum,
    "mean": _mean,
    "silu": _silu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "exp": _exp,
    "log": _log,
    "sin": _sin,
    "cos": _cos,
    "pow": _pow,
    "sqrt": _itself(torch.sqrt),
    "rsqrt": _itself(torch.rsqrt),
    "reciprocal": _itself(torch.reciprocal),
    "square": _itself(torch.square),
    "erf": lambda _abs, x: torch.erf(x).abs() + x.abs() * torch.exp(-x.square()) * 1.1283792,
    "cumsum": lambda _abs, x, dim, **_: x.abs().cumsum(dim),
}

OF_OUTPUT: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), _softmax),
    "gelu": _gelu,
}
