"""Matching of values that names have left over: by content, by what the candidate's own values predict, by place.

A pair found by content is proved element by element under one layout; a sketch only says where to look. Prediction
replays the reference on the candidate's values and looks for the result, so what lies behind a fault is still found.
A value that is itself wrong has no content to go by: it is the one from which the reference's next ops make what the
candidate has next, or the only one at its place; and only where nothing behind it says that it is right. Leaves out
names: alignment.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.alignment import Arrays, How, Pair, bears, held
from firstbad.graph import Graph, Op, Value
from firstbad.joined import Join, cover, extended, join, put_together, side_by_side
from firstbad.layout import NEAR, Layout, best, best_part, best_row, by_shape, distance, one_row, parts, reordered
from firstbad.noise import ROUNDOFF
from firstbad.relaid import FAR_BEHIND, relay
from firstbad.replay import Executor, moves_only
from firstbad.sketch import Sketch, contains, ordered, similar, sketch

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLACED = 40
"""Values placed by their neighbours in one alignment, at most: each costs a replay of what follows."""

LAYOUTS, DEPTH = 6, 2
"""Layouts tried for a value that is wrong, and computed values looked at behind it."""

PIECED = 200
"""Ways to put pieces together that are tried for one value: each costs a replay of what follows."""

IN_ORDER = 0.8
"""Share of neighbours among the pairs that come in the reference's order, from which order counts."""

FUSED = 16
"""Times its size that a larger array may have in which a value is looked for: ten for the keys of grouped heads."""

SORTED_BYTES = 1 << 28
"""Of sorted arrays that are kept, to look for parts in."""

CLOSE_RACE = 3.0
"""Between two contents that both fit, the nearer by this factor wins; else edges decide."""


