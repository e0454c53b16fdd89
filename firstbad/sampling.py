"""Long runs: of what grows with the square of the length, some rows are kept, and all of it on a second pass.

What attention makes for each pair of positions is [B, H, T, S]: at 4,096 tokens 268 MB a value for 4 heads, where all
other values have 1 MB. So of a value whose last two axes are both long these rows are kept (`rows_of`), by the length
and the window alone, so that both sides have the same. In the trace they are a value of their own, `NAME@rows`, that an
op makes: the reference's own op on the rows of its inputs (`softmax@rows` of `add@rows`) where rows do not need each
other, else a look-up in the whole. So alignment, replay and reports know nothing of it: a row is judged given its own
inputs, and what reads the whole value (probabilities times values) is replayed at every position from the queries and
keys, which are whole. Whatever is wrong at a row that was not kept is wrong there.

A second pass keeps whole what is suspicious (`suspicious`), and names value and row. Leaves out values that are large
for their width alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.blocks import cut
from firstbad.graph import Graph, Op, Read, Value
from firstbad.want import chosen
from firstbad.writer import TraceWriter

if TYPE_CHECKING:
    from firstbad.faults import Fault
    from firstbad.local import Local
    from firstbad.run import CaptureOptions, Prepared

LONG = 1024
"""Length from which a language model's attention is sampled: one of its values has 4 MB a head."""

SUFFIX = "@rows"
SAMPLED = f"long: some of its rows are kept as {SUFFIX}"
LEFT_OUT = "long: made again from what is kept"

EDGE = 8
"""Rows at the beginning and at the end,"""

CHUNK = 512
"""around each multiple of this and around each power of two (tiles, chunks, pages),"""

BETWEEN = 24
"""and so many drawn in between."""

SECOND = 1 << 30
"""Bytes that a second pass may add to a trace; the first suspicious module is kept whole however large."""


@dataclass(frozen=True)
class Sampling:
    """What one run keeps of long values."""

    least: int
    window: int = 0
    whole: tuple[str, ...] = ()  # patterns (want.py) of the values kept whole all the same


def sampling_of(options: CaptureOptions, prepared: Prepared | None = None) -> Sampling | None:
    """What is to be sampled; None: nothing. By default of language models alone."""
    causal = prepared is not None and prepared.family == "causal"
    least = options.sample_from if options.sample_from is not None else LONG if causal else 0
    if not least or options.hash_only:
        return None
    window = prepared.config.get("sliding_window") if prepared is not None else 0
    return Sampling(least, window if isinstance(window, int) else 0, options.whole)


def rows_of(T: int, window: int = 0) -> tuple[int, ...]:
    """The rows that are kept of T: the first and last ones, those around borders, and some drawn in between."""
    borders = [1 << n for n in range(4, T.bit_length())] + list(range(CHUNK, T + 1, CHUNK))
    borders += [window, 2 * window] if window else []
    kept = {*range(EDGE), *range(T - EDGE, T), *(b + i for b in borders for i in (-1, 0, 1))}
    drawn = np.random.default_rng(T).integers(0, T, BETWEEN).tolist()
    return tuple(sorted(i for i in {*kept, *drawn} if 0 <= i < T))


def is_long(shape: Sequence[int], least: int) -> bool:
    """Whether a value has a number for each pair of many positions."""
    heads = len(shape) > 3 or (len(shape) == 3 and shape[0] > 1)
    return heads and min(shape[-2:]) >= least


