"""Checks of a candidate against itself, with no reference: what must come out equal whatever the model is.

Each check runs the candidate on inputs that are related, and names the first value that breaks the equality. Bits must
be equal where the shapes are (repeats, another later token, another request before, other ids at padding); where sums
are of other shapes (steps against prefill, batches, lengths) noise of another order is allowed, see same_rows.py.
Leaves out values that only one of two runs has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.errors import CompareError, UsageError
from firstbad.rooms import load
from firstbad.run import CaptureOptions, Prepared
from firstbad.same_rows import Differs, Held, Rows, equal
from firstbad.trace import Trace, open_trace

if TYPE_CHECKING:
    from firstbad.graph import Value

STEPS = 4
"""Tokens that are chosen one by one and then read at once."""

TILES = (15, 16, 17, 31, 32, 33)
"""Lengths around the sizes of tiles."""


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    basis: str  # "bits" or "noise"
    compared: int = 0
    first: Differs | None = None
    impossible: str = ""  # why it could not be made
    detail: str = ""


class _SkipError(Exception):
    """This check cannot be made here, and why."""


@dataclass
class Bench:
    """One candidate, run on many inputs; traces stay open until the end."""

    candidate: str
    prepared: Prepared
    folder: Path
    options: CaptureOptions
    stack: ExitStack
    tell: Callable[[str], None]
    count: int = 0
    kept: dict[Any, Trace] = field(default_factory=dict)

    @property
    def adapter(self) -> Any:
        return load("probes", self.candidate.partition(":")[0])

    def run(self, inputs: dict[str, np.ndarray] | None = None, tokens: int = 1, **wishes: Any) -> Trace:
        """The candidate on these inputs (None: the user's), `tokens` new tokens."""
        self.count += 1
        self.tell(f"run {self.count}")
        path = self.folder / f"run-{self.count}.h5"
        given = self.prepared
        if inputs is not None:
            prompt = tuple(int(i) for i in inputs["input_ids"][0])
            given = replace(given, inputs=inputs, prompt=prompt, eos=-1)
        how = replace(self.options, max_tokens=tokens, **wishes)
        argument = self.candidate.partition(":")[2]
        output = self.adapter.capture(argument, given, path, how)
        if not output.complete:
            raise CompareError(f"the candidate {output.death} in a run of its own: see `{path}`")
        return self.stack.enter_context(open_trace(path))

    def prompt(self) -> list[int]:
        ids = self.prepared.inputs.get("input_ids")
        if ids is None or ids.shape[0] != 1 or self.prepared.family != "causal":
            raise _SkipError("needs one prompt of a language model")
        return [int(i) for i in ids[0]]

    def base(self) -> Trace:
        """The user's input, with a few steps."""
        if "base" not in self.kept:
            self.kept["base"] = self.run(tokens=STEPS)
        return self.kept["base"]

    def prefill(self, ids: list[int]) -> Trace:
        key = tuple(ids)
        if key not in self.kept:
            self.kept[key] = self.run({"input_ids": np.array([ids], np.int64)})
        return self.kept[key]

    @property
    def first_step(self) -> str:
        return self.base().graph.steps[0]


def selfcheck(
    candidate: str,
    prepared: Prepared,
    folder: Path,
    options: CaptureOptions,
    *,
    repeats: int = 3,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Every check in order; one that cannot be made says why."""
    made = []
    with ExitStack() as stack:
        bench = Bench(candidate, prepared, folder, options, stack, tell)
        for name, basis, check in _checks(repeats):
            tell(name)
            try:
                found = list(check(bench))
            except _SkipError as why:
                made.append(Check(name, basis, impossible=str(why)))
                continue
            except UsageError as error:  # the candidate does not take such inputs
                made.append(Check(name, basis, impossible=str(error)))
                continue
            bad = next(((held, detail) for held, detail in found if held.first), (None, ""))
            compared = sum(held.compared for held, _ in found)
            first = bad[0].first if bad[0] else None
            none = "" if compared else "no value of both runs could be laid beside each other"
            made.append(Check(name, basis, compared, first, none, bad[1]))
    return made


def _checks(repeats: int) -> list[tuple[str, str, Callable[[Bench], Iterator[tuple[Held, str]]]]]:
    return [
        ("repeated runs", "bits", lambda bench: _repeated(bench, repeats)),
        ("a later token changed", "bits", _causal),
        ("steps against prefill", "noise", _steps),
        ("lengths", "noise", _lengths),
        ("the window", "bits", _window),
        ("a batch of two", "noise", _batch),
        ("other ids at padding", "bits", _padding),
        ("a request before", "bits", _before),
        ("poisoned memory", "bits", _memory),
    ]


def _same(trace: Trace) -> dict[str, tuple[str, Rows | None]]:
    return {step: (step, None) for step in trace.graph.steps}


def _repeated(bench: Bench, repeats: int) -> Iterator[tuple[Held, str]]:
    base = bench.base()
    for n in range(1, max(2, repeats)):
        yield equal(base, bench.run(tokens=STEPS), _same(base), exact=True), f"run {n + 1} against the first"


def _causal(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids = bench.prompt()
    for at in sorted({len(ids) - 1, len(ids) // 2} - {0}):
        other = [*ids[:at], *(_another(bench, i) for i in ids[at:])]
        held = _rows_alike(bench.prefill(ids), bench.prefill(other), bench.first_step, range(at), len(ids))
        yield held, f"the tokens from {at} on changed, rows before them"


def _rows_alike(
    a: Trace, b: Trace, step: str, rows: range, total: int, pick: Callable[[Value], bool] = lambda _: True
) -> Held:
    """Rows of two runs of the same shape, bit by bit."""
    count = 0
    for value in a.graph.values:
        twin = b.graph.by_key.get((step, value.name))
        if (
            value.step != step
            or value.op < 0
            or twin is None
            or not (a.stored(value) and b.stored(twin) and pick(value))
        ):
            continue
        axis = _axis(value.shape, total)
        if axis is None or value.shape != twin.shape or "float" not in value.dtype:
            continue
        count += 1
        cut = (slice(None),) * axis + (slice(rows.start, rows.stop),)
        x, y = a.array(value)[cut], b.array(twin)[cut]
        if value.shape[-1] == total and axis != len(value.shape) - 1:  # scores: no key behind the row
            x, y = x[..., : rows.stop], y[..., : rows.stop]
        if not np.array_equal(x, y, equal_nan=True):
            op = a.graph.ops[value.op]
            odd = np.argwhere(np.moveaxis(np.asarray(x != y), axis, 0).reshape(x.shape[axis], -1).any(1))
            where = f"row {rows.start + int(odd[0, 0])} of {total}"
            return Held(count, Differs(step, value.name, float(np.abs(x - y).max()), 0.0, where, op.file, op.line))
    return Held(count, None)


def _axis(shape: tuple[int, ...], total: int) -> int | None:
    """The axis of tokens: the last but one, or the one before the features of a value of two or three."""
    for axis in [len(shape) - 2] if len(shape) == 4 else [1, 0] if len(shape) == 3 else [0]:
        if len(shape) > axis and shape[axis] == total and len(shape) > 1:
            return axis
    return None


def _another(bench: Bench, token: int) -> int:
    V = int(bench.prepared.config.get("vocab_size", 0)) or token + 2
    return (token + V // 2) % V


def _steps(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids, base = bench.prompt(), bench.base()
    chosen = [int(t) for t in base.outputs.get("tokens", [])]
    steps = [s for s in base.graph.steps if s.startswith("decode.")]
    if not steps or len(chosen) < len(steps):
        raise _SkipError("the candidate tells no tokens, or takes no steps")
    whole = [*ids, *chosen[: len(steps)]]
    long = bench.prefill(whole)
    for i, step in enumerate(steps):
        n = len(ids) + i
        yield equal(base, long, {step: (bench.first_step, Rows(n, n + 1, len(whole)))}, exact=False), f"token {n}"


def _lengths(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids, config = bench.prompt(), bench.prepared.config
    window = config.get("sliding_window")
    around = [window - 1, window, window + 1] if isinstance(window, int) and 2 < window < 64 else []
    ladder = sorted({*TILES, *around})
    most = int(config.get("max_position_embeddings", 0) or 1 << 30)
    longest = min(ladder[-1] + 1, most)
    whole = (ids * (longest // len(ids) + 1))[:longest]
    long = bench.prefill(whole)
    for n in [n for n in ladder if n < longest]:
        rows = Rows(0, n, longest)
        step = bench.first_step
        yield equal(bench.prefill(whole[:n]), long, {step: (step, rows)}, exact=False), f"{n} tokens of {longest}"


def _window(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids, config = bench.prompt(), bench.prepared.config
    window, kinds = config.get("sliding_window"), config.get("layer_types") or []
    if (
        not isinstance(window, int)
        or (kinds and "sliding" not in str(kinds[0]))
        or config.get("use_sliding_window") is False
    ):
        raise _SkipError("the config has no sliding window in its first layer")
    T = window + 3
    whole = (ids * (T // len(ids) + 1))[:T]
    a, b, step = bench.prefill(whole), bench.prefill([_another(bench, whole[0]), *whole[1:]]), bench.first_step
    inner = _first_layer(a, step)
    yield (
        _rows_alike(a, b, step, range(window, T), T, lambda v: v.id in inner and v.shape[-1] != T),
        "token 0 changed, rows behind its window",
    )
    last = max(inner, default=-1)
    value = a.graph.values[last] if last >= 0 else None
    axis = None if value is None else _axis(value.shape, T)
    if value is not None and axis is not None:
        cut = (slice(None),) * axis + (window - 1,)
        x, y = a.array(value)[cut], b.array(b.graph.by_key[step, value.name])[cut]
        narrow = Differs(step, value.name, 0.0, 0.0, f"row {window - 1}, which token 0 does not reach")
        yield (
            Held(1, narrow if np.array_equal(x, y) else None),
            f"token 0 changed, the last row of its window of {window}",
        )


def _first_layer(trace: Trace, step: str) -> set[int]:
    """Values between the first attention and the end of the first layer, by their names."""
    parts = (".layers.0.", ".h.0.")
    return {
        v.id
        for v in trace.graph.values
        if v.step == step and v.op >= 0 and any(p in v.name for p in parts) and trace.stored(v)
    }


def _batch(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids = bench.prompt()
    short = ids[: max(1, len(ids) - 3)]
    both = bench.run(_left([ids, short]), tokens=2)
    bench.kept["batch"] = both
    T, step = len(ids), bench.first_step
    for b, alone in enumerate((bench.prefill(ids), bench.prefill(short))):
        rows = Rows(T - len((ids, short)[b]), T, T, b, 2)
        yield equal(alone, both, {step: (step, rows)}, exact=False), f"prompt {b} of two"


def _left(prompts: list[list[int]], pad: int = 0) -> dict[str, np.ndarray]:
    T = max(map(len, prompts))
    ids = np.array([[pad] * (T - len(p)) + p for p in prompts], np.int64)
    mask = np.array([[0] * (T - len(p)) + [1] * len(p) for p in prompts], np.int64)
    return {"input_ids": ids, "attention_mask": mask}


def _padding(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids = bench.prompt()
    short = ids[: max(1, len(ids) - 3)]
    a, b = (bench.run(_left([ids, short], pad), tokens=2) for pad in (0, _another(bench, 0)))
    T, step = len(ids), bench.first_step
    pad = T - len(short)
    yield (
        _rows_alike(a, b, step, range(pad, T), T, lambda v: len(v.shape) < 4),
        "rows of tokens, with other ids at padding",
    )


def _before(bench: Bench) -> Iterator[tuple[Held, str]]:
    if not getattr(bench.adapter, "BEFORE", False):
        raise _SkipError("this kind of candidate starts anew for each request")
    ids, base = bench.prompt(), bench.base()
    other = tuple(_another(bench, i) for i in [*ids, *ids[:3]])
    yield (
        equal(base, bench.run(tokens=STEPS, before=(other,)), _same(base), exact=True),
        "after another request, and alone",
    )


def _memory(bench: Bench) -> Iterator[tuple[Held, str]]:
    if not bench.candidate.partition(":")[0] == "c":
        raise _SkipError("only the built-in C engine's buffers can be placed")
    base = bench.base()
    for how in ({"poison": True}, {"spread": True}):
        bench.count += 1
        path = bench.folder / f"run-{bench.count}.h5"
        options = replace(bench.options, max_tokens=STEPS)
        bench.adapter.capture(bench.candidate.partition(":")[2], bench.prepared, path, options, **how)
        again = bench.stack.enter_context(open_trace(path))
        yield equal(base, again, _same(base), exact=True), f"{next(iter(how))} buffers"
