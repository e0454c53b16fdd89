"""Lint of a plan: wiring and placement faults found with no run, no weights and no reference.

The plan's call lists are walked with bytes that know who wrote them: encode, prefill, two decode steps, at the largest
and at a small size. Beside it: every value and weight has a reader, an op has the weights of its own name, and layers
that repeat are wired alike. An op in place is fine where its kernel works element by element and nobody needs the input
afterwards; a tensor that no op makes is a view of whatever lies there. Leaves out whether the right value of two live
ones is read: no plan can say that unless a sibling layer does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from firstbad.lint import Finding

from .kinds import kind_of
from .plan import ITEM_BYTES, Plan, PlanOp, Step, Tensor, sizes_at
from .plan_check import row_bytes

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector load."""

_LAYER = re.compile(r"(?P<stack>.*?\blayers)\.(?P<index>\d+)\.(?P<rest>.+)")


def lint(plan: Plan) -> tuple[Finding, ...]:
    """Every finding in the order of the call lists; one a rule, op and value."""
    found: dict[tuple[str, str, str, str], Finding] = {}
    room = plan.steps["prefill"].limits["t"]
    for fed in dict.fromkeys((room, min(2, room))):
        walk = _Walk(plan, fed)
        for finding in walk.run():
            found.setdefault((finding.rule, finding.step, finding.op, finding.value), finding)
    for finding in (*_misaligned(plan), *_weights(plan), *_unlike_siblings(plan)):
        found.setdefault((finding.rule, finding.step, finding.op, finding.value), finding)
    order = {(s.name, op.name): (i, j) for i, s in enumerate(plan.steps.values()) for j, op in enumerate(s.ops)}
    return tuple(sorted(found.values(), key=lambda f: order.get((f.step, f.op), (99, 0))))


@dataclass
class _Written:
    """One value of the walk: who made it, where, and whether anybody has read it."""

    name: str
    step: str  # of the walk: "decode.1"
    low: int
    high: int
    op: PlanOp | None
    read: bool = False


@dataclass
class _Piece:
    low: int
    high: int
    owner: _Written


