"""A trial: one input of one case, run by both engines and compared; plain data comes back, so that it may run anywhere.

Clean trials leave nothing on disk; one with a fault keeps its traces and its report. Leaves out what several trials say
together (gate.py) and the baseline, but for the tokens that it expects.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from firstbad import references
from firstbad.config import GateCase, Variation
from firstbad.errors import CompareError, FirstbadError
from firstbad.finding import Finding
from firstbad.measured import Site, sites_of
from firstbad.result import FaultResult
from firstbad.rooms import load
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.tie import near_tie, scores_of

if TYPE_CHECKING:
    from firstbad.comparison import Comparison

MADE = "made:"
OWN = "own"  # the one input that a model room brings itself

_DITHER = 2.0**-18
"""Relative change of an input that redraws every rounding after it and hardly moves a value."""


@dataclass(frozen=True)
class Trial:
    """What is to be run."""

    case: GateCase
    input: str  # a file relative to `root`, or "made:SEED"
    root: Path  # the folder of firstbad.toml
    folder: Path  # for traces
    variation: Variation = field(default_factory=Variation)
    dither: int = 0  # a seed; 0: the input as it is
    expected: tuple[int, ...] | None = None  # the tokens of the baseline
    unprobed: bool = True  # also run the engine without its probe
    budget: float = 0.0  # seconds of search for a cause
    torch_threads: int | None = None


@dataclass(frozen=True)
class Tried:
    """What came of it."""

    input: str
    hash: str = ""
    verdict: str = "incomplete"
    tokens: tuple[int, ...] = ()
    text: str = ""
    sites: tuple[Site, ...] = ()
    faults: tuple[FaultResult, ...] = ()
    damage: frozenset[tuple[str, str]] = frozenset()  # (group of steps, name) of what a fault upstream has changed
    findings: tuple[Finding, ...] = ()  # of this input alone
    model: str = ""
    weights: str = ""
    weights_compared: int = 0
    weights_differ: tuple[str, ...] = ()
    reads_checked: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    folder: str = ""
    cached: bool = False
    error: tuple[int, str] | None = None  # exit code and message, where nothing could be compared


def inputs_of(case: GateCase, root: Path, wanted: int | None = None) -> list[str]:
    """The names of a case's inputs: its recordings, then sounds made from seeds until there are enough."""
    from firstbad.session import room_of

    count = wanted or case.inputs
    with contextlib.chdir(root):
        room = room_of(case.spec.model)
    named = [os.path.relpath(path, root) for path in case.audio]
    if not hasattr(room, "another"):
        return named[:count] if named else [OWN]
    return [*named, *(f"{MADE}{seed}" for seed in range(count - len(named)))][:count]


def run(trial: Trial) -> Tried:
    """Runs one trial; an error that a user should see is part of what comes back."""
    try:
        with _surroundings(trial):
            return _run(trial)
    except FirstbadError as error:
        shutil.rmtree(trial.folder, ignore_errors=True)
        return Tried(trial.input, error=(error.exit_code, str(error)))


@contextlib.contextmanager
def _surroundings(trial: Trial) -> Iterator[None]:
    """The folder and the environment that a case asks for, and PyTorch's share of the cores."""
    import torch

    wanted = {**trial.case.environment, **trial.variation.environment}
    before = {name: os.environ.get(name) for name in wanted}
    threads = torch.get_num_threads()
    os.environ.update(wanted)
    if trial.torch_threads:
        torch.set_num_threads(trial.torch_threads)
    try:
        with contextlib.chdir(trial.root):
            yield
    finally:
        torch.set_num_threads(threads)
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


@lru_cache(maxsize=1)
def _loaded(spec: ModelSpec, _root: Path) -> tuple[ModuleType, Prepared, str]:
    """The model, kept for the next input of the same case."""
    from firstbad.session import prepare

    room, prepared = prepare(spec)
    return room, prepared, references.weights_digest(prepared.weights)


