"""A candidate that runs a user's Python, in a process of its own: what it patches does not reach the reference.

The child prepares the same model anew from what the user asked for, is handed the same inputs, and writes the trace.
Leaves out engines that are programs (process.py).

    python -m firstbad.probes.apart FOLDER      the child; not for people
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from firstbad.dither import dithered
from firstbad.errors import CompareError, FirstbadError, UsageError
from firstbad.rooms import load
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.session import prepare

_INSIDE = "FIRSTBAD_APART"


def inside() -> bool:
    """Whether this is the child already."""
    return _INSIDE in os.environ


def words(tokens: Sequence[int]) -> str:
    """An answer as it is compared with that of a run that nobody looks at."""
    return " ".join(str(token) for token in tokens)


def capture_apart(kind: str, argument: str, prepared: Prepared, trace: Path, options: CaptureOptions) -> RunOutput:
    """`probes/KIND.py`'s capture, run by a child."""
    trace.parent.mkdir(parents=True, exist_ok=True)
    said, death = _ask(kind, argument, prepared, options, trace.parent, str(trace.resolve()))
    if death:
        return _dead(trace, death)
    return RunOutput(tuple(said["tokens"]), said["text"], said["complete"], said["death"], said["seconds"])


def bare_apart(kind: str, argument: str, prepared: Prepared, options: CaptureOptions, folder: Path) -> str:
    """`probes/KIND.py`'s bare run, by a child."""
    said, death = _ask(kind, argument, prepared, options, folder, "")
    if death:
        raise CompareError(f"the candidate without its probe: {death}")
    return str(said["printed"])


def _ask(
    kind: str, argument: str, prepared: Prepared, options: CaptureOptions, place: Path, trace: str
) -> tuple[dict[str, Any], str]:
    """(what the child says, "") or ({}, how it died); with no trace it runs unseen."""
    with tempfile.TemporaryDirectory(prefix=".apart-", dir=place) as scratch:
        folder = Path(scratch)
        order = {
            "kind": kind,
            "argument": argument,
            "trace": trace,
            "spec": {**asdict(prepared.spec), **dict.fromkeys(("audio", "image", "inputs"))},
            "options": asdict(options),
        }
        (folder / "order.json").write_text(json.dumps(order, default=str), "utf-8")
        np.savez(folder / "inputs.npz", **cast("dict[str, Any]", dict(prepared.inputs)))
        try:
            done = subprocess.run(
                [sys.executable, "-m", "firstbad.probes.apart", str(folder)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=options.timeout,
                env={**os.environ, _INSIDE: "1"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}, f"silent for {options.timeout:g} s: it was killed"
        answer = folder / "answer.json"
        if not answer.is_file():
            return {}, _death(done)
        said: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    if said.get("error"):
        raise (UsageError if said["usage"] else CompareError)(said["error"])
    return said, ""


def _death(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return f"exit status {done.returncode}" + (f": {lines[-1]}" if lines else "")


def _dead(trace: Path, death: str) -> RunOutput:
    """Says in the trace, where the child left one, how it ended."""
    import h5py

    if not trace.is_file():
        raise CompareError(f"the candidate left no trace: {death}")
    with h5py.File(trace, "r+") as file:
        file.attrs["death"] = death
    return RunOutput((), "", complete=False, death=death)


def main(folder: Path) -> None:
    """The child."""
    order = json.loads((folder / "order.json").read_text("utf-8"))
    answer: dict[str, Any]
    try:
        _, prepared = prepare(ModelSpec(**_plain(order["spec"])))
        with np.load(folder / "inputs.npz") as inputs:
            prepared = replace(prepared, inputs={name: inputs[name] for name in inputs.files})
        given = _plain(order["options"])
        given["kernels"] = tuple(Path(k) for k in given["kernels"])
        adapter = load("probes", order["kind"])
        options = CaptureOptions(**given)
        prepared = dithered(prepared, options.dither) if options.dither else prepared
        if order["trace"]:
            output: RunOutput = adapter.capture(order["argument"], prepared, Path(order["trace"]), options)
            answer = {
                "tokens": [int(t) for t in output.tokens],
                "text": output.text,
                "complete": output.complete,
                "death": output.death,
                "seconds": dict(output.seconds),
            }
        else:
            answer = {"printed": adapter.bare(order["argument"], prepared, options, folder)}
    except FirstbadError as error:
        answer = {"error": str(error), "usage": isinstance(error, UsageError)}
    (folder / "answer.json").write_text(json.dumps(answer), "utf-8")


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """JSON's lists as the tuples that the records hold."""

    def tupled(item: Any) -> Any:
        return tuple(tupled(i) for i in item) if isinstance(item, list) else item

    return {key: tupled(item) for key, item in record.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