@dataclass
class _Walk:
    """The plan executed on bytes that only know their writer."""

    plan: Plan
    fed: int  # tokens of the prompt
    memory: dict[str, list[_Piece]] = field(default_factory=dict)  # buffer → pieces, disjoint, in order
    made: list[_Written] = field(default_factory=list)
    positions: int = 0

    def run(self) -> Iterator[Finding]:
        steps = self.plan.steps
        if "encode" in steps:
            frames = steps["encode"].limits
            yield from self._step(steps["encode"], "encode", {"t": frames["t"], "n": frames["n"]}, 0)
        yield from self._step(steps["prefill"], "prefill", sizes_at(steps["prefill"], self.fed, self.fed), 0)
        for i in range(min(2, self.plan.positions - self.fed)):
            sizes = sizes_at(steps["decode"], 1, self.fed + i + 1)
            yield from self._step(steps["decode"], f"decode.{i}", sizes, self.fed + i)
        for value in self.made:
            if not value.read and value.op is not None and not self._for_later(value):
                text = f"{value.name} is made and nobody reads it"
                yield Finding("never_read", _group(value.step), value.name, value.name, text)

    def _for_later(self, value: _Written) -> bool:
        """A state that the last step of the walk left, and that this kind of step reads."""
        tensor = self.plan.steps[_group(value.step)].tensors.get(value.name)
        reads = any(value.name in op.inputs.values() for op in self.plan.steps["decode"].ops)
        return tensor is not None and tensor.kept and value.step == self.made[-1].step and reads

    def _step(self, step: Step, name: str, sizes: Mapping[str, int], first: int) -> Iterator[Finding]:
        self._write(step.tensors[step.input], name, sizes, first, None)
        made_by = {op.name: i for i, op in enumerate(step.ops)}
        for i, op in enumerate(step.ops):
            kind = kind_of(op.kind)
            assert kind is not None  # the plan was checked
            spans = []
            for port, source in op.inputs.items():
                tensor = self.plan.tensor(step.name, source)
                assert tensor is not None  # the plan was checked
                whole = "w" if "window" in op.attrs else "n"
                low, high = _span(tensor, sizes, first, whole if port in kind.cached else "")
                spans.append((tensor, low, high))
                later = made_by.get(source, -1) >= i and source in step.tensors
                own = source in made_by or source == step.input
                alias = not own and source in step.tensors and not self._made_before(source)
                yield from self._read(name, op, tensor, (low, high), later=later, alias=alias)
            yield from self._on_inputs(step, op, spans, sizes, first, elementwise=kind.elementwise)
            self._write(step.tensors[op.name], name, sizes, first, op)
        result = step.tensors[step.result]
        for piece in self._pieces(result.buffer, *_span(result, sizes, first)):
            piece.owner.read = True

    def _read(
        self, name: str, op: PlanOp, tensor: Tensor, span: tuple[int, int], *, later: bool, alias: bool
    ) -> Iterator[Finding]:
        pieces = self._pieces(tensor.buffer, *span)
        covered = sum(min(p.high, span[1]) - max(p.low, span[0]) for p in pieces)
        for piece in pieces:
            piece.owner.read = True
        for value in self.made:
            value.read = value.read or value.name == tensor.name
        own = [p for p in pieces if p.owner.name == tensor.name]
        foreign = [p for p in pieces if p.owner.name != tensor.name]
        at = (_group(name), op.name, tensor.name)
        if alias:
            yield from _view(at, pieces, span, covered)
        elif later and not ((tensor.rows or tensor.kept) and own):
            yield Finding("read_before_written", *at, f"{op.name} reads {tensor.name} before it is made")
        elif foreign:
            last = foreign[-1].owner
            text = f"{op.name} reads {tensor.name}, whose place {last.name} has taken by then"
            in_place = last.op is not None and tensor.name in last.op.inputs.values() and last.step == name
            whole = foreign[0].owner.low <= span[0] and foreign[0].owner.high >= span[1]
            rule = "in_place" if in_place else "reused" if whole else "overlap"
            yield Finding(rule, *at, text, last.name)
        elif covered < span[1] - span[0]:
            rule = "extent" if own else "read_before_written"
            missing = span[1] - span[0] - covered
            yield Finding(rule, *at, f"{op.name} reads {missing:,} bytes of {tensor.name} that no op has written")

    def _on_inputs(
        self,
        step: Step,
        op: PlanOp,
        spans: list[tuple[Tensor, int, int]],
        sizes: Mapping[str, int],
        first: int,
        *,
        elementwise: bool,
    ) -> Iterator[Finding]:
        """An output on an input of its own op."""
        out = step.tensors[op.name]
        low, high = _span(out, sizes, first)
        for tensor, start, end in spans:
            if tensor.buffer != out.buffer or end <= low or start >= high or tensor.name == op.name:
                continue
            if elementwise and (start, end) == (low, high):
                continue  # whoever needs the input afterwards will be told
            text = (
                f"{op.name} writes over {tensor.name} while it reads it, and {op.kind} reads an element more than once"
            )
            yield Finding("in_place", step.name, op.name, tensor.name, text, tensor.name)

    def _write(self, tensor: Tensor, step: str, sizes: Mapping[str, int], first: int, op: PlanOp | None) -> None:
        low, high = _span(tensor, sizes, first)
        value = _Written(tensor.name, step, low, high, op)
        self.made.append(value)
        kept = []
        for piece in self.memory.get(tensor.buffer, []):
            if piece.low < low:
                kept.append(_Piece(piece.low, min(piece.high, low), piece.owner))
            if piece.high > high:
                kept.append(_Piece(max(piece.low, high), piece.high, piece.owner))
        kept.append(_Piece(low, high, value))
        self.memory[tensor.buffer] = sorted(kept, key=lambda p: p.low)

    def _pieces(self, buffer: str, low: int, high: int) -> list[_Piece]:
        return [p for p in self.memory.get(buffer, []) if p.low < high and p.high > low]

    def _made_before(self, name: str) -> bool:
        return any(value.name == name for value in self.made)