class SampledWriter(TraceWriter):
    """A trace with rows of long values in their place; what is written has ids of its own, the caller keeps his."""

    def __init__(self, *args: Any, sampling: Sampling | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._sampling = sampling
        self._whole = chosen(sampling.whole if sampling is not None else ())
        self.values: list[Value] = []  # as the caller numbers them
        self._new: list[int] = []  # id of the caller → id in the trace
        self._ops_new: list[int] = []
        self._numbers = [0, 0]  # values and ops in the trace
        self._pending: dict[int, np.ndarray] = {}  # caller's id → rows, until its op is written
        self._rows_of: dict[int, int] = {}  # caller's id → id in the trace of its rows
        self._index: dict[tuple[str, int], int] = {}

    def value(self, v: Value, array: np.ndarray | None) -> Value:
        """As the base does; of a long one nothing is stored yet."""
        if self._sampling is None:
            return super().value(v, array)
        held = array
        if array is not None and v.kind == "value" and v.op >= 0 and self._samples(v):
            held = None
            number = "float" in v.dtype
            v = replace(v, reason=SAMPLED if number else LEFT_OUT)
            if number:
                self._pending[v.id] = array[..., list(rows_of(v.shape[-2], self._sampling.window)), :]
        same = -1 if v.same_as < 0 else self._new[v.same_as]
        op = -1 if v.op < 0 else self._op_number(v.op)
        self._new.append(self._numbers[0])
        written = self._put(replace(v, op=op, same_as=same), held)
        kept = replace(written, id=v.id, op=v.op, same_as=v.same_as)
        self.values.append(kept)
        return kept

    def op(self, op: Op) -> None:
        """The op, and after it the one that makes the rows of what it wrote."""
        if self._sampling is None:
            super().op(op)
            return
        self._op_number(op.id)
        self._write(replace(op, writes=tuple(self._new[w] for w in op.writes)), self._mapped)
        for written in op.writes:
            if written in self._pending:
                self._sample(op, self.values[written], self._pending.pop(written))

    def _samples(self, v: Value) -> bool:
        assert self._sampling is not None
        return is_long(v.shape, self._sampling.least) and not self._whole(v.step, v.name)

    def _op_number(self, op: int) -> int:
        """Its values come before the op: it is the next one of the trace."""
        if op == len(self._ops_new):
            self._ops_new.append(self._numbers[1])
        return self._ops_new[op]

    def _put(self, v: Value, array: np.ndarray | None) -> Value:
        self._numbers[0] += 1
        return super().value(replace(v, id=self._numbers[0] - 1), array)

    def _write(self, op: Op, mapped: Callable[[int], int]) -> None:
        self._numbers[1] += 1
        reads = tuple(
            replace(r, value=mapped(r.value), overwritten_by=tuple(map(self._mapped, r.overwritten_by)))
            for r in op.reads
        )
        super().op(replace(op, id=self._numbers[1] - 1, reads=reads, attrs=_renumbered(op.attrs, mapped)))

    def _mapped(self, value: int) -> int:
        return value if value < 0 else self._new[value]

    def _sample(self, op: Op, whole: Value, rows: np.ndarray) -> None:
        """The rows as a value of the op that makes them from the rows of what it reads."""
        name, shape = whole.name + SUFFIX, (*whole.shape[:-2], rows.shape[-2], whole.shape[-1])
        instead: dict[int, int] = {}
        if op.kind.startswith("aten."):
            found = cut(self, op, whole.shape, rows=True)
            if found is None:
                self._rows_of[whole.id] = self._look_up(whole, len(whole.shape) - 2, name, rows)
                return
            for read, axis in found[1].items():
                if read not in self._rows_of:
                    source = self.values[read]
                    self._rows_of[read] = self._look_up(source, axis, source.name + SUFFIX, None)
                instead[read] = self._rows_of[read]
        else:
            instead = {r.value: self._rows_of[r.value] for r in op.reads if r.value in self._rows_of}
        fresh = Value(-1, whole.step, name, "value", shape, whole.dtype, self._numbers[1])
        self._rows_of[whole.id] = self._numbers[0]
        self._put(fresh, np.ascontiguousarray(rows))
        reads = tuple(Read(r.value, r.slot) for r in op.reads)
        made = replace(op, name=name, reads=reads, writes=(self._rows_of[whole.id],))
        self._write(made, lambda value: instead.get(value, -1) if value in instead else self._mapped(value))

    def _look_up(self, source: Value, axis: int, name: str, rows: np.ndarray | None) -> int:
        """Rows of a value by number: a view for those that read them, or with `rows` a value to be compared."""
        assert self._sampling is not None
        index = self._index_of(source.step, source.shape[axis])
        kept = len(rows_of(source.shape[axis], self._sampling.window))
        shape = (*source.shape[:axis], kept, *source.shape[axis + 1 :])
        number = self._numbers[0]
        kind: Any = "view" if rows is None else "value"
        reason = "rows of another value" if rows is None else ""
        value = Value(-1, source.step, name, kind, shape, source.dtype, self._numbers[1], reason=reason)
        self._put(value, None if rows is None else np.ascontiguousarray(rows))
        where = self._new[source.id]
        template = {"args": [{"v": where}, axis, {"v": index}], "kwargs": {}}
        reads = (Read(where, "self"), Read(index, "index"))
        op = Op(-1, source.step, name, "aten.index_select.default", reads, (number,), template)
        self._write(op, lambda value: value)
        return number

    def _index_of(self, step: str, T: int) -> int:
        """The numbers of the rows, a constant of the step."""
        assert self._sampling is not None
        if (step, T) not in self._index:
            rows = np.array(rows_of(T, self._sampling.window), np.int64)
            self._index[step, T] = self._numbers[0]
            self._put(Value(-1, step, f"rows.{T}", "constant", rows.shape, "int64"), rows)
        return self._index[step, T]


def _renumbered(tree: Any, mapped: Callable[[int], int]) -> Any:
    """A recorded call with other ids of values (call.py: {"v": 12})."""
    if isinstance(tree, Mapping):
        if tree.keys() == {"v"} and isinstance(tree["v"], int):
            return {"v": mapped(tree["v"])}
        return {key: _renumbered(entry, mapped) for key, entry in tree.items() if key != "weights"} | (
            {"weights": {str(mapped(int(v))): name for v, name in tree["weights"].items()}} if "weights" in tree else {}
        )
    if isinstance(tree, list | tuple):
        return [_renumbered(entry, mapped) for entry in tree]
    return tree


def sampled(graph: Graph) -> bool:
    """Whether rows alone are kept of something."""
    return any(v.reason == SAMPLED for v in graph.values)


def unshadowed(local: Local, graph: Graph) -> Local:
    """Without values that are wrong and made from one that is wrong at its rows: these are judged, the rest of it is
    replayed on the way as it should be, so that the difference shows once more."""
    if not sampled(graph):
        return local
    known = {j.pair.reference.id for j in local.values}
    wrong = {(j.step, j.name) for j in local.values if j.bad and j.name.endswith(SUFFIX)}
    kept = tuple(
        j
        for j in local.values
        if not (j.bad and any((v.step, v.name + SUFFIX) in wrong for v in on_the_way(graph, j.op, known)))
    )
    return replace(local, values=kept)


def on_the_way(graph: Graph, op: Op, known: Iterable[int]) -> Iterator[Value]:
    """The sampled values that are computed anew between `op` and what is known."""
    seen, stack = {*known}, [op]
    while stack:
        for read in stack.pop().reads:
            if read.value < 0 or read.value in seen:
                continue
            seen.add(read.value)
            value = graph.values[read.value]
            if value.reason == SAMPLED:
                yield value
            if value.op >= 0:
                stack.append(graph.ops[value.op])


def suspicious(faults: Sequence[Fault], local: Local, graph: Graph) -> tuple[tuple[str, ...], frozenset[Any]]:
    """Patterns of what a second pass is to keep whole, the first faults' modules first; and (step, name) of the values
    that it need not judge, since they are wrong for what is sampled there too."""
    known = {j.pair.reference.id for j in local.values}
    modules: dict[str, list[tuple[str, str]]] = {}
    for fault in faults:
        for site in fault.sites:
            through = [v.name for v in on_the_way(graph, site.op, known)]
            name = site.name if site.name.endswith(SUFFIX) else through[-1] if through else ""
            if name:
                modules.setdefault(f"{site.step}/{name.rpartition('.')[0]}.*", []).append((site.step, site.name))
    kept: list[str] = []
    room = SECOND
    for pattern in modules:
        wanted = chosen((pattern,))
        room -= sum(4 * math.prod(v.shape) for v in graph.values if v.reason == SAMPLED and wanted(v.step, v.name))
        if kept and room < 0:
            break
        kept.append(pattern)
    others = frozenset(site for pattern, sites in modules.items() if pattern not in kept for site in sites)
    return tuple(kept), others


def words(graph: Graph, others: Iterable[tuple[str, str]] = ()) -> Iterator[str]:
    """For people: what was kept of long values, and what was wrong there too and not looked at again."""
    whole = [v for v in graph.values if v.reason == SAMPLED]
    rows = [v for v in graph.values if v.kind == "value" and v.name.endswith(SUFFIX)]
    if whole:
        full, kept = (sum(4 * math.prod(v.shape) for v in values) for values in (whole, rows))
        first = graph.by_key[rows[0].step, rows[0].name]
        yield (
            f"of {len(whole)} values of {whole[0].shape[-2]} x {whole[0].shape[-1]} positions {first.shape[-2]} rows "
            f"are kept ({kept / 1e6:,.1f} MB for {full / 1e6:,.1f}); what reads them is judged at every row"
        )
    names = [f"{name} of {step}" for step, name in sorted(others)]
    if names:
        yield f"wrong at the rows that are kept, too, and not searched: {', '.join(names[:6])}" + (
            f" and {len(names) - 6} more" if len(names) > 6 else ""
        )
