"""firstbad from Python: the verbs as functions. Paths and records go in, records come out, nothing is printed.

    import firstbad

    result = firstbad.diff("whisper", audio="clip.wav", candidate="c:plan.json")
    result.verdict                       # "match", "diverged", "incomplete"
    result.first_bad.cause.statement     # "v_proj of encoder layer 3 reads ..."
    trace = firstbad.load(result.files["candidate"])
    trace.array(trace.graph.by_key["encode", "model.encoder.conv1"])     # a NumPy array, mapped from the file

Wishes are those of the command line with underscores: `random_weights`, `size`, `audio_context` for the model;
`max_tokens`, `steps`, `threads`, `timeout`, `cflags` for the capture. Errors are those of firstbad/errors.py. Leaves
out single kernels without a model: `firstbad.check`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, ModelSpec

if TYPE_CHECKING:
    import os

    from firstbad.result import FaultResult, Result
    from firstbad.trace import Trace

    StrPath = str | os.PathLike[str]

_SPEC = tuple(f.name for f in fields(ModelSpec) if f.name not in ("model", "audio"))
_OPTIONS = tuple(f.name for f in fields(CaptureOptions) if f.name != "unfinished")


def diff(
    model: str = "whisper",
    *,
    audio: StrPath | None = None,
    candidate: str = "c",
    output: StrPath | None = None,
    budget: float = 10.0,
    **wishes: Any,
) -> Result:
    """Runs the candidate and the reference on one input and compares them.

    `output` is the folder for both traces, result.json and report.html (without one: a new temporary folder, named in
    `result.files`); `budget` is in seconds of search for the cause of a fault.
    """
    from firstbad import session

    spec, options = _wishes(model, audio, wishes)
    folder = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="firstbad-"))
    return session.diff(spec, candidate, folder, options, budget=budget).result


def capture(
    path: StrPath,
    model: str = "whisper",
    *,
    audio: StrPath | None = None,
    candidate: str | None = "c",
    tokens: Sequence[int] | None = None,
    **wishes: Any,
) -> Trace:
    """Runs one engine and keeps every value in the trace `path`: a candidate, or with None the reference.

    `tokens` drive the reference's steps, so that it has the history of a candidate that chose them.
    """
    from firstbad import session
    from firstbad.trace import open_trace

    spec, options = _wishes(model, audio, wishes)
    room, prepared = session.prepare(spec)
    session.output_folder(Path(path).parent)
    if candidate is None:
        driven = None if tokens is None else tuple(tokens)
        session.capture_reference(room, prepared, Path(path), options, driven)
    else:
        session.capture_candidate(candidate, prepared, Path(path), options)
    return open_trace(Path(path))


def compare(
    reference: StrPath | Trace, candidate: StrPath | Trace, *, output: StrPath | None = None, budget: float = 10.0
) -> Result:
    """Compares two traces that were captured before; no engine runs. `output`: a folder for the result and its page."""
    from firstbad import session

    folder = Path(output) if output is not None else None
    return session.compare_files(_path(reference), _path(candidate), folder, budget=budget).result


def explain(
    reference: StrPath | Trace, candidate: StrPath | Trace, value: str = "", *, budget: float = 60.0
) -> FaultResult | None:
    """The fault at `value` (its name, or the end of it; without one the first fault), with a long search for its cause.

    None where that value has no fault.
    """
    result = compare(reference, candidate, budget=budget)
    return next((f for f in result.faults if f.value == value or f.value.endswith(f".{value}") or not value), None)


def load(path: StrPath) -> Trace | Result:
    """What an earlier run left: a trace (`.h5`), or the result in an output folder or its result.json."""
    from firstbad.records import result_from
    from firstbad.result import load as read
    from firstbad.trace import open_trace

    path = Path(path)
    if path.is_dir():
        return result_from(read(path / "result.json"))
    return result_from(read(path)) if path.suffix == ".json" else open_trace(path)


def _path(trace: StrPath | Trace) -> Path:
    from firstbad.trace import Trace

    return trace.path if isinstance(trace, Trace) else Path(trace)


def _wishes(model: str, audio: StrPath | None, wishes: Mapping[str, Any]) -> tuple[ModelSpec, CaptureOptions]:
    for name in wishes:
        if name not in (*_SPEC, *_OPTIONS):
            hint = did_you_mean(name, (*_SPEC, *_OPTIONS)) or f"known: {', '.join((*_SPEC, *_OPTIONS))}"
            raise UsageError(f"unknown wish `{name}`: {hint}")
    spec = ModelSpec(model, None if audio is None else Path(audio), **{k: v for k, v in wishes.items() if k in _SPEC})
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in wishes.items() if k in _OPTIONS}
    return spec, CaptureOptions(**options)