class Matcher:
    """Adds to `pairs` (reference id → pair) and `taken` (candidate ids)."""

    def __init__(
        self,
        reference: Graph,
        candidate: Graph,
        reference_array: Arrays,
        candidate_array: Arrays,
        pairs: dict[int, Pair],
        taken: set[int],
        joins: Iterable[Join] = (),
    ) -> None:
        self.reference = reference
        self.candidate = candidate
        self.reference_array = reference_array
        self._own_array = candidate_array
        self.joins: dict[int, Join] = {one.value.id: one for one in joins}  # by the id of the whole
        self.pairs = pairs
        self.taken = taken
        self._sketches: dict[int, Sketch] = {}
        self._sorted: dict[int, NDArray[np.float32]] = {}
        self._partner = {p.candidate.id: p.reference.id for p in pairs.values()}
        self._behind: dict[int, bool] = {}  # reference id → whether the candidate's value follows from what was guessed
        self._loose = False  # whether contents may differ by more than rounding

    @property
    def leftovers(self) -> list[Value]:
        """Candidate values with content and without a partner."""
        return [v for v in self.candidate.values if bears(v) and held(v) and v.id not in self.taken]

    def telling(self, other: Value) -> bool:
        """Whether what a candidate's value holds says which it is."""
        return self._sketch(other).telling

    def by_content(self) -> None:
        """Against the reference's own run: everything that no fault has reached."""
        # positions and masks of integers look alike everywhere: those go by name alone
        wanted = [
            v for v in self.reference.values if bears(v) and held(v) and v.id not in self.pairs and "float" in v.dtype
        ]
        wanted.sort(key=lambda v: (self._moves(v), v.id))  # a computed value before its copies
        for value in wanted:
            if value.same_as < 0:
                self._match(value, self.reference_array(value), "content")

    def by_prediction(self, executor: Executor) -> None:
        """Against what follows from the candidate's own values; where that finds nothing, by place."""
        for _ in range(PLACED):
            self._predict(executor)
            if self.leftovers and self._place(executor):
                continue
            wrong = self.leftovers or any(pair.how == "placed" for pair in self.pairs.values())
            if not wrong or not relay(self, executor):
                break
        self._loose = True  # an engine of another arithmetic: the nearest
        self._predict(executor)

    def candidate_array(self, value: Value) -> NDArray[Any]:
        whole = self.joins.get(value.id)
        return whole.array(self._own_array) if whole is not None else self._own_array(value)

    def _near(self, other: Value) -> float:
        """Relative distance under which a candidate's value is what was looked for."""
        return NEAR if self._loose else math.sqrt(ROUNDOFF.get(other.dtype, ROUNDOFF["float32"]))

    def _match(self, value: Value, array: NDArray[Any], how: How) -> bool:
        """Looks for the one leftover with this content."""
        mine = sketch(array)
        if not mine.telling:
            return False
        found: list[tuple[float, Value, Layout]] = []
        for other in self.leftovers:
            if other.step != value.step or not _same_sort(value, other):
                continue
            fit = self._fit(value, array, mine, other)
            if fit is not None:
                found.append((fit[1], other, fit[0]))
        if not found:
            return self._match_pieces(value, array, how)
        found.sort(key=lambda f: f[0])
        nearest = found[0][0]
        race = [f for f in found if f[0] <= CLOSE_RACE * nearest + 1e-7]
        race.sort(key=lambda f: (-self._shared_inputs(value, f[1]), self._moves_candidate(f[1]), f[1].id))
        _, other, layout = race[0]
        self._pair(value, other, layout, how)
        return True

    def _match_pieces(self, value: Value, array: NDArray[Any], how: How) -> bool:
        """Looks for several leftovers that make up this content."""
        smaller = self._smaller(value)
        if len(smaller) < 2:
            return False
        numbers = ordered(array)
        found: list[tuple[Value, Layout]] = []
        for other in smaller:
            near = self._near(other)
            if contains(numbers, self._sketch(other), near):
                fit = best_part(other.shape, array, self.candidate_array(other), near=near)
                if fit is not None and all(fit[0] != layout for _, layout in found):
                    found.append((other, fit[0]))
        pieces, layouts = [other for other, _ in found], [layout for _, layout in found]
        if sum(math.prod(piece.shape) for piece in pieces) != array.size or not cover(value.shape, layouts):
            return False
        self._join(value, pieces, layouts, how)
        return True

    def _smaller(self, value: Value) -> list[Value]:
        """Leftovers that may be pieces of the value; what stands for a copy of a piece already may be the piece too."""
        if not self._fusable(value):
            return []
        return [
            other
            for other in self.candidate.values
            if other.step == value.step
            and "float" in other.dtype
            and _holds_parts(other, value)
            and bears(other)
            and held(other)
            and (other.id not in self.taken or self._copied(other))
        ]

    def _copied(self, other: Value) -> bool:
        """Whether its partner only holds what another value is: moved, or added to a cache."""
        return other.id in self._partner and self._caches(self.reference.values[self._partner[other.id]])

    def _caches(self, value: Value) -> bool:
        """Whether a value of the reference only holds what others are, each row of which is read."""
        return value.op >= 0 and (self._moves(value) or "aten.cat" in self.reference.ops[value.op].kind)

    def _join(self, value: Value, pieces: Sequence[Value], layouts: Sequence[Layout], how: How) -> None:
        whole = join(self.candidate, value.shape, pieces, layouts)
        self.candidate = extended(self.candidate, whole)
        self.joins[whole.value.id] = whole
        self.taken.update(piece.id for piece in pieces)
        self._pair(value, whole.value, Layout(value.shape), how)

    def _place_pieces(self, value: Value, executor: Executor) -> bool:
        """Pieces from which, side by side, the reference's next ops make what the candidate has next."""
        tries = 0
        for pieces in self._sets(value):
            for layouts in side_by_side(value.shape, pieces):
                tries += 1
                if tries > PIECED:
                    return False
                known = {value.id: put_together(value.shape, [self.candidate_array(p) for p in pieces], layouts)}
                if any(self.holds(i, known, pieces[0], executor) for i in self.behind(value, FAR_BEHIND)):
                    self._join(value, pieces, layouts, "placed")
                    return True
        return False

    def _sets(self, value: Value) -> Iterator[tuple[Value, ...]]:
        """Two or three leftovers of the size of the value together; neighbours, in their own order, first."""
        smaller, size = self._smaller(value), math.prod(value.shape)
        for n in (3, 2):
            runs = [tuple(smaller[i : i + n]) for i in range(len(smaller) - n + 1)]
            orders = (order for run in runs for order in itertools.permutations(run))
            others = itertools.permutations(smaller, n) if len(smaller) <= 8 else ()
            for pieces in (*runs, *orders, *others):
                if sum(math.prod(piece.shape) for piece in pieces) == size:
                    yield pieces

    def _fit(self, value: Value, array: NDArray[Any], mine: Sketch, other: Value) -> tuple[Layout, float] | None:
        own, near = self.candidate_array, self._near(other)
        if math.prod(value.shape) == math.prod(other.shape) and similar(mine, self._sketch(other)):
            fit = best(value.shape, own(other), array, near=near)
            return fit or reordered(value.shape, own(other), array, near=near)
        if _holds_parts(value, other) and contains(self._ordered(other), mine, self._near(other)):
            return best_part(value.shape, own(other), array, near=near)
        if self._caches(value) or not self._sketch(other).telling:
            return None
        return best_row(value.shape, own(other), array, near=near)

    def _sketch(self, value: Value) -> Sketch:
        if value.id not in self._sketches:
            self._sketches[value.id] = sketch(self.candidate_array(value))
        return self._sketches[value.id]

    def _ordered(self, value: Value) -> NDArray[np.float32]:
        if value.id not in self._sorted:
            if sum(array.nbytes for array in self._sorted.values()) > SORTED_BYTES:
                self._sorted.clear()
            self._sorted[value.id] = ordered(self.candidate_array(value))
        return self._sorted[value.id]

    def _pair(self, value: Value, other: Value, layout: Layout, how: How) -> None:
        self.pairs[value.id] = Pair(value, other, layout, how)
        if not layout.part:  # other parts of a fused value may still be taken
            self.taken.add(other.id)
        self._partner[other.id] = value.id

    def _moves(self, value: Value) -> bool:
        return value.op >= 0 and moves_only(self.reference.ops[value.op])

    def _moves_candidate(self, value: Value) -> bool:
        kind = self.candidate.ops[value.op].kind.lower() if value.op >= 0 else ""
        return any(word in kind for word in ("reshape", "transpose", "squeeze", "identity", "view", "copy", "cast"))

    def _shared_inputs(self, value: Value, other: Value) -> int:
        """How many inputs of the two are known to be the same."""
        mine = _boundary(self.reference, value, lambda i: i in self.pairs)
        theirs = _boundary(self.candidate, other, lambda i: i in self._partner)
        return len(mine & {self._partner[i] for i in theirs})

    def _predict(self, executor: Executor) -> None:
        """One pass in execution order; only ops whose output has no partner yet (or was never checked) are run."""
        left = {value: len(ops) for value, ops in self.reference.readers.items()}
        known: dict[int, NDArray[Any]] = {}
        guessed: set[int] = set()
        self._behind = {}
        wanted_steps = {v.step for v in self.leftovers}
        for op in self.reference.ops:
            inputs = {r.value: known[r.value] for r in op.reads if self._look_up(r.value, known)}
            from_guess = any(r.value in guessed for r in op.reads)
            open_ = [w for w in op.writes if w not in self.pairs]
            if (open_ or from_guess) and (op.step in wanted_steps or any(left.get(w, 0) for w in op.writes)):
                for written, array in zip(op.writes, executor.run(op, inputs, "float32"), strict=True):
                    self._predicted(written, array, known, guessed, from_guess)
            for read in {r.value for r in op.reads}:
                left[read] = left.get(read, 1) - sum(r.value == read for r in op.reads)
                if left[read] <= 0:
                    known.pop(read, None)

    def _predicted(
        self, written: int, array: NDArray[Any], known: dict[int, Any], guessed: set[int], from_guess: bool
    ) -> None:
        value = self.reference.values[written]
        pair = self.pairs.get(written)
        if pair is not None:
            if from_guess and np.issubdtype(array.dtype, np.floating):
                own = self.candidate_array(pair.candidate)
                self._behind[written] = distance(pair.layout, own, array) <= self._near(pair.candidate)
            return
        known[written] = array
        if bears(value) and held(value) and np.issubdtype(array.dtype, np.floating) and value.same_as < 0:
            array = np.asarray(array, np.float32)
            if self._match(value, array, "predicted"):
                del known[written]
                self._look_up(written, known)
                return
            guessed.add(written)
        elif from_guess:
            guessed.add(written)

    def _look_up(self, value: int, known: dict[int, NDArray[Any]]) -> bool:
        """Puts what stands for a value into `known`: the candidate's array, or the reference's own input."""
        if value < 0:
            return False
        if value not in known:
            record = self.reference.values[value]
            pair = self.pairs.get(value)
            if pair is not None:
                known[value] = pair.layout.apply(self.candidate_array(pair.candidate))
            elif record.kind in ("input", "constant"):
                known[value] = self.reference_array(record)
        return value in known

    def _place(self, executor: Executor) -> bool:
        """Pairs a reference value that must be wrong with a candidate value that can be it: one that gives, by the
        reference's next ops, what the candidate has next; or the only one at its place."""
        undecided: list[tuple[Value, list[Value]]] = []
        return (
            self._place_followed(executor, DEPTH, undecided)
            or self._place_followed(executor, FAR_BEHIND, [])
            or self._place_two(executor)
            or self._place_alone(undecided)
        )

    def _place_followed(self, executor: Executor, depth: int, undecided: list[tuple[Value, list[Value]]]) -> bool:
        """By what follows so far behind; in `undecided` are the others."""
        best: tuple[Value, Value, Layout] | None = None
        in_order = self._in_order()
        pieces = depth == DEPTH
        for value in self.reference.values:
            if best is not None and value.step != best[0].step:
                break
            if self._settled(value):
                continue
            if self._explained(value):  # of several pieces one may be wrong and what reads the others right
                in_part = pieces and best is None and not self._explained(value, by=all)
                if in_part and self._place_pieces(value, executor):
                    return True
                continue
            options = self._options(value)
            if best is not None:
                options = [other for other in options if other.id < best[1].id]
            found = self._followed(value, options, executor, depth)
            if found is not None:
                best = (value, *found)
                if not in_order:
                    break
                continue  # another layer's value has its own next too: the candidate's first is meant
            if pieces and best is None and self._place_pieces(value, executor):
                return True
            whole = [other for other in options if by_shape(value.shape, other.shape)]
            if whole:
                undecided.append((value, whole))
        if best is not None:
            self._pair(*self._latest(*best, executor), "placed")
        return best is not None

    def _place_alone(self, undecided: list[tuple[Value, list[Value]]]) -> bool:
        """The first value that is open, where its place says which it is."""
        for value, options in undecided[:1]:  # what comes after it may be wrong only because of it
            other = self._at_its_place(value, options, alone=len(undecided) == 1)
            if other is not None:
                layouts = by_shape(value.shape, other.shape)
                wanted, array = self.reference_array(value), self.candidate_array(other)
                self._pair(value, other, min(layouts, key=lambda one: distance(one, array, wanted)), "placed")
                return True
        return False

    def _place_two(self, executor: Executor) -> bool:
        """Two wrong values that one op reads: neither gives what comes next without the other."""
        in_order = self._in_order()
        for op in self.reference.ops:
            sources = sorted((v for v in self._sources(op) if not self._settled(v)), key=lambda v: v.id)
            if len(sources) != 2 or any(self._explained(v) for v in sources):
                continue
            targets = self.behind(sources[0], FAR_BEHIND)
            symmetric = sources[0].shape == sources[1].shape and op.kind.startswith(("aten.add.", "aten.mul."))
            readings = [
                [(o, layout) for o in self._options(v) for layout in by_shape(v.shape, o.shape)[:2]] for v in sources
            ]
            for two in itertools.islice(itertools.product(*readings), PIECED):
                (a, first), (b, second) = two
                if a.id >= b.id if in_order else a.id == b.id or symmetric:
                    continue
                known = {
                    sources[0].id: first.apply(self.candidate_array(a)),
                    sources[1].id: second.apply(self.candidate_array(b)),
                }
                if any(self.holds(i, known, a, executor) for i in targets):
                    for value, (other, layout) in zip(sources, two, strict=True):
                        self._pair(value, other, layout, "placed")
                    return True
        return False

    def _sources(self, op: Op) -> list[Value]:
        """The computed values of its step that an op reads, through what only moves them or adds them to a cache."""
        found: list[Value] = []
        stack = [r.value for r in op.reads if r.value >= 0]
        while stack:
            value = self.reference.values[stack.pop()]
            if value.op < 0 or value.step != op.step:
                continue
            if value.kind == "view" or self._moves(value) or "aten.cat" in self.reference.ops[value.op].kind:
                stack += [v.id for v in self.reference.inputs_of(value)]
            elif value not in found:
                found.append(value)
        return found

    def _settled(self, value: Value) -> bool:
        """A value that has a partner, or needs none: only moved, a copy, no numbers of its own."""
        return (
            value.id in self.pairs
            or value.op < 0
            or not bears(value)
            or not held(value)
            or value.same_as >= 0
            or self._moves(value)
        )

    def _options(self, value: Value) -> list[Value]:
        return [
            other
            for other in self.leftovers
            if other.step == value.step and _same_sort(value, other) and self._layouts(value, other)
        ]

    def _layouts(self, value: Value, other: Value) -> list[Layout]:
        """How the other may be read as the value: as a whole, else as a part of it."""
        whole = by_shape(value.shape, other.shape)
        if not whole and not self._caches(value):
            last = (
                value.shape[-2] - 1 if len(value.shape) > 1 else 0
            )  # a first row has nothing before it: much would fit
            whole = [one for one in one_row(value.shape, other.shape) if one.rows == (last,)]
        if whole or not self._fusable(value) or not _holds_parts(value, other):
            return whole[:LAYOUTS]
        return list(itertools.islice(parts(value.shape, other.shape), 2 * LAYOUTS))

    def _fusable(self, value: Value) -> bool:
        """Layers that read the same are fused: linear ones and convolutions."""
        kind = self.reference.ops[value.op].kind if value.op >= 0 else ""
        return any(word in kind for word in ("linear", "mm", "conv"))

    def _followed(
        self, value: Value, options: list[Value], executor: Executor, depth: int
    ) -> tuple[Value, Layout] | None:
        """The option from which the reference's next ops make what the candidate has next."""
        if self._in_order():
            mine, behind = _boundary(self.reference, value, lambda i: i in self.pairs), self._after(value)
            options = [other for other in options if self._between(other, mine, behind)]
        for other in options:
            array = self.candidate_array(other)
            for layout in self._layouts(value, other):
                known = {value.id: layout.apply(array)}
                if any(self.holds(i, known, other, executor) for i in self.behind(value, depth)):
                    return other, layout
        return None

    def _latest(self, value: Value, other: Value, layout: Layout, executor: Executor) -> tuple[Value, Value, Layout]:
        """The last reference value that the option can be: an op that masks what is masked already changes nothing."""
        own = layout.apply(self.candidate_array(other))
        for i in self.behind(value):
            later = self.reference.values[i]
            if later.shape != value.shape or self._settled(later):
                continue
            made = self._evaluate(i, {value.id: own}, executor)
            if made is not None and distance(Layout(later.shape), own, made) <= self._near(other):
                return self._latest(later, other, replace(layout, shape=later.shape), executor)
        return value, other, layout

    def behind(self, value: Value, depth: int = DEPTH) -> list[int]:
        """The nearest computed values behind this one, and those behind them."""
        found: list[int] = []
        stack = [(value.id, 0)]
        while stack:
            at, gone = stack.pop(0)
            for op in self.reference.readers.get(at, ()):
                for written in self.reference.ops[op].writes:
                    record = self.reference.values[written]
                    computed = bears(record) and not self._moves(record) and record.same_as < 0
                    if computed and written not in found:
                        found.append(written)
                    # behind a value that is known nothing depends on this one
                    if gone + computed < depth and written not in self.pairs:
                        stack.append((written, gone + computed))
        return found

    def holds(self, target: int, known: dict[int, NDArray[Any]], option: Value, executor: Executor) -> bool:
        """Whether the candidate has the target's value as it follows from what is assumed in `known`."""
        array = self._evaluate(target, known, executor)
        if array is None or not np.issubdtype(array.dtype, np.floating):
            return False
        pair = self.pairs.get(target)
        if pair is not None:
            apart = distance(pair.layout, self.candidate_array(pair.candidate), array)
            return apart <= self._near(pair.candidate)
        value, mine = self.reference.values[target], sketch(array)
        return mine.telling and any(
            other.id != option.id and other.step == value.step and self._fit(value, array, mine, other) is not None
            for other in self.leftovers
        )

    def _evaluate(self, target: int, known: dict[int, NDArray[Any]], executor: Executor) -> NDArray[Any] | None:
        """A value computed from `known` and from the candidate's values; always anew for the target itself."""
        stack = [target]
        while stack:
            op = self.reference.ops[self.reference.values[stack[-1]].op]
            missing = [
                r.value
                for r in op.reads
                if r.value >= 0
                and self.reference.values[r.value].kind != "weight"
                and not self._look_up(r.value, known)
            ]
            if any(self.reference.values[i].op < 0 for i in missing):
                return None
            if missing:
                stack += missing
                continue
            inputs = {r.value: known[r.value] for r in op.reads if r.value in known}
            made = executor.run(op, inputs, "float32")
            if stack[-1] == target:
                return made[op.writes.index(target)]
            known.update(zip(op.writes, made, strict=True))
            stack.pop()
        return None

    def _explained(self, value: Value, by: Callable[[Iterable[bool]], bool] = any) -> bool:
        """Whether something behind the value is right if the value is what it should be: then it is not wrong."""
        return by(self._behind.get(i, self.pairs[i].how in ("content", "predicted")) for i in self._after(value))

    def _after(self, value: Value) -> set[int]:
        """The nearest paired values that were computed from this one."""
        found: set[int] = set()
        seen: set[int] = set()
        stack = [value.id]
        while stack:
            for op in self.reference.readers.get(stack.pop(), ()):
                for written in self.reference.ops[op].writes:
                    if written in seen:
                        continue
                    seen.add(written)
                    if written in self.pairs:
                        found.add(written)
                    else:
                        stack.append(written)
        return found

    def _at_its_place(self, value: Value, options: list[Value], *, alone: bool) -> Value | None:
        """The one option that was made from the same values; without edges only where nothing else is open."""
        mine = _boundary(self.reference, value, lambda i: i in self.pairs)
        behind = self._after(value)
        fitting = []
        for other in options:
            if other.op >= 0 and self.candidate.ops[other.op].reads:
                theirs = _boundary(self.candidate, other, lambda i: i in self._partner)
                if mine and {self._partner[i] for i in theirs} == mine:
                    fitting.append(other)
            elif alone and len(options) == 1 and self._between(other, mine, behind):
                fitting.append(other)
        return fitting[0] if len(fitting) == 1 else None

    def _in_order(self) -> bool:
        """Whether most of what is paired came in one order: a folder's files may come in any."""
        order = [self.pairs[i].candidate.id for i in sorted(self.pairs) if self.pairs[i].candidate.id not in self.joins]
        rising = sum(a <= b for a, b in itertools.pairwise(order))
        return len(order) > 8 and rising >= IN_ORDER * (len(order) - 1)

    def _between(self, other: Value, before: Iterable[int], behind: Iterable[int]) -> bool:
        first = [self.pairs[i].candidate.id for i in before if self.pairs[i].candidate.id not in self.joins]
        last = [self.pairs[i].candidate.id for i in behind if self.pairs[i].candidate.id not in self.joins]
        return all(i < other.id for i in first) and all(other.id < i for i in last)


def _holds_parts(value: Value, other: Value) -> bool:
    """Whether the other is so much larger that the value may be one of several fused in it, or what is not padding."""
    size = math.prod(value.shape)
    return 1 < size < math.prod(other.shape) <= FUSED * size and len(other.shape) <= 4


def _boundary(graph: Graph, value: Value, stop: Callable[[int], bool]) -> set[int]:
    """The nearest values upstream for which `stop` holds."""
    found: set[int] = set()
    seen: set[int] = set()
    stack = [value]
    while stack:
        for source in graph.inputs_of(stack.pop()):
            if source.id in seen or source.kind == "weight":
                continue
            seen.add(source.id)
            if stop(source.id):
                found.add(source.id)
            else:
                stack.append(source)
    return found


def _same_sort(a: Value, b: Value) -> bool:
    return ("float" in a.dtype) == ("float" in b.dtype)
