"""A user's own program under the header, as a candidate: ten lines of C, its inputs ready for it."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from firstbad.errors import CompareError, UsageError
from firstbad.probes import exec as probe
from firstbad.run import CaptureOptions, Prepared
from firstbad.toolchain import build
from firstbad.trace import open_trace

from .test_header import INCLUDE

ENGINE = r"""
#define FIRSTBAD_IMPLEMENTATION
#include "firstbad.h"

#include <stdio.h>
#include <stdlib.h>

static float x[8000], y[8000];

int main(int argc, char **argv) {
    char path[4096];
    snprintf(path, sizeof path, "%s/input_features.npy", getenv("FIRSTBAD_INPUTS"));
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 128, SEEK_SET) || fread(x, 4, 8000, file) != 8000) return 9;
    fclose(file);
    FB_STEP("encode");
    FB_INPUT_F32("input_features", x, 1, 80, 100);
    FB_OP("double");
    FB_READ_F32("x", x, 1, 80, 100);
    for (int i = 0; i < 8000; i++) y[i] = 2 * x[i];
    FB_WRITE_F32("doubled", y, 1, 80, 100);
    FB_OP_END();
    FB_TOKEN(argc);
    FB_TEXT("text", argv[argc - 1]);
    return 0;
}
"""


def test_a_users_program_is_recorded(prepared: Prepared, tmp_path: Path) -> None:
    source = tmp_path / "engine.c"
    source.write_text(ENGINE)
    program = build([source], program=True, include=[INCLUDE])
    command = f"{shlex.quote(str(program))} --say 'two words'"
    output = probe.capture(command, prepared, tmp_path / "out" / "candidate.h5", CaptureOptions(timeout=20))
    assert (output.tokens, output.text, output.complete) == ((3,), "two words", True)
    with open_trace(tmp_path / "out" / "candidate.h5") as trace:
        fed, doubled = trace.graph.values
        np.testing.assert_array_equal(trace.array(fed), prepared.inputs["input_features"])
        np.testing.assert_array_equal(trace.array(doubled), 2 * prepared.inputs["input_features"])
        (op,) = trace.graph.ops
        assert (op.name, op.kind, Path(op.file).name) == ("doubled", "double", "engine.c")
        assert ENGINE.splitlines()[op.line - 1].strip() == 'FB_OP("double");'
        assert trace.meta["command"] == command
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["candidate.h5"]


def test_a_command_that_is_none_is_told(prepared: Prepared, tmp_path: Path) -> None:
    for command, says in (("", "needs the command"), ("a 'b", "cannot split")):
        with pytest.raises(UsageError, match=says):
            probe.capture(command, prepared, tmp_path / "t.h5", CaptureOptions())
    with pytest.raises(CompareError, match=r"cannot run `./nowhere`: no such file or directory"):
        probe.capture("./nowhere x", prepared, tmp_path / "t.h5", CaptureOptions())