def _view(at: tuple[str, str, str], pieces: list[_Piece], span: tuple[int, int], covered: int) -> Iterator[Finding]:
    """A tensor that no op makes: all of one value's bytes, or something is wrong."""
    _, op, name = at
    owners = {id(p.owner): p.owner for p in pieces}
    if not owners:
        yield Finding("read_before_written", *at, f"{op} reads {name}, which nobody writes")
    elif len(owners) > 1 or covered < span[1] - span[0]:
        read = " and ".join(o.name for o in owners.values())
        more = f"{op} reads {span[1] - span[0]:,} bytes as {name}: more than {read} wrote there in one piece"
        yield Finding("extent", *at, more, next(iter(owners.values())).name)
    else:
        owner = next(iter(owners.values()))
        if owner.high - owner.low > span[1] - span[0]:
            text = f"{op} reads {span[1] - span[0]:,} of the {owner.high - owner.low:,} bytes that {owner.name} wrote"
            yield Finding("extent", *at, text, owner.name)


def _span(tensor: Tensor, sizes: Mapping[str, int], first: int, whole: str = "") -> tuple[int, int]:
    """Bytes of a buffer: the step's rows of a cache, or for a reader of all of it ("n") or of a window ("w") those."""
    if not tensor.rows:
        return tensor.offset, tensor.offset + tensor.bytes(sizes)
    row = row_bytes(tensor)
    if whole:
        return tensor.offset + row * (sizes["n"] - sizes[whole]), tensor.offset + row * sizes["n"]
    start = tensor.offset + row * first
    return start, start + tensor.bytes(sizes)


def _misaligned(plan: Plan) -> Iterator[Finding]:
    for step in plan.steps.values():
        for tensor in step.tensors.values():
            if tensor.offset % ALIGNMENT:
                item = ITEM_BYTES[tensor.dtype]
                text = f"{tensor.name} starts at byte {tensor.offset}, {tensor.offset // item} items in: not a multiple"
                yield Finding("alignment", step.name, tensor.name, tensor.name, f"{text} of {ALIGNMENT} bytes")


def _unlike_siblings(plan: Plan) -> Iterator[Finding]:
    """Ports, weights, kinds and constants by layer; a tie of two layers is broken by the model's other stacks."""
    table: dict[tuple[str, str, str, str], dict[int, str]] = {}  # (step, stack, op, port) → layer → what is wired
    sort: dict[tuple[str, int], set[str]] = {}  # what a layer does that others may not: see a window only, turn
    for step in plan.steps.values():
        for op in step.ops:
            match = _LAYER.fullmatch(op.name)
            if match:
                own = sort.setdefault((match["stack"], int(match["index"])), set())
                own.update({"window"} & set(op.attrs), {"rope"} & {op.kind})
                for port, wired in _wires(op, match["stack"], int(match["index"])):
                    key = (step.name, match["stack"], match["rest"], port)
                    table.setdefault(key, {})[int(match["index"])] = wired
    _name_what_enters(table)
    sorts = [
        (key, part)
        for key, every in table.items()
        for tags in {frozenset(sort[key[1], i]) for i in every}
        if len(part := {i: w for i, w in every.items() if sort[key[1], i] == tags}) > 1
    ]
    for (step_name, stack, rest, port), layers in sorts:
        if len(set(layers.values())) < 2:
            continue
        usual = _usual(layers, [v for k, v in table.items() if k[2:] == (rest, port) and k[:2] != (step_name, stack)])
        tensors = plan.steps[step_name].tensors
        for index, wired in layers.items():
            name = f"{stack}.{index}.{rest}"
            others_have = {w for i, w in layers.items() if i != index and w != wired}
            if usual is None and others_have and not any(_has(tensors, w, stack, index) for w in others_have):
                continue  # a layer of another sort
            if usual is not None and wired != usual and not _has(tensors, usual, stack, index):
                continue
            said = f"{name} has {_said(wired)} as `{port}`"
            if usual is None and index:  # two layers, and nothing to tell which is right
                first = min(layers)
                text = f"{said}, the same op of layer {first} {_said(layers[first])}: one of them is wrong"
                yield Finding("siblings", step_name, name, name, text, f"{stack}.{first}.{rest}")
            elif usual is not None and wired != usual:
                text = f"{said}, the same op of its sibling layers {_said(usual)}"
                yield Finding("siblings", step_name, name, name, text, _absolute(wired, stack, index))