def _prepared(trial: Trial) -> tuple[ModuleType, Prepared, str, str]:
    """(room, what both engines are given, digest of the weights, hash of the recording)."""
    room, prepared, weights = _loaded(trial.case.spec, trial.root)
    digest = ""
    if trial.input.startswith(MADE):
        prepared = room.another(prepared, seed=int(trial.input.removeprefix(MADE)))
    elif trial.input != OWN:
        path = Path(trial.input)
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
        if hasattr(room, "another"):
            prepared = room.another(prepared, audio_file=path)
        else:
            prepared = room.prepare(replace(trial.case.spec, audio=path))
    if trial.dither:
        prepared = replace(prepared, inputs=_dithered(prepared.inputs, trial.dither))
    return room, prepared, weights, digest


def _dithered(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    import numpy as np

    random = np.random.Generator(np.random.PCG64(seed))
    return {
        name: (array * (1 + _DITHER * random.uniform(-1, 1, array.shape))).astype(array.dtype)
        if np.issubdtype(array.dtype, np.floating)
        else array
        for name, array in inputs.items()
    }


def _options(trial: Trial) -> CaptureOptions:
    own, other = trial.case.options, trial.variation
    return replace(own, threads=other.threads or own.threads, cflags=(*own.cflags, *other.cflags))


def _run(trial: Trial) -> Tried:
    from firstbad.session import capture_candidate, finish
    from firstbad.trace import open_trace

    started = time.monotonic()
    room, prepared, weights, digest = _prepared(trial)
    seconds = {"prepare": time.monotonic() - started}
    options = _options(trial)
    trial.folder.mkdir(parents=True, exist_ok=True)
    candidate_path = trial.folder / "candidate.h5"
    at = time.monotonic()
    answer = capture_candidate(trial.case.candidate, prepared, candidate_path, options)
    seconds["candidate"] = time.monotonic() - at
    with open_trace(candidate_path) as candidate:
        printed = str(candidate.outputs.get("printed", ""))
        told = tuple(candidate.outputs.get("notes", ()))
        at = time.monotonic()
        reference_path, cached = _reference(room, prepared, weights, answer, options)
        seconds["reference"] = time.monotonic() - at
        at = time.monotonic()
        comparison, sites, tie = _compared(trial, room, prepared, reference_path, candidate, answer)
    seconds["compare"] = time.monotonic() - at
    at = time.monotonic()
    findings = [*_answered(trial, comparison, answer, tie), *(Finding("note", n, inputs=(trial.input,)) for n in told)]
    if trial.unprobed and answer.complete:
        findings += _unprobed(trial, prepared, options, printed)
        seconds["unprobed"] = time.monotonic() - at
    result = comparison.result
    kept = bool(result.faults) or result.verdict != "match"
    if kept:
        shutil.copy(reference_path, trial.folder / "reference.h5")
        files = {side: str(trial.folder / f"{side}.h5") for side in ("reference", "candidate")}
        finish(replace(comparison, result=replace(result, files=files)), trial.folder)
    else:
        shutil.rmtree(trial.folder, ignore_errors=True)
    coverage = result.coverage
    return Tried(
        input=trial.input,
        hash=digest,
        verdict=result.verdict,
        tokens=answer.tokens,
        text=answer.text,
        sites=sites,
        faults=result.faults,
        damage=frozenset(
            (step.partition(".")[0], name)
            for step, name, verdict in zip(*(result.values[key] for key in ("step", "name", "verdict")), strict=True)
            if verdict == "victim"
        ),
        findings=tuple(findings),
        model=prepared.model,
        weights=weights,
        weights_compared=coverage.weights_compared,
        weights_differ=coverage.weights_differ,
        reads_checked=coverage.edges_checked,
        seconds=seconds,
        folder=str(trial.folder) if kept else "",
        cached=cached,
    )


def _reference(
    room: ModuleType, prepared: Prepared, weights: str, answer: RunOutput, options: CaptureOptions
) -> tuple[Path, bool]:
    """The reference's trace for these tokens, from the cache where it is there and whole."""
    from firstbad.session import capture_reference
    from firstbad.trace import open_trace

    wishes = replace(options, unfinished=not answer.complete)

    def make(path: Path) -> None:
        capture_reference(room, prepared, path, wishes, answer.tokens)

    key = references.key(room, prepared, weights, answer.tokens, wishes)
    path, cached = references.get(key, make)
    try:
        with open_trace(path) as trace:
            whole = trace.complete
    except CompareError:
        whole = False
    if not whole:
        path.unlink(missing_ok=True)
        path, cached = references.get(key, make)
    return path, cached


def _compared(
    trial: Trial, room: ModuleType, prepared: Prepared, path: Path, candidate: Any, answer: RunOutput
) -> tuple[Comparison, tuple[Site, ...], tuple[bool, str] | None]:
    from firstbad.comparison import compare
    from firstbad.trace import open_trace

    with open_trace(path) as reference:
        executor = room.executor(prepared)
        # the whole of every value: what a baseline is compared with is no sample
        comparison = compare(reference, candidate, executor, budget=trial.budget, notes=prepared.notes, screening=False)
        at = first_difference(trial.expected, answer.tokens)
        tie = None
        if trial.expected is not None and 0 <= at < min(len(trial.expected), len(answer.tokens)):
            step = f"decode.{at - 1}" if at else "prefill"
            pair = (trial.expected[at], answer.tokens[at])
            scores = scores_of(comparison.local, reference, candidate).get(step)
            found = None if scores is None else near_tie(scores, comparison.local, reference, pair)
            tie = None if found is None else (found.tied, found.words)
        return comparison, sites_of(comparison.local, candidate.graph), tie


def first_difference(expected: Sequence[int] | None, tokens: Sequence[int]) -> int:
    """The first place where two answers differ; -1: nowhere."""
    if expected is None or tuple(expected) == tuple(tokens):
        return -1
    shared = min(len(expected), len(tokens))
    return next((i for i in range(shared) if expected[i] != tokens[i]), shared)


def _answered(
    trial: Trial, comparison: Comparison, answer: RunOutput, tie: tuple[bool, str] | None
) -> Iterator[Finding]:
    """What there is to say of the answer of this input."""
    result, where = comparison.result, (trial.input,)
    if result.verdict == "incomplete":
        reason = result.death or "nothing could be compared"
        yield Finding("incomplete", f"no fault in what was compared; the candidate {reason}", inputs=where)
        return
    if result.coverage.inputs_differ:
        names = ", ".join("/".join(key) for key in result.coverage.inputs_differ)
        yield Finding("input", f"the candidate was not given the reference's input: {names} differ", inputs=where)
    at = first_difference(trial.expected, answer.tokens)
    if at >= 0 and trial.expected is not None:
        then = trial.expected[at] if at < len(trial.expected) else "none"
        now = answer.tokens[at] if at < len(answer.tokens) else "none"
        text = f"token {at} is {now}, {then} in the baseline"
        if tie is not None and tie[0]:
            yield Finding("near-tie", f"{text}: a near-tie, {tie[1]}", inputs=where)
        else:
            yield Finding("tokens", text + (f": no near-tie, {tie[1]}" if tie else ""), inputs=where)
    elif result.verdict == "diverged" and not result.faults:
        first = result.outputs["first_differing_token"]
        text = f"token {first} is not the reference's although every value is right given its own inputs"
        yield Finding("tokens", text, inputs=where)


def _unprobed(trial: Trial, prepared: Prepared, options: CaptureOptions, printed: str) -> Iterator[Finding]:
    """The engine once more without its probe: what it prints, or else its tokens, must be the same. ONNX Runtime runs
    both ways in every step and says itself what differs; a dump has nothing to run."""
    kind, _, argument = trial.case.candidate.partition(":")
    bare = getattr(load("probes", kind), "bare", None)
    if bare is None:
        return
    plain = bare(argument, prepared, options, trial.folder)
    if plain == printed:
        return
    if bare(argument, prepared, options, trial.folder) != plain:
        yield Finding("note", "what the engine prints differs from run to run", inputs=(trial.input,))
        return
    at = next((n for n, (a, b) in enumerate(zip(plain.split(), printed.split(), strict=False)) if a != b), -1)
    words = f", first at word {at}" if at >= 0 else ""
    yield Finding("probe", f"the engine prints something else when it is probed{words}", inputs=(trial.input,))
