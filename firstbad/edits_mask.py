"""Edits of kind `mask`: which elements are masked.

A mask is any value of the region with masked entries (-inf, the lowest number, -1e9) or booleans that select. It may be
missing, strict or loose by one, inverted, transposed, of another window; where the candidate's own masked set can be
seen (in scores, or as zeros of a softmax) that very set is tried and named by its pattern. A causal mask may also stand
where the model has none. Leaves out the values that a mask lets through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, LOOSE, SIMPLE, Edit, call
from firstbad.edits_variant import word_of
from firstbad.judge import MASKED

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOWEST = float(np.finfo(np.float32).min)


def masks(case: Case) -> Iterator[Edit]:
    """Another mask in the place of the region's, or one where it has none."""
    found = False
    for i, held in _masks(case):
        found = True
        name = case.reference.graph.values[i].name
        masked = ~held if held.dtype == bool else held <= MASKED
        if held.dtype == bool and word_of(_reader(case, i)) == "masked_fill":
            masked = held
        for how, other in _others(masked, _visible(case)):
            if other.shape == masked.shape and not np.array_equal(other, masked):
                cost = FITTED if how.startswith("seen") else SIMPLE
                detail = {"input": name, "how": how.removeprefix("seen: "), "model": named(masked)}
                yield Edit("mask", detail, {i: _as_mask(held, masked, other)}, cost=cost)
    if not found and case.floats:
        yield from _added(case)


def triangles(case: Case) -> Iterator[Edit]:
    """A triangle, of which masks are made, from another diagonal on; of numbers or of truth values."""
    for op in case.ops:
        if word_of(op) not in ("triu", "tril"):
            continue
        args = op.attrs["args"]
        own = int(args[1]) if len(args) > 1 else int(op.attrs.get("kwargs", {}).get("diagonal", 0))
        for by in (1, -1, 2, -2):
            new = call(case.reference.graph, op, op.kind, [args[0], own + by], op.writes[0])
            how = f"shifted by {abs(by)} ({'less' if by > 0 else 'more'} is masked)"
            detail = {"input": "", "how": how, "model": f"{word_of(op)} from diagonal {own} on"}
            yield Edit("mask", detail, ops={op.id: (new,)}, cost=SIMPLE)


def _added(case: Case) -> Iterator[Edit]:
    """A mask where the model has none: on scores at the output, on the input of a softmax."""
    op = case.ops[-1]
    softmax = word_of(op) in ("softmax", "_softmax")
    visible = _visible(case)
    shape = case.region.value.shape
    if len(shape) < 2 or visible is None or not visible.any() or visible.all():
        return
    how = named(visible)
    detail = {"input": "", "how": how, "model": "none"}
    cost = LOOSE if how.endswith("elements") else FITTED  # a choice of elements that no words name
    if softmax:
        source = op.attrs["args"][0]["v"]
        held = case.preview_value(source)
        if held is not None and held.shape == visible.shape:
            yield Edit("mask", detail, {source: np.where(visible, LOWEST, held).astype(np.float32)}, cost=cost)
        return
    own = np.asarray(case.own(), np.float32)

    def after(y: NDArray[Any]) -> NDArray[Any]:
        return np.where(visible, own, y).astype(y.dtype)

    if (own[visible] <= MASKED).all():
        yield Edit("mask", detail, after=(after,), cost=cost)


def _masks(case: Case) -> Iterator[tuple[int, NDArray[Any]]]:
    """Values that the region's ops read and that mask something."""
    seen: set[int] = set()
    for op in reversed(case.region.ops):
        if word_of(op) not in ("add", "masked_fill", "where", "mul", "scaled_dot_product_attention"):
            continue
        for read in op.reads:
            if read.value in seen or case.reference.graph.values[read.value].kind == "weight":
                continue
            seen.add(read.value)
            if case.reference.graph.values[read.value].dtype not in ("bool", "float32", "float16", "bfloat16"):
                continue
            held = case.preview_value(read.value)
            if held is None or held.ndim < 1:
                continue
            held = np.asarray(held)
            if held.dtype == bool or (_only_mask(held)):
                yield read.value, held


def is_mask(case: Case, i: int) -> bool:
    """Whether a value that the region reads masks something."""
    known = case.reference.graph.values[i]
    if known.kind == "weight" or not known.shape or known.dtype not in ("float32", "float16", "bfloat16"):
        return False
    held = case.preview_value(i)
    return held is not None and _only_mask(np.asarray(held))


