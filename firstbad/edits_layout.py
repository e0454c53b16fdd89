"""Edits of kind `layout`, `heads` and `position`: the right numbers in the wrong places.

Permutations of the output are read off it (each slice is matched with the most alike one of what was expected) and
named by their pattern: shifted, reversed, interleaved, blocks turned round. Permutations of the inputs are tried: rows
moved by a step, a matrix read as its transpose, channels reversed, halves for pairs, heads split the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, LOOSE, After, Edit, call, value
from firstbad.edits_variant import Chain, Id, word_of
from firstbad.graph import Op
from firstbad.heads import heads_near
from firstbad.signature import runs
from firstbad.statement import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = 2048
"""Slices of an axis that are matched with each other."""

SHIFTS = (1, -1, 2, -2)


def moved(case: Case) -> Iterator[Edit]:
    """The output's groups, rows, columns, or blocks of columns (heads) permuted."""
    s = case.signature
    if not case.floats or s.share_wrong == 0 or not np.isfinite(np.asarray(s.expected, np.float64)).all():
        return
    G, R, C = s.shape
    heads = heads_of(case)
    views = [("groups", (G, 1, R * C)), ("rows", (G, R, C)), ("columns", (G, R, C))]
    if heads > 1 and G == 1 and heads < C and C % heads == 0:
        views.insert(0, ("heads", (G * R, heads, C // heads)))
    for axis, shape in views:
        at = {"groups": 0, "rows": 1, "columns": 2, "heads": 1}[axis]
        count = shape[at]
        if not 1 < count <= LARGEST:
            continue
        own, expected = s.own.reshape(shape), np.asarray(s.expected).reshape(shape)
        found = _matched(np.moveaxis(own, at, 0).reshape(count, -1), np.moveaxis(expected, at, 0).reshape(count, -1))
        if found is None or np.array_equal(found, np.arange(count)) or (found < 0).all():  # all zeros: not written
            continue
        name, number = pattern(found)
        kind = "heads" if axis in ("heads", "groups") else "position" if axis == "rows" and number else "layout"
        if axis == "columns" and name == "shifted" and case.region.value.shape[-1] > 1 and _time_is_last(case):
            kind = "position"
        detail: dict[str, Any] = {"what": axis, "how": name, "map": found.tolist()[:32]}
        if number:
            detail["by"] = number
        yield Edit(kind, detail, after=(_taken(found, at, shape),), cost=FITTED)


def moved_in_part(case: Case) -> Iterator[Edit]:
    """Rows or columns permuted in a part of the value only."""
    s = case.signature
    if not case.floats or s.share_wrong == 0 or not np.isfinite(np.asarray(s.expected, np.float64)).all():
        return
    masks, names = [s.groups, s.rows, s.columns], ("groups", "rows", "columns")
    for at in (2, 1):
        box = [
            np.arange(n) if k == at else np.flatnonzero(m) for k, (n, m) in enumerate(zip(s.shape, masks, strict=True))
        ]
        whole = [len(b) == n for b, n in zip(box, s.shape, strict=True)]
        if all(whole) or not 1 < s.shape[at] <= LARGEST:
            continue
        part = np.ix_(*box)
        own, expected = s.own[part], np.asarray(s.expected)[part]
        count = s.shape[at]
        found = _matched(np.moveaxis(own, at, 0).reshape(count, -1), np.moveaxis(expected, at, 0).reshape(count, -1))
        if found is None or np.array_equal(found, np.arange(count)) or (found < 0).any():
            continue
        name, number = pattern(found)
        where = {names[k]: spans(runs(masks[k])) for k in range(3) if not whole[k]}
        detail: dict[str, Any] = {"what": names[at], "how": name, "map": found.tolist()[:32], **where}
        if number:
            detail["by"] = number
        yield Edit("layout", detail, after=(_taken_in(part, found, at, s.shape),), cost=FITTED)


def _taken_in(part: tuple[Any, ...], found: NDArray[np.int64], at: int, folded: tuple[int, int, int]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.array(y).reshape(folded)
        made[part] = np.take(made[part], found, at)
        return made.reshape(y.shape)

    return after


def moved_weights(case: Case) -> Iterator[Edit]:
    """The rows of a weight permuted where its bias is not: what the product alone shows."""
    op = case.ops[-1]
    if word_of(op) != "linear" or not isinstance(op.attrs["args"][2], dict) or len(case.ops) != 1:
        return
    w_id, offset = op.attrs["args"][1]["v"], case.preview_value(op.attrs["args"][2]["v"])
    held, s = case.preview_value(w_id), case.signature
    if held is None or offset is None or s.share_wrong == 0:
        return
    own, expected = (np.asarray(x, np.float64) - offset for x in (s.own, s.expected))
    C, heads = s.shape[-1], heads_of(case)
    for count in dict.fromkeys((heads, C)):
        if not 1 < count <= LARGEST or C % count:
            continue
        shape = (-1, count, C // count)
        mine, theirs = (np.moveaxis(x.reshape(shape), 1, 0).reshape(count, -1) for x in (own, expected))
        found = _matched(mine, theirs, tolerance=1e-6)
        if found is not None and not np.array_equal(found, np.arange(count)) and (found >= 0).any():
            name, number = pattern(found)
            kind = "heads" if count == heads else "layout"
            detail: dict[str, Any] = {"what": "weight", "weight": case.reference.graph.values[w_id].name, "how": name}
            detail |= {"rows": "heads" if count == heads else "rows"} | ({"by": number} if number else {})
            content = np.take(held.reshape(count, -1), np.maximum(found, 0), 0).reshape(held.shape)
            yield Edit(kind, detail, {w_id: content}, cost=FITTED)


def operand_heads(case: Case) -> Iterator[Edit]:
    """The heads of one operand of a product meet the wrong heads of the other."""
    op = case.ops[-1]
    if word_of(op) not in ("matmul", "bmm", "scaled_dot_product_attention"):
        return
    for argument in op.attrs["args"][:3]:
        i = argument["v"] if isinstance(argument, dict) and "v" in argument else None
        held = case.preview_value(i) if i is not None else None
        if i is None or held is None or held.ndim < 3 or not 1 < held.shape[-3] <= 256:
            continue
        H = held.shape[-3]
        at = np.arange(H)
        maps: dict[str, NDArray[np.int64]] = {"turned by 1": (at + 1) % H, "turned by -1": (at - 1) % H}
        maps["reversed"] = at[::-1]
        for r in (r for r in range(2, H + 1) if H % r == 0):
            maps |= {f"shared by {r} in a row": at // r * r, f"div {r}": at // r, f"mod {r}": at % r}
            maps |= {f"interleaved by {r}": at.reshape(r, -1).T.ravel()}
        name = shown(case, i)
        for how, chosen in maps.items():
            if not np.array_equal(chosen, at):
                detail = {"what": "heads", "input": name, "how": how}
                yield Edit("heads", detail, {i: np.take(held, chosen, held.ndim - 3)})


def shown(case: Case, i: int) -> str:
    """The name of the value that a view shows."""
    graph = case.reference.graph
    while i not in case.region.inputs and graph.values[i].op >= 0 and graph.ops[graph.values[i].op].reads:
        reads = [r.value for r in graph.ops[graph.values[i].op].reads if r.value >= 0]
        i = max(reads, key=lambda v: int(np.prod(graph.values[v].shape)))
    return graph.values[i].name


def reread(case: Case) -> Iterator[Edit]:
    """The output, or an input, as the same memory read in another shape."""
    shape = case.region.value.shape
    yield from ((e) for e in _output_orders(case, shape))
    for i in case.region.inputs:
        held, known = case.array(i), case.reference.graph.values[i]
        if held is None or held.ndim < 1 or not held.size or not np.issubdtype(held.dtype, np.floating):
            continue
        for how, content in _orders(held, heads_of(case)):
            yield Edit("layout", {"what": "input", "input": known.name, "how": how}, {i: content})
    for i in case.region.weights:
        held, known = case.array(i), case.reference.graph.values[i]
        if held is None or held.ndim != 2 or held.size > 1 << 22:
            continue
        for how, content in _orders(held, heads_of(case)):
            yield Edit("layout", {"what": "weight", "weight": known.name, "how": how}, {i: content})
        for how, content in _orders(held.T, heads_of(case)):
            if "transposed" not in how:
                detail = {"what": "weight", "weight": known.name, "how": f"rows {how}"}
                yield Edit("layout", detail, {i: np.ascontiguousarray(content.T)})


def views(case: Case) -> Iterator[Edit]:
    """A permutation inside the region that only changed the shape, and heads split the other way round."""
    for op in case.region.ops:
        word = word_of(op)
        if word in ("transpose", "permute", "t", "swapaxes", "movedim"):
            shape = list(case.reference.graph.values[op.writes[0]].shape)
            flat = call(case.reference.graph, op, "aten.reshape.default", [op.attrs["args"][0], shape], op.writes[0])
            detail = {"what": word, "how": "reshaped without permuting", "of": op.name}
            yield Edit("layout", detail, ops={op.id: (flat,)})
        if word in ("view", "reshape", "_unsafe_view"):
            yield from _split_otherwise(case, op)


def shifted(case: Case) -> Iterator[Edit]:
    """Rows or columns of an input moved by a few places; integers (positions, ids) moved, restarted or doubled."""
    for i in case.region.inputs:
        held, known = case.array(i), case.reference.graph.values[i]
        if held is None or not held.size:
            continue
        if not np.issubdtype(held.dtype, np.floating):
            yield from _numbers(i, known.name, held)
            continue
        for axis in range(max(0, held.ndim - 2), held.ndim):
            for k in SHIFTS:
                if held.shape[axis] <= abs(k):
                    continue
                for edge, content in _rolled(held, k, axis):
                    detail = {"what": "input", "input": known.name, "by": k, "axis": axis, "edge": edge}
                    yield Edit("position", detail, {i: content})
    for op in case.region.ops:
        for i in op.writes:
            known = case.reference.graph.values[i]
            if known.dtype.startswith("int") and known.kind != "view" and i != case.region.value.id:
                made = case.preview_value(i)
                if made is not None:
                    yield from _numbers(i, known.name, made)


def looked_up(case: Case) -> Iterator[Edit]:
    """Rows of a table: which ones the candidate took."""
    for op in case.region.ops:
        word = word_of(op)
        if word == "slice" and op.writes[0] == case.region.value.id:
            yield from _sliced(case, op)
        if word not in ("embedding", "index", "index_select") or op.writes[0] != case.region.value.id:
            continue
        table_id = op.reads[0].value
        table = case.array(table_id)
        index = next((r.value for r in op.reads[1:] if "int" in case.reference.graph.values[r.value].dtype), None)
        if table is None or table.ndim != 2 or index is None:
            continue
        taken = case.preview_value(index)
        if taken is None:
            continue
        rows = np.ascontiguousarray(case.own(), np.float32).reshape(-1, table.shape[1])
        places = {row.tobytes(): n for n, row in reversed(list(enumerate(np.ascontiguousarray(table, np.float32))))}
        found = np.array([places.get(row.tobytes(), -1) for row in rows])
        if (found < 0).any():
            yield from _beyond(case, table_id, index, np.asarray(taken).ravel(), found)
            yield from _other_table(case, op, table, rows)
        if (found < 0).any() or np.array_equal(found, taken.ravel()):
            continue
        off = found - taken.ravel()
        detail: dict[str, Any] = {"what": "rows", "weight": case.reference.graph.values[table_id].name}
        detail |= {"rows": found.tolist()[:32], "model": taken.ravel().tolist()[:32]}
        if np.all(off == off[0]):
            detail["by"] = int(off[0])
        yield Edit("position", detail, {index: found.reshape(taken.shape)}, cost=FITTED if "by" in detail else LOOSE)


def _sliced(case: Case, op: Op) -> Iterator[Edit]:
    """Other rows of a table than the slice of it that the model takes."""
    table, own = case.array(op.reads[0].value), case.own()
    shape = case.reference.graph.values[op.writes[0]].shape
    if table is None or table.ndim != 2 or len(shape) != 2 or table.shape[1] != shape[1]:
        return
    rows = np.ascontiguousarray(own, np.float32).reshape(shape)
    places = {row.tobytes(): n for n, row in reversed(list(enumerate(np.ascontiguousarray(table, np.float32))))}
    found = np.array([places.get(row.tobytes(), -1) for row in rows])
    start = places.get(np.ascontiguousarray(case.expected, np.float32).reshape(shape)[0].tobytes(), 0)
    off = found - start - np.arange(len(found))
    if (found >= 0).all() and off.any():
        detail: dict[str, Any] = {"what": "rows", "weight": shown(case, op.reads[0].value)}
        detail |= {"rows": found.tolist()[:32], "model": (start + np.arange(len(found))).tolist()[:32]}
        if np.all(off == off[0]):
            detail["by"] = int(off[0])
        cost = FITTED if "by" in detail else LOOSE
        yield Edit("position", detail, output=np.asarray(table)[found].reshape(own.shape), cost=cost)


def _beyond(case: Case, table: int, index: int, taken: NDArray[Any], found: NDArray[Any]) -> Iterator[Edit]:
    """Rows off by one number, of which some are beyond the table: whatever lies there is as the candidate read it."""
    off = np.unique((found - taken)[found >= 0])
    rows, count = case.reference.graph.values[table].shape[0], int((found < 0).sum())
    if off.size != 1 or 2 * count > found.size or not np.array_equal((taken + off) >= rows, found < 0):
        return
    own = np.asarray(case.own()).reshape(found.size, -1)

    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.array(y).reshape(own.shape)
        made[found < 0] = own[found < 0]
        return made.reshape(y.shape)

    by = int(off[0])
    detail = {"what": "rows", "weight": case.reference.graph.values[table].name, "by": by, "beyond": count}
    detail |= {"rows": (taken + by).tolist()[:32], "model": taken.tolist()[:32]}
    within = np.minimum(taken + by, rows - 1).reshape(case.reference.graph.values[index].shape)
    yield Edit("position", detail, {index: within}, after=(after,), cost=FITTED)


def _other_table(case: Case, op: Op, table: NDArray[Any], rows: NDArray[Any]) -> Iterator[Edit]:
    """The rows stand in another table of the model."""
    own = case.reference.graph.values[op.reads[0].value].name
    for other in case.reference.graph.values:
        if other.kind != "weight" or other.name == own or other.shape[1:] != table.shape[1:] or len(other.shape) != 2:
            continue
        held = np.ascontiguousarray(case.executor.weight(other.name), np.float32)
        places = {row.tobytes() for row in held}
        if all(row.tobytes() in places for row in rows):
            detail = {"slot": "weight", "weight": own, "read": other.name}
            yield Edit("wrong_weight", detail, output=rows.reshape(case.own().shape), cost=FITTED)


def grouped(case: Case) -> Iterator[Edit]:
    """Heads of one operand of a product mapped to those of the other in another way (mod for div)."""
    for op in case.region.ops:
        if word_of(op) not in ("repeat_interleave", "expand", "repeat"):
            continue
        source = op.reads[0].value
        held = case.preview_value(source)
        shape = case.reference.graph.values[op.writes[0]].shape
        if held is None or word_of(op) == "expand":
            if held is not None and len(shape) >= 4 and held.ndim == len(shape):
                yield from _regrouped(op, held, shape)
            continue
        for axis, (a, b) in enumerate(zip(held.shape, shape, strict=False)):
            if b > a > 1 and b % a == 0:
                made = np.take(held, np.arange(b) % a, axis)
                yield Edit("heads", {"what": "groups", "how": "mod", "model": "div"}, {op.writes[0]: made})


def _regrouped(op: Op, held: NDArray[Any], shape: tuple[int, ...]) -> Iterator[Edit]:
    """[.., Hkv, 1, T, K] expanded to [.., Hkv, rep, T, K]: the two head axes exchanged."""
    for axis in range(1, len(shape)):
        if held.shape[axis] == 1 and shape[axis] > 1 and held.shape[axis - 1] > 1:
            full = np.broadcast_to(held, shape)
            turned = np.swapaxes(full, axis - 1, axis).reshape(shape)
            yield Edit("heads", {"what": "groups", "how": "mod", "model": "div"}, {op.writes[0]: turned})


def _output_orders(case: Case, shape: tuple[int, ...]) -> Iterator[Edit]:
    for how, function in _order_functions(shape, heads_of(case)):
        yield Edit("layout", {"what": "output", "how": how}, after=(function,))


def _order_functions(shape: tuple[int, ...], heads: int) -> Iterator[tuple[str, After]]:
    names = [how for how, _ in _orders(np.zeros(shape, bool), heads)]
    for n, how in enumerate(names):

        def after(y: NDArray[Any], n: int = n) -> NDArray[Any]:
            return [content for _, content in _orders(y, heads)][n]

        yield how, after


def _orders(x: NDArray[Any], heads: int) -> list[tuple[str, NDArray[Any]]]:
    """The array in other orders, each of its own shape."""
    shape, made = x.shape, []
    for a in range(x.ndim):
        for b in range(a + 1, x.ndim):
            if shape[a] > 1 and shape[b] > 1:
                turned = np.swapaxes(x, a, b)
                if shape[a] == shape[b]:
                    made.append((f"axes {a} and {b} transposed", turned))
                made.append((f"written with axes {a} and {b} the other way round", turned.reshape(shape)))
                other = [*shape]
                other[a], other[b] = other[b], other[a]
                made.append((f"read with axes {a} and {b} the other way round", np.swapaxes(x.reshape(other), a, b)))
    C = shape[-1] if shape else 1
    if C > 1:
        made.append(("channels reversed", x[..., ::-1]))
    if C > 3 and C % 2 == 0:
        made += [
            ("halves exchanged", np.concatenate([x[..., C // 2 :], x[..., : C // 2]], -1)),
            ("pairs for halves", x.reshape(*shape[:-1], 2, C // 2).swapaxes(-1, -2).reshape(shape)),
            ("halves for pairs", x.reshape(*shape[:-1], C // 2, 2).swapaxes(-1, -2).reshape(shape)),
        ]
    if 1 < heads < C and C % heads == 0:
        made.append(("heads interleaved", x.reshape(*shape[:-1], heads, C // heads).swapaxes(-1, -2).reshape(shape)))
        made.append(("heads de-interleaved", x.reshape(*shape[:-1], C // heads, heads).swapaxes(-1, -2).reshape(shape)))
    return made


def _split_otherwise(case: Case, op: Op) -> Iterator[Edit]:
    source, graph = op.reads[0].value, case.reference.graph
    before, after = graph.values[source].shape, graph.values[op.writes[0]].shape
    if len(after) != len(before) + 1 or after[-1] * after[-2] != before[-1] or 1 in after[-2:]:
        return
    chain = Chain(case, op, [])
    split = chain("reshape.default", Id(source), [*before[:-1], after[-1], after[-2]])
    rank = len(after)
    chain("transpose.int", value(split), rank - 2, rank - 1, last=True)
    yield Edit("heads", {"what": "heads", "how": "interleaved", "of": op.name}, ops={op.id: tuple(chain.made)})


def _numbers(i: int, name: str, held: NDArray[Any]) -> Iterator[Edit]:
    for k in (1, -1, 2, -2, 3, 4):
        detail = {"what": "positions", "input": name, "by": k}
        yield Edit("position", detail, {i: np.maximum(held + k, 0)})
    if held.size and held.max() > 0:
        detail = {"what": "positions", "input": name}
        count = np.arange(held.size).reshape(held.shape)
        yield Edit("position", detail | {"how": "restarted at 0"}, {i: count.astype(held.dtype)})
        yield Edit("position", detail | {"how": "all 0"}, {i: np.zeros_like(held)})
        yield Edit("position", detail | {"how": "doubled"}, {i: held * 2})
        yield Edit("position", detail | {"how": "reversed"}, {i: held[..., ::-1].copy()})


def _rolled(x: NDArray[Any], k: int, axis: int) -> Iterator[tuple[str, NDArray[Any]]]:
    at = np.arange(x.shape[axis]) - k
    inside = (at >= 0) & (at < x.shape[axis])
    clamped = np.take(x, np.clip(at, 0, x.shape[axis] - 1), axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    yield "zero", np.where(inside.reshape(shape), clamped, 0).astype(x.dtype)
    yield "repeated", clamped
    yield "wrapped", np.roll(x, k, axis)


def _matched(own: NDArray[Any], expected: NDArray[Any], tolerance: float = 1e-4) -> NDArray[np.int64] | None:
    """For each slice of the candidate the expected slice that it is, by sketches; -1: a slice of zeros; None: no."""
    rng = np.random.default_rng(5)
    project = rng.standard_normal((own.shape[1], 12)) / np.sqrt(own.shape[1])
    with np.errstate(all="ignore"):
        a, b = own.astype(np.float64) @ project, expected.astype(np.float64) @ project
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        far = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1) if len(a) <= 256 else _far(a, b)
    found = np.argmin(far, 1)
    off, size = far[np.arange(len(a)), found], (a**2).sum(1)
    own_place = far[np.arange(len(a)), np.arange(len(a))]
    found = np.where(own_place <= off + 1e-12 * (size + 1e-30), np.arange(len(a)), found)
    zero = size == 0
    good = (off <= tolerance * size) | zero
    if good.mean() < 0.9:
        return None
    return np.where(zero & (b[found] ** 2).sum(1).astype(bool), -1, found)


def _far(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    far: NDArray[np.float64] = np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T, 0)
    return far


def _taken(found: NDArray[np.int64], axis: int, shape: tuple[int, ...]) -> After:
    def after(y: NDArray[Any]) -> NDArray[Any]:
        made = np.take(np.asarray(y).reshape(shape), np.maximum(found, 0), axis)
        if (found < 0).any():
            where: list[Any] = [slice(None)] * made.ndim
            where[axis] = found < 0
            made[tuple(where)] = 0
        return made.reshape(y.shape)

    return after


def pattern(found: NDArray[np.int64]) -> tuple[str, int]:
    """A permutation (or map) by name, with its number where it has one."""
    n = len(found)
    at = np.arange(n)
    inside = found >= 0
    off = (found - at)[inside]
    values, counts = np.unique(off, return_counts=True)
    common = int(values[np.argmax(counts)])
    if common and counts.max() >= n - abs(common) and abs(common) < n / 2 + 1:
        return ("rotated" if np.array_equal(found, (at + common) % n) else "shifted"), common
    known = {"reversed": at[::-1]}
    for a in (a for a in range(2, n) if n % a == 0):
        known |= {f"interleaved by {a}": at.reshape(a, -1).T.ravel(), f"mod {a}": at % a, f"div {a}": at // a}
        if n % (2 * a) == 0:
            known[f"blocks of {a} exchanged in pairs"] = at.reshape(-1, 2, a)[:, ::-1].ravel()
    for name, other in known.items():
        if np.array_equal(found, other):
            return name, 0
    moved = np.flatnonzero(found != at)
    if len(moved) == 2:
        return f"{moved[0]} and {moved[1]} exchanged", 0
    return "permuted", 0


def heads_of(case: Case) -> int:
    """Heads that the columns of the value or of its inputs are split into nearby in the graph; 1: none seen."""
    near = heads_near(case.reference.graph, [(case.region.value.id, 0), *((i, 1) for i in case.region.inputs)])
    if near > 1:
        return near
    config: Mapping[str, Any] = case.reference.meta.get("config", {}) or {}
    for key in ("num_attention_heads", "encoder_attention_heads", "n_head"):
        if isinstance(config.get(key), int):
            return int(config[key])
    return 1


def _time_is_last(case: Case) -> bool:
    return word_of(case.ops[-1]).startswith("conv")
