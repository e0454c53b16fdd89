"""Placeholders in a candidate's command: what the reference is given, as files that a C program reads in a few lines.

    {features}     the input features as bare float32 (their shape is in {features}.txt)
    {tokens}       the prompt's ids as text, a row a line
    {weights}      every weight, float32 one after the other; {weights}.txt has a line for each: name offset rank sizes
    {audio}        the recording that the user gave
    {inputs}       the folder with every input as NAME.npy, and run.json
    {max_tokens}   new tokens at most
    {threads}      threads

Leaves out other formats: a program that reads .npy or .safetensors has its own files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, Prepared

MANY = 1 << 20
"""max_tokens where the user sets no limit."""


def filled(words: list[str], prepared: Prepared, options: CaptureOptions, folder: Path) -> list[str]:
    """The command with each placeholder replaced; only what is asked for is written into `folder`."""
    makers: Mapping[str, Callable[[], str]] = {
        "features": lambda: _features(prepared, folder),
        "tokens": lambda: _tokens(prepared, folder),
        "weights": lambda: _weights(prepared, folder),
        "audio": lambda: _audio(prepared),
        "inputs": lambda: str(folder.resolve()),
        "max_tokens": lambda: str(options.max_tokens or MANY),
        "threads": lambda: str(options.threads or len(os.sched_getaffinity(0))),
    }

    def replace(match: re.Match[str]) -> str:
        if match[1] not in makers:
            hint = did_you_mean(match[1], makers) or f"known: {', '.join(makers)}"
            raise UsageError(f"no placeholder `{match[0]}` for a command: {hint}")
        return makers[match[1]]()

    return [re.sub(r"\{([A-Za-z_]+)\}", replace, word) for word in words]


def _features(prepared: Prepared, folder: Path) -> str:
    array = prepared.inputs.get("input_features")
    if array is None:
        raise UsageError(f"the model has no {{features}}: its inputs are {', '.join(prepared.inputs) or 'none'}")
    path = folder.resolve() / "features.f32"
    np.ascontiguousarray(array, np.float32).tofile(path)
    path.with_name(path.name + ".txt").write_text(" ".join(str(n) for n in array.shape) + "\n", "utf-8")
    return str(path)


def _tokens(prepared: Prepared, folder: Path) -> str:
    path = folder.resolve() / "tokens.txt"
    rows = prepared.inputs.get("input_ids", np.asarray([prepared.prompt], np.int64))
    path.write_text("".join(" ".join(str(i) for i in row) + "\n" for row in rows), "utf-8")
    return str(path)


def _weights(prepared: Prepared, folder: Path) -> str:
    path = folder.resolve() / "weights.f32"
    lines, offset = [], 0
    with path.open("wb") as file:
        for name, array in prepared.weights.items():
            data = np.ascontiguousarray(array, np.float32)
            file.write(data.tobytes())
            lines.append(f"{name} {offset} {array.ndim} {' '.join(str(n) for n in array.shape)}\n")
            offset += data.nbytes
    path.with_name(path.name + ".txt").write_text("".join(lines), "utf-8")
    return str(path)


def _audio(prepared: Prepared) -> str:
    if prepared.spec.audio is None:
        raise UsageError("the command has {audio}, but no recording was given: --audio FILE")
    return str(Path(prepared.spec.audio).resolve())
