"""From the shim's records to a trace: nodes under the reference's names, weights under the parameters' names.

Stands where a TraceWriter is expected (stream.py). A graph is announced before its nodes run, so everything is named
as it comes and goes straight to the file. Leaves out how names are found (ggml_names.py, ggml_weights.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from firstbad.errors import CompareError
from firstbad.graph import Kind, Op, Read, Value
from firstbad.run import Prepared
from firstbad.trace import TraceWriter

from .ggml_files import Files
from .ggml_graph import GgmlGraph, parse
from .ggml_llama import LlamaNamer
from .ggml_names import Caches, Named, Namer
from .ggml_weights import WeightNames

GRAPH = "ggml.graph"
TRIAL = "trial"
INPUTS = {"mel": "input_features", "embd": "decoder_input_ids"}
"""Inputs that the reference has too; any other is a constant."""


class GgmlSink:
    """Takes what a Recording writes.

    `ids`: the tokens of each graph that was fed some, in order; `tried`: those before a language model's prompt came;
    `last`: the scores that the last graph gave.
    """

    def __init__(
        self, writer: TraceWriter, prepared: Prepared, wanted: Callable[[str], bool], files: Files | None = None
    ) -> None:
        self.ids: list[tuple[int, ...]] = []
        self.graphs: list[GgmlGraph] = []
        self.again = False  # the engine has begun anew: what comes now is no part of the run
        self._writer = writer
        self._prepared = prepared
        self._wanted = wanted
        self._ids_name = "input_ids" if prepared.family == "causal" else "decoder_input_ids"
        self._causal = prepared.family == "causal"
        self.tried: list[tuple[int, ...]] = []
        self.last: np.ndarray | None = None
        self._weights = WeightNames(prepared.weights)
        self._caches = Caches()
        self._files = files or Files({}, ())
        self._named: Mapping[int, Named] = {}
        self._step = ""
        self._out: dict[int, int] = {}  # id of the stream → of the trace
        self._waiting: dict[int, Value] = {}  # leaf → value, until its graph is announced
        self._arrays: dict[int, np.ndarray] = {}
        self._values = 0
        self._ops = 0
        self._types: dict[int, str] = {}

    def value(self, v: Value, array: np.ndarray | None) -> Value:
        if v.name == GRAPH:
            if array is None:
                raise CompareError("the ggml shim announced a graph without its content")
            self._announced(v.step, array.tobytes())
        elif v.kind in ("weight", "input"):
            leaf = int(v.name.rpartition(".")[2])
            self._waiting[leaf] = v
            if array is not None:
                self._arrays[leaf] = array
        else:
            self._node(v, array)
        return v

    def op(self, op: Op) -> None:
        node = self.graphs[-1].nodes[op.line]
        named = self._named.get(node.number, Named())
        attrs: dict[str, Any] = {"node": node.number, "type": node.type, "params": list(node.params)}
        attrs |= {"graph": op.step, "shape": list(node.ne)}
        if node.name:
            attrs["called"] = node.name
        if named.part_of:
            attrs["part_of"] = named.part_of
        if named.keys:
            attrs |= {"keys": named.keys, "scale": node.number_at(0)}
        if named.accumulates:
            attrs["accumulates"] = named.accumulates
        if named.base:
            attrs["base"] = named.base
        alone = named.alone or ("computed after the first answer" if self.again else "")
        if alone:
            attrs["alone"] = alone
        layout = {"part": named.part, "rows": list(named.rows), "pairs": named.pairs}
        if any(layout.values()):
            attrs["layout"] = {word: said for word, said in layout.items() if said}
        if named.arithmetic:
            attrs["arithmetic"] = named.arithmetic
        out = self._out
        reads = tuple(
            Read(
                out.get(r.value, -1),
                r.slot,
                r.state,
                r.dataset,
                r.address,
                r.extent,
                tuple(out.get(i, -1) for i in r.overwritten_by),
            )
            for r in op.reads
        )
        self._writer.op(
            Op(
                self._ops,
                named.step or self._step,
                named.name or self._placeholder(node.number),
                node.op.lower(),
                reads,
                tuple(out[w] for w in op.writes if w in out),
                {**op.attrs, **attrs},
                start_ns=op.start_ns,
                end_ns=op.end_ns,
            )
        )
        self._ops += 1

    def as_read(self, op_id: int, slot: str, array: np.ndarray, dtype: str = "") -> str:
        del op_id  # the stream counts as we do: every op goes on
        return self._writer.as_read(self._ops, slot, array, dtype)

    def _announced(self, step: str, text: bytes) -> None:
        known = self.graphs[-1].leaves if self.graphs else {}
        graph = parse(step, text, known)
        self.graphs.append(graph)
        fed = [leaf for leaf in graph.feeds if leaf.type == "i32" and _looked_up(graph, leaf.number, self._prepared)]
        ids: tuple[int, ...] = ()
        if fed and fed[0].number in self._arrays:
            ids = tuple(int(i) for i in self._arrays[fed[0].number].reshape(-1))
        if not self._causal and self.ids and ids in ((), self._prepared.prompt):  # another window, or another attempt
            self.again = True
        if self.again:
            self._step = f"{TRIAL}.{graph.step}"
        elif ids:
            if self._causal and ids == self._prepared.prompt:  # what ran before was a trial
                self.tried += self.ids
                self.ids, self._caches = [], Caches()
            self._step = f"decode.{len(self.ids) - 1}" if self.ids else "prefill"
            begun = bool(self.ids) and self.ids[0] == self._prepared.prompt
            if begun and len(ids) > 1 and ids != self._prepared.prompt:
                raise CompareError(
                    f"the engine goes on with {len(ids)} tokens at once after {len(self.ids)} steps: ask it for one "
                    "answer of one sequence (no beam search, no several candidates, no drafts)"
                )
            self.ids.append(ids)
            if self._causal and self.ids[0] != self._prepared.prompt:
                self._step = f"{TRIAL}.{len(self.ids) - 1}"
        elif not self.ids:
            self._step = "encode"
        else:
            self._step = f"{graph.step}"
        self._weights.learn(graph, {leaf: v.hash for leaf, v in self._waiting.items() if v.kind == "weight"})
        for number, v in self._waiting.items():
            self._leaf(number, v, graph, is_ids=bool(fed) and number == fed[0].number)
        self._named = (
            LlamaNamer(graph, self._weights.names, self._caches, self._step, self._arrays)
            if self._causal
            else Namer(graph, self._weights.names, self._caches, self._step)
        ).run()
        self._waiting.clear()
        self._arrays = {}

    def _leaf(self, number: int, v: Value, graph: GgmlGraph, *, is_ids: bool) -> None:
        leaf = graph.leaves[number]
        if v.kind == "weight":
            name = self._weights.names.get(number, f"weight.{leaf.name or number}")
            own = self._prepared.weights.get(name)
            held = self._files.held(leaf.name, v.hash, name, own) if own is not None else None
            if own is not None and held is not None:
                said: dict[str, Any] = {"hash": held.hash, "shape": own.shape, "dtype": "float32"}
                self._put(v, held.array, step="weights", name=name, **said)
                return
            same_size = own is not None and own.size == math.prod(leaf.ne)
            quantised = leaf.type not in ("f32", "f16", "bf16", "f64")
            hashed = v.hash if same_size and not quantised else 0
            kept = leaf.type if quantised else v.dtype
            self._put(v, None, step="weights", name=name, hash=hashed, dtype=kept)
            return
        name = self._ids_name if is_ids else INPUTS.get(leaf.name, leaf.name or f"input.{number}")
        kind: Kind = "input" if is_ids or leaf.name in INPUTS else "constant"
        self._put(v, self._arrays.get(number), step=self._step, name=name, kind=kind)

    def _node(self, v: Value, array: np.ndarray | None) -> None:
        number = int(v.name[1:])
        named = self._named.get(number, Named())
        name = named.name or self._placeholder(number)
        if name == "lm_head" and array is not None:
            self.last = array
        reason = ""
        if named.kept:
            array, reason = None, "a cache: what is written is stored where it is made"
        self._put(v, array, step=named.step or self._step, name=name, op=self._ops, reason=reason or v.reason)

    def _placeholder(self, number: int) -> str:
        graph = self.graphs[-1]
        return f"{graph.step}.node_{number}.{graph.nodes[number].op.lower()}"

    def _put(self, v: Value, array: np.ndarray | None, **changes: Any) -> None:
        """The value with these changes; in one go, since there are ten thousands of them."""
        self._out[v.id] = self._values
        step = changes.get("step", v.step)
        if step.startswith(TRIAL):  # it may be the engine trying itself out: not a part of the run
            array, changes["reason"], changes["kind"] = None, "computed before the prompt", "constant"
        elif array is not None and not self._wanted(step):
            array, changes["reason"] = None, "step not selected"
        self._writer.value(replace(v, id=self._values, **changes), array)
        self._values += 1


def _looked_up(graph: GgmlGraph, leaf: int, prepared: Prepared) -> bool:
    """Whether the leaf's numbers choose rows of the table of tokens: the largest of those that are looked into."""
    rows = prepared.config.get("vocab_size", 0)
    for node in graph.nodes:
        if node.op == "GET_ROWS":
            table, chosen = graph.leaf(node.sources[0]), graph.leaf(node.sources[1])
            if chosen is not None and chosen.number == leaf and table is not None and table.ne[1] == rows:
                return True
    return False
