"""Any program that uses firstbad.h as a candidate: `exec:COMMAND`, arguments and all, the whole in quotes.

The command runs where firstbad was started, with its records going into the trace. What the reference is given lies
ready for it in the folder $FIRSTBAD_INPUTS: each input as NAME.npy, the rest in run.json (prompt, eos, suppress,
begin_suppress, max_tokens, threads); placeholders in the command name files that are easier to read in C, see
placeholders.py. A program may well bring its own. Leaves out building it.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, Launch, Prepared, RunOutput
from firstbad.sampling import SampledWriter, sampling_of
from firstbad.session import meta_of

from .placeholders import filled
from .process import record, run_bare, wanted_of
from .stream import Replace


def capture(
    argument: str,
    prepared: Prepared,
    trace_path: Path,
    options: CaptureOptions,
    *,
    replace: Replace | None = None,
    replaced: Sequence[str] = ("*",),
) -> RunOutput:
    """Runs the command and records it; how it ended is told in the output. `replace` may put another value in the place
    of each that `replaced` names."""
    command = _words(argument)
    trace_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".exec-", dir=trace_path.parent) as scratch:
        folder = Path(scratch)
        _lay_out(prepared, options, folder)
        meta = {**meta_of(prepared), "command": argument}
        filled_in = filled(command, prepared, options, folder)
        with SampledWriter(
            trace_path,
            role="candidate",
            engine="exec",
            meta=meta,
            hash_only=options.hash_only,
            sampling=sampling_of(options, prepared),
        ) as writer:
            ended = record(
                filled_in,
                writer,
                folder,
                timeout=options.timeout,
                want=wanted_of(options),
                stop=options.stop,
                replace=replace,
                replaced=replaced,
                environment={"FIRSTBAD_INPUTS": str(folder.resolve())},
                source=Path.cwd(),
            )
            recording = ended.recording
            tokens = tuple(recording.tokens)
            text = recording.texts.get("text") or prepared.text(tokens)
            writer.outputs({**recording.outputs(), "text": text, "printed": ended.stdout})
            writer.close(complete=not ended.death, death=ended.death)
    return RunOutput(tokens, text, not ended.death, ended.death, {"run": ended.seconds})


def relaunch(
    argument: str, prepared: Prepared, options: CaptureOptions, folder: Path, _weights: Collection[str]
) -> Launch:
    """The same command from where it was started, with its inputs laid out in `folder`."""
    inputs = folder / "inputs"
    inputs.mkdir(exist_ok=True)
    _lay_out(prepared, options, inputs)
    where = shlex.quote(str(Path.cwd()))
    words = shlex.join(filled(_words(argument), prepared, options, inputs))
    command = ["sh", "-c", shlex.quote(f"cd {where} && exec {words}")]
    return Launch(command, ['FIRSTBAD_INPUTS="$here/inputs"'])


def bare(argument: str, prepared: Prepared, options: CaptureOptions, folder: Path) -> str:
    """What the command prints with no probe."""
    with tempfile.TemporaryDirectory(prefix=".exec-", dir=folder) as scratch:
        _lay_out(prepared, options, Path(scratch))
        inputs = {"FIRSTBAD_INPUTS": str(Path(scratch).resolve())}
        words = filled(_words(argument), prepared, options, Path(scratch))
        return run_bare(words, timeout=options.timeout, environment=inputs)


def _words(argument: str) -> list[str]:
    try:
        command = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"cannot split `{argument}` into words: {str(error).lower()}") from None
    if not command:
        raise UsageError('`exec` needs the command to run: --candidate "exec:./engine clip.wav"')
    return command


def _lay_out(prepared: Prepared, options: CaptureOptions, folder: Path) -> None:
    for name, array in prepared.inputs.items():
        np.save(folder / f"{name}.npy", array)
    asked = {
        "prompt": list(prepared.prompt),
        "eos": prepared.eos,
        "suppress": list(prepared.suppress),
        "begin_suppress": list(prepared.begin_suppress),
        "max_tokens": options.max_tokens,
        "threads": options.threads or len(os.sched_getaffinity(0)),
    }
    (folder / "run.json").write_text(json.dumps(asked), "utf-8")
