"""An engine as a process of its own, with the probe's stream on a pipe: start it, record it, say how it ended.

The same for every program that uses firstbad.h. Leaves out what is run and what the records mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstbad.errors import CompareError
from firstbad.run import CaptureOptions
from firstbad.trace import TraceWriter
from firstbad.want import patterns_of

from . import wire
from .stream import Recording, Replace

_PIPE_BYTES = 1 << 20  # the most that Linux lets everybody have
_GRACE = 5.0  # seconds for an engine to leave after its stream is over, where no time limit was given


@dataclass(frozen=True)
class Ended:
    """How a recorded process ended."""

    recording: Recording
    death: str  # "": it ended well
    stdout: str
    seconds: float


def record(
    command: Sequence[str | Path],
    writer: TraceWriter,
    folder: Path,
    *,
    timeout: float | None = None,
    want: Sequence[str] | None = None,
    stop: Sequence[str] = (),
    replace: Replace | None = None,
    replaced: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    source: Path | None = None,
) -> Ended:
    """Runs `command` to its end with its records going into `writer`; a death is told, not raised.

    `want`, `stop` and `replaced` are patterns (see firstbad.h); `timeout` is of silence; `folder` is for scratch.
    """
    started = time.monotonic()
    ours, theirs = os.pipe()
    answers, reply = os.pipe() if replace is not None else (-1, -1)
    with contextlib.suppress(OSError, AttributeError):  # a smaller pipe is only slower
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    lists = {
        "FIRSTBAD_WANT": want,
        "FIRSTBAD_STOP": stop or None,
        "FIRSTBAD_REPLACE": replaced if replace is not None else None,
    }
    variables = {**os.environ, **(environment or {}), "FIRSTBAD_SINK": f"fd:{theirs}"}
    for name, patterns in lists.items():
        variables.pop(name, None)
        if patterns is not None:
            variables[name] = "\n".join(patterns)
    if reply >= 0:
        variables["FIRSTBAD_REPLY"] = f"fd:{answers}"
    recording = Recording(writer, source=source, reply=reply, replace=replace)
    out, err = folder / ".stdout", folder / ".stderr"
    process = None
    death = ""
    try:
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=variables,
                pass_fds=[fd for fd in (theirs, answers) if fd >= 0],
            )
        os.close(theirs)
        theirs = -1
        running = process
        try:
            recording.take(wire.records(ours, timeout, lambda: running.poll() is None))
            process.wait(_GRACE if timeout is None else timeout)
        except (wire.SilentError, subprocess.TimeoutExpired):
            waited = _GRACE if timeout is None else timeout
            death = f"silent for {waited:g} s {recording.where()}: it was killed"
        recording.finish()
        death = death or _death(process, recording, err)
        return Ended(recording, death, out.read_text("utf-8", "replace"), time.monotonic() - started)
    except OSError as error:
        if process is not None:
            raise
        raise CompareError(f"cannot run `{command[0]}`: {(error.strerror or str(error)).lower()}") from None
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        for fd in (ours, theirs, answers, reply):
            if fd >= 0:
                os.close(fd)
        out.unlink(missing_ok=True)
        err.unlink(missing_ok=True)


def _death(process: subprocess.Popen[bytes], recording: Recording, stderr: Path) -> str:
    status = process.returncode
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        begun = recording.open or recording.last  # one that dies before it computes has often said why
        return f"killed by {name} {recording.where()}{'' if begun else _said(stderr)}"
    if status:
        return f"exit status {status} {recording.where()}{_said(stderr)}"
    if not recording.closed:
        return f"left without closing its stream {recording.where()}{_said(stderr)}"
    return ""


def _said(stderr: Path) -> str:
    """The line of an engine's complaint that says most: the first of a sanitizer's or a last one."""
    lines = [line.strip() for line in stderr.read_text("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if "ERROR: " in line or "runtime error: " in line]
    chosen = telling[0] if telling else lines[-1] if lines else ""
    return f": {chosen}" if chosen else ""


def run_bare(
    command: Sequence[str | Path], *, timeout: float | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """What `command` prints when it runs without a probe; CompareError where it does not end well."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("FIRSTBAD_")} | dict(environment or {})
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=variables,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompareError(f"`{command[0]}` without its probe did not end in {timeout:g} s: it was killed") from None
    except OSError as error:
        raise CompareError(f"cannot run `{command[0]}`: {(error.strerror or str(error)).lower()}") from None
    if done.returncode:
        raise CompareError(f"`{command[0]}` without its probe ended with exit status {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def wanted_of(options: CaptureOptions) -> list[str] | None:
    """Patterns of the values whose content is stored; None: all."""
    return patterns_of(options)
