"""A Python function as a candidate: `py:FILE.py:function`, its values told by firstbad.tap.

    def function(given: firstbad.probes.py.Given) -> list[int] | None

gets the prepared inputs and the model's weights as NumPy arrays by name, taps what it computes, and returns the tokens
it chose, if it chooses any. It runs in a process of its own. Leaves out what the function is written in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, Prepared, RunOutput
from firstbad.session import meta_of
from firstbad.tapping import listening
from firstbad.trace import TraceWriter

from .apart import bare_apart, capture_apart, inside, words
from .user import user_file, user_function


@dataclass(frozen=True)
class Given:
    """What the function gets: the same as the reference."""

    inputs: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    config: Mapping[str, Any]
    prompt: tuple[int, ...]
    max_tokens: int | None


def capture(argument: str, prepared: Prepared, trace_path: Path, options: CaptureOptions) -> RunOutput:
    """Runs the function and records its taps; an exception is the candidate's death."""
    if ".py:" not in argument:
        raise UsageError("`py` needs a file and a function: --candidate py:FILE.py:function")
    user_file(argument)
    if not inside():
        return capture_apart("py", argument, prepared, trace_path, options)
    function = user_function(argument)
    given = _given(prepared, options)
    first = "encode" if "input_features" in prepared.inputs else prepared.first_step
    meta = {**meta_of(prepared), "candidate": f"py:{argument}"}
    death = ""
    chosen: Any = None
    with TraceWriter(trace_path, role="candidate", engine="py", meta=meta, hash_only=options.hash_only) as writer:
        with listening(writer, first) as listener:
            for name, array in prepared.inputs.items():
                listener.value(name, array, kind="input")
            try:
                chosen = function(given)
            except Exception as error:  # whatever a user's function may raise
                line = str(error).strip().partition("\n")[0]
                death = f"{type(error).__name__}: {line}"
        tokens = tuple(int(t) for t in chosen) if chosen is not None else ()
        text = prepared.text(tokens) if tokens else ""
        writer.outputs({"tokens": list(tokens), "text": text, "printed": words(tokens)} if chosen is not None else {})
        writer.close(complete=not death, death=death)
    return RunOutput(tokens, text, not death, death)


def bare(argument: str, prepared: Prepared, options: CaptureOptions, folder: Path) -> str:
    """The tokens that the function chooses when nobody listens, in words."""
    if not inside():
        return bare_apart("py", argument, prepared, options, folder)
    chosen: Any = user_function(argument)(_given(prepared, options))
    return words(tuple(int(t) for t in chosen) if chosen is not None else ())


def _given(prepared: Prepared, options: CaptureOptions) -> Given:
    return Given(prepared.inputs, prepared.weights, prepared.config, prepared.prompt, options.max_tokens)