def _only_mask(held: NDArray[Any]) -> bool:
    """Zeros and masked entries, both or one of them."""
    masked = held <= MASKED
    return bool(np.all(masked | (held == 0)) and masked.any())


def _reader(case: Case, i: int) -> Any:
    return next(op for op in case.region.ops if any(r.value == i for r in op.reads))


def _others(masked: NDArray[np.bool_], visible: NDArray[np.bool_] | None) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    yield "missing", np.zeros_like(masked)
    if masked.ndim >= 2 and masked.shape[-2] > 1:
        for k in (1, -1, 2, -2):
            yield f"shifted by {k} (more is masked)" if k < 0 else f"shifted by {k} (less is masked)", _slid(masked, k)
        if masked.shape[-1] == masked.shape[-2]:
            yield "transposed", np.swapaxes(masked, -1, -2)
    yield "inverted", ~masked
    for k in (1, -1):
        yield f"ids moved by {k}", np.roll(masked, k, -1)
    if visible is None:
        return
    seen = visible
    while seen.ndim > masked.ndim:
        seen = seen[0]
    if seen.shape != masked.shape and seen.ndim == masked.ndim:
        odd = tuple(a for a, (m, n) in enumerate(zip(masked.shape, seen.shape, strict=True)) if m == 1 and n != 1)
        if all((np.take(seen, [0], a) == seen).all() for a in odd):
            for a in odd:
                seen = np.take(seen, [0], a)
    if seen.shape == masked.shape:
        yield f"seen: {named(seen)}", seen


def _slid(masked: NDArray[np.bool_], k: int) -> NDArray[np.bool_]:
    """mask[i, j] from [i, j - k]; beyond the edge as at the edge."""
    C = masked.shape[-1]
    return np.take(masked, np.clip(np.arange(C) - k, 0, C - 1), -1)


def _visible(case: Case) -> NDArray[np.bool_] | None:
    """Masked elements as far as the candidate's own value shows them."""
    if not case.floats:
        return None
    own = np.asarray(case.own())
    if word_of(case.ops[-1]) in ("softmax", "_softmax"):
        return np.asarray(own == 0)
    return np.asarray(own <= MASKED)


def _as_mask(held: NDArray[Any], masked: NDArray[np.bool_], other: NDArray[np.bool_]) -> NDArray[Any]:
    """The other set written as the model writes its mask."""
    if held.dtype == bool:
        return other if np.array_equal(held, masked) else ~other
    lowest = held[masked].flat[0] if masked.any() else LOWEST
    return np.where(other, lowest, 0).astype(held.dtype)


def _banded(masked: NDArray[np.bool_]) -> str:
    """What stands along the diagonal, by name; "" if it is nothing of the kind."""
    R, C = masked.shape[-2:]
    one = masked.reshape(-1, R, C)[0]
    i, j = np.indices((R, C))
    ahead = j - (i + C - R)
    for k in range(-3, 4):
        moved = f", moved by {k}" if k else ""
        known = {"causal" + (f", {'less' if k > 0 else 'more'} by {abs(k)}" if k else ""): ahead > k}
        known["what a causal mask lets through" + moved] = ahead <= k
        window = C + 1 if C > 512 else min(C, int((~one).sum(1).max()) + 1)
        for w in range(max(1, window - 2), window):
            known[f"window of {w}" + moved] = (ahead > k) | (ahead <= k - w)
        for name, other in known.items():
            if np.array_equal(one, other):
                return name
    return ""


def named(masked: NDArray[np.bool_]) -> str:
    """A masked set by its pattern: "causal", "causal, strict", "window of 4", "the last 3 columns", "3 ids"."""
    if not masked.any():
        return "none"
    flat = masked.reshape(-1, masked.shape[-1])
    banded = _banded(masked) if masked.ndim >= 2 and masked.shape[-2] > 1 else ""
    if banded:
        return banded
    if (flat == flat[0]).all():
        columns = np.flatnonzero(flat[0])
        if columns[-1] == masked.shape[-1] - 1 and len(columns) == columns[-1] - columns[0] + 1 and len(columns) > 1:
            return f"the last {len(columns)} columns"
        return "columns " + ", ".join(map(str, columns[:8])) + (" ..." if len(columns) > 8 else "")
    return f"{int(masked.sum())} elements"
