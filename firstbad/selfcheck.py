"""Checks of a candidate against itself, with no reference: what must come out equal whatever the model is.

Each check runs the candidate on inputs that are related, and names the first value that breaks the equality. Bits must
be equal where the shapes are (repeats, another later token, another request before, other ids at padding); where sums
are of other shapes (steps against prefill, batches, lengths) noise of another order is allowed, see same_rows.py.
Leaves out values that only one of two runs has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.dither import DROPPED, dithered
from firstbad.errors import CompareError, UsageError
from firstbad.rooms import load
from firstbad.run import CaptureOptions, Prepared
from firstbad.same_rows import (
    Differs,
    Held,
    Noise,
    Rows,
    alike,
    chosen,
    equal,
    limit_of,
    noise_of,
    row_errors,
    token_axis,
)
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
    margin: float = 0.0  # of the value that came nearest to its limit, which is 1
    notes: tuple[str, ...] = ()


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
    kept: dict[Any, Any] = field(default_factory=dict)

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
            sound = "input_features" in given.inputs  # its tokens are the prompt alone
            given = replace(given, inputs=given.inputs if sound else inputs, prompt=prompt, eos=-1)
        how = replace(self.options, max_tokens=tokens, **wishes)
        if how.dither:
            given = dithered(given, how.dither)
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

    def heard(self) -> list[int]:
        """The prompt of a language model, or what Whisper's decoder begins with."""
        return list(self.prepared.prompt) if self.prepared.family == "whisper" else self.prompt()

    def base(self) -> Trace:
        """The user's input, with a few steps."""
        if "base" not in self.kept:
            self.kept["base"] = self.run(tokens=STEPS)
        base: Trace = self.kept["base"]
        return base

    def prefill(self, ids: list[int]) -> Trace:
        key = tuple(ids)
        if key not in self.kept:
            self.kept[key] = self.run(_prompt(ids))
        trace: Trace = self.kept[key]
        return trace

    @property
    def first_step(self) -> str:
        steps = self.base().graph.steps
        return "prefill" if "prefill" in steps else steps[0]

    def continued(self) -> tuple[list[int], list[str]]:
        """The prompt with the tokens that were chosen, and the steps that read these one by one."""
        base = self.base()
        tokens = [int(t) for t in base.outputs.get("tokens", [])]
        steps = [s for s in base.graph.steps if s.startswith("decode.")]
        if not steps or len(tokens) < len(steps):
            raise _SkipError("the candidate tells no tokens, or takes no steps")
        return [*self.heard(), *tokens[: len(steps)]], steps

    def noise(self, ids: list[int]) -> Noise | None:
        """What rounding makes of each value, measured on this very prompt (other tokens lose other digits); None where
        it cannot be: an engine that reads weights of its own."""
        key = ("noise", tuple(ids))
        if key not in self.kept:
            plain = self.prefill(ids)
            floats = [v.dtype for v in plain.graph.values if v.op >= 0 and v.dtype in DROPPED]
            moved = self.run(_prompt(ids), dither=max(set(floats), key=floats.count))
            found = noise_of(plain, moved, self.first_step, len(ids))
            self.kept[key] = found if any(found.values()) else None
        noise: Noise | None = self.kept[key]
        return noise

    def ladder(self) -> tuple[list[int], list[int]]:
        """Lengths around tiles and windows, and a prompt that is longer than all of them."""
        ids, config = self.prompt(), self.prepared.config
        window = config.get("sliding_window")
        around = [window - 1, window, window + 1] if isinstance(window, int) and 2 < window < 64 else []
        lengths = sorted({*TILES, *around})
        most = int(config.get("max_position_embeddings", 0) or 1 << 30)
        longest = min(lengths[-1] + 1, most)
        return [n for n in lengths if n < longest], (ids * (longest // len(ids) + 1))[:longest]


def selfcheck(
    candidate: str,
    prepared: Prepared,
    folder: Path,
    options: CaptureOptions,
    *,
    repeats: int = 3,
    only: Collection[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Every check in order (`only`: of these names); one that cannot be made says why."""
    made = []
    with ExitStack() as stack:
        bench = Bench(candidate, prepared, folder, options, stack, tell)
        for name, basis, check in _checks(repeats):
            if only and name not in only:
                continue
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
            margin = max((held.margin for held, _ in found), default=0.0)
            notes = tuple(dict.fromkeys(held.note for held, _ in found if held.note))
            made.append(Check(name, basis, compared, first, none, bad[1], margin, notes))
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


def _prompt(ids: list[int]) -> dict[str, np.ndarray]:
    return {"input_ids": np.array([ids], np.int64)}


def _same(trace: Trace) -> dict[str, tuple[str, Rows | None]]:
    return {step: (step, None) for step in trace.graph.steps}


def _repeated(bench: Bench, repeats: int) -> Iterator[tuple[Held, str]]:
    base = bench.base()
    for n in range(1, max(2, repeats)):
        yield equal(base, bench.run(tokens=STEPS), _same(base)), f"run {n + 1} against the first"


def _causal(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids = bench.continued()[0] if bench.prepared.family == "whisper" else bench.prompt()
    for at in sorted({len(ids) - 1, len(ids) // 2} - {0}):
        other = [*ids[:at], *(_another(bench, i) for i in ids[at:])]
        held = _rows_alike(bench, ids, bench.prefill(ids), bench.prefill(other), range(at), len(ids))
        yield held, f"the tokens from {at} on changed, rows before them"


def _rows_alike(
    bench: Bench,
    ids: list[int],
    a: Trace,
    b: Trace,
    rows: range,
    total: int,
    pick: Callable[[Value], bool] = lambda _: True,
) -> Held:
    """Rows of two runs of the same shape, bit by bit; from where other rows went to other experts, sums have other
    shapes and noise is allowed."""
    step, count, apart, margin = bench.first_step, 0, False, 0.0
    for value in a.graph.values:
        twin = b.graph.by_key.get((step, value.name))
        if value.step != step or value.op < 0 or twin is None or not (a.stored(value) and b.stored(twin)):
            continue
        if chosen(value) and value.shape == twin.shape:
            apart = apart or not np.array_equal(a.array(value), b.array(twin))
        axis = token_axis(value.shape, total)
        if not pick(value) or axis is None or value.shape != twin.shape or "float" not in value.dtype:
            continue
        cut = (slice(None),) * axis + (slice(rows.start, rows.stop),)
        x, y = np.asarray(a.array(value)[cut]), np.asarray(b.array(twin)[cut])
        if len(value.shape) == 4 and value.shape[-1] >= total:  # scores: no key behind the row
            x, y = x[..., : rows.stop], y[..., : rows.stop]
        limit = limit_of(value, bench.noise(ids)) if apart else 0.0
        if limit is None:
            continue
        count += 1
        if np.array_equal(x, y, equal_nan=True):
            continue
        last = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
        flat = [v.reshape(len(v), -1) for v in last]
        errors = row_errors(flat[0], flat[1])
        odd = (
            np.flatnonzero(~(errors <= limit))
            if limit
            else np.flatnonzero((last[0] != last[1]).reshape(len(errors), -1).any(1))
        )
        if odd.size:
            op, at = a.graph.ops[value.op], int(odd[0])
            where = f"row {rows.start + at} of {total}"
            return Held(count, Differs(step, value.name, float(errors[at]), limit, where, op.file, op.line))
        margin = max(margin, float(errors.max()) / limit)
    return Held(count, None, margin)


def _another(bench: Bench, token: int) -> int:
    V = int(bench.prepared.config.get("vocab_size", 0)) or token + 2
    return (token + V // 2) % V


def _steps(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids, base = bench.heard(), bench.base()
    whole, steps = bench.continued()
    long = bench.prefill(whole)
    for i, step in enumerate(steps):
        n = len(ids) + i
        yield (
            alike(base, long, {step: (bench.first_step, Rows(n, n + 1, len(whole)))}, bench.noise(whole)),
            f"token {n}",
        )


def _lengths(bench: Bench) -> Iterator[tuple[Held, str]]:
    lengths, whole = bench.ladder()
    long, step = bench.prefill(whole), bench.first_step
    for n in lengths:
        rows = Rows(0, n, len(whole))
        yield (
            alike(bench.prefill(whole[:n]), long, {step: (step, rows)}, bench.noise(whole)),
            f"{n} tokens of {len(whole)}",
        )


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
        _rows_alike(bench, whole, a, b, range(window, T), T, lambda v: v.id in inner and v.shape[-1] != T),
        "token 0 changed, rows behind its window",
    )
    last = max(inner, default=-1)
    value = a.graph.values[last] if last >= 0 else None
    axis = None if value is None else token_axis(value.shape, T)
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
        yield alike(alone, both, {step: (step, rows)}, bench.noise(ids)), f"prompt {b} of two"


def _left(prompts: list[list[int]], pad: int = 0) -> dict[str, np.ndarray]:
    T = max(map(len, prompts))
    ids = np.array([[pad] * (T - len(p)) + p for p in prompts], np.int64)
    mask = np.array([[0] * (T - len(p)) + [1] * len(p) for p in prompts], np.int64)
    return {"input_ids": ids, "attention_mask": mask}


def _padding(bench: Bench) -> Iterator[tuple[Held, str]]:
    ids = bench.prompt()
    short = ids[: max(1, len(ids) - 3)]
    a, b = (bench.run(_left([ids, short], pad), tokens=2) for pad in (0, _another(bench, 0)))
    T = len(ids)
    pad = T - len(short)
    yield (
        _rows_alike(bench, ids, a, b, range(pad, T), T, lambda v: len(v.shape) < 4),
        "rows of tokens, with other ids at padding",
    )


def _before(bench: Bench) -> Iterator[tuple[Held, str]]:
    if not getattr(bench.adapter, "BEFORE", False):
        raise _SkipError("this kind of candidate starts anew for each request")
    ids, base = bench.prompt(), bench.base()
    other = tuple(_another(bench, i) for i in [*ids, *ids[:3]])
    yield (
        equal(base, bench.run(tokens=STEPS, before=(other,)), _same(base)),
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
        yield equal(base, again, _same(base)), f"{next(iter(how))} buffers"