def _weights(plan: Plan) -> Iterator[Finding]:
    """Weights that no op uses, and ops that use another's although the plan has one of their own name."""
    used = {weight for step in plan.steps.values() for op in step.ops for weight in op.weights.values()}
    for step in plan.steps.values():
        for op in step.ops:
            for port, weight in op.weights.items():
                own = f"{op.name}.{port}"
                if weight != own and own in plan.weights:
                    text = f"{op.name} uses {weight} as `{port}`, and the plan has {own}"
                    yield Finding("weight_name", step.name, op.name, own, text, weight)
    for weight in plan.weights:
        if weight not in used:
            module = weight.rpartition(".")[0]
            step_name = next((s.name for s in plan.steps.values() if module in s.tensors), "")
            yield Finding(
                "never_read", step_name, module, weight, f"the weight {weight} is in the plan and no op uses it"
            )


def _has(tensors: Mapping[str, Tensor], wired: str, stack: str, index: int) -> bool:
    """Whether a layer has what another one is wired to: a value of its own, or of none."""
    where, _, rest = wired.partition(".")
    return where != "+0" or f"{stack}.{index}.{rest}" in tensors


def _wires(op: PlanOp, stack: str, index: int) -> Iterator[tuple[str, str]]:
    yield "kind", op.kind
    for key, value in op.attrs.items():
        yield f"attribute {key}", repr(float(value))
    for port, name in (*op.inputs.items(), *op.weights.items()):
        match = _LAYER.fullmatch(name)
        if match and match["stack"] == stack:
            yield port, f"{int(match['index']) - index:+d}.{match['rest']}"
        else:
            yield port, name


def _name_what_enters(table: dict[tuple[str, str, str, str], dict[int, str]]) -> None:
    """The stream that enters a stack stands to its first layer as the layer before stands to the others."""
    entries: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for (step, stack, _, _), layers in table.items():
        others = {wired for index, wired in layers.items() if index}
        if 0 in layers and len(others) == 1 and next(iter(others)).startswith("-1."):
            entries.setdefault((step, stack), Counter())[layers[0], next(iter(others))] += 1
    for (step, stack, _, _), layers in table.items():
        if layers.get(0, "").startswith(stack.removesuffix("layers")) and (step, stack) in entries:
            ((name, before), _), *_ = entries[step, stack].most_common(1)
            if layers[0] == name:
                layers[0] = before


def _usual(layers: Mapping[int, str], others: list[dict[int, str]]) -> str | None:
    """What most layers have; of two that differ, what more of the other steps and stacks have; None: nobody knows."""
    (first, n), (second, m) = Counter(layers.values()).most_common(2)
    if n > m and n > 1:
        return first
    elsewhere = Counter(wired for other in others for wired in other.values())
    if elsewhere[first] == elsewhere[second]:
        return None
    return first if elsewhere[first] > elsewhere[second] else second


def _said(wired: str) -> str:
    where, _, rest = wired.partition(".")
    words = {"+0": "its own layer's ", "-1": "the layer before's "}
    if re.fullmatch(r"[+-]\d+", where):
        return words.get(where, f"layer {where}'s ") + rest
    return wired


def _absolute(wired: str, stack: str, index: int) -> str:
    where, _, rest = wired.partition(".")
    return f"{stack}.{index + int(where)}.{rest}" if re.fullmatch(r"[+-]\d+", where) else wired


def _group(step: str) -> str:
    return step.partition(".")[0]
