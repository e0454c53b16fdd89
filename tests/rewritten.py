"""Traces with other names, arrays and edges than their engine gave them: what an alignment has to start from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from firstbad.graph import Value
from firstbad.trace import Trace, TraceWriter, open_trace

Rename = Callable[[Value], str]
Change = Callable[[Value, np.ndarray], np.ndarray]


def rewritten(
    trace: Trace,
    path: Path,
    *,
    rename: Rename = lambda v: v.name,
    change: Change = lambda _v, a: a,
    keep: Callable[[Value], bool] = lambda _v: True,
    edges: bool = True,
) -> Trace:
    """The trace with other names and arrays; without `edges` it is a mere dump of values."""
    ids: dict[int, int] = {}
    with TraceWriter(path, role="candidate", engine=trace.engine, meta=trace.meta) as writer:
        for value in trace.graph.values:
            if not keep(value):
                continue
            stored = value.kind != "weight" and trace.stored(value)
            array = np.ascontiguousarray(change(value, trace.array(value))) if stored else None
            shape = value.shape if array is None else array.shape
            ids[value.id] = len(ids)
            name = value.name if value.kind in ("input", "weight") else rename(value)
            new = replace(
                value, id=ids[value.id], name=name, shape=shape, strides=(), same_as=-1, op=value.op if edges else -1
            )
            writer.value(new, array)
        for op in trace.graph.ops if edges else ():
            reads = tuple(replace(r, value=ids.get(r.value, -1), dataset="", overwritten_by=()) for r in op.reads)
            writer.op(replace(op, reads=reads, writes=tuple(ids[w] for w in op.writes if w in ids)))
        writer.outputs(dict(trace.outputs))
    return open_trace(path)


def hidden(value: Value) -> str:
    """A name that says nothing; the same in every step."""
    return "t" + hashlib.sha256(value.name.encode()).hexdigest()[:8]


def liar(trace: Trace, seed: int = 0) -> Rename:
    """Names exchanged at random among all values that have the same shapes in every step."""
    shapes: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for value in trace.graph.values:
        if value.kind == "value" and "float" in value.dtype and trace.stored(value):
            shapes.setdefault(value.name, []).append((value.step, value.shape))
    alike: dict[tuple[tuple[str, tuple[int, ...]], ...], list[str]] = {}
    for name, found in shapes.items():
        alike.setdefault(tuple(found), []).append(name)
    generator, lies = np.random.default_rng(seed), dict[str, str]()
    for names in alike.values():
        order = [names[i] for i in generator.permutation(len(names))]
        lies.update(zip(order, [*order[1:], order[0]], strict=True))  # one round: nobody keeps a name
    return lambda value: lies.get(value.name, value.name)
