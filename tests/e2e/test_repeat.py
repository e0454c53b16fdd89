"""diff --repeat: an engine with one kernel that gives other bits in every run, and the healthy one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstbad.cli import main
from firstbad.probes import edits
from firstbad.probes.plan import save

from .conftest import CLIP, Bench

RACY = """
#define _POSIX_C_SOURCE 199309L
#include "kernels.h"
#include "runtime.h"
#include <stddef.h>
#include <time.h>
#define F(view) ((float *)(void *)(view).at)
static void racy(const Call *c) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    gelu(F(c->out), F(c->in[0]), c->out.count);
    F(c->out)[5] += (float)(now.tv_nsec % 1000003) * 1e-9f;
}
const KernelEntry extra_kernels[] = {{"gelu:racy", racy, __FILE__, __LINE__}, {NULL, NULL, NULL, 0}};
"""
GELU = "model.encoder.layers.1.activation_fn.gelu"


def arguments(folder: Path, *more: str) -> list[str]:
    size = ["--random-weights", "1", "--size", "micro", "--audio-context", "40", "--max-tokens", "2"]
    return ["diff", *size, "--audio", str(CLIP), "-o", str(folder), "--repeat", "3", *more]


def test_what_differs_between_runs_is_named(micro: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel, plan = tmp_path / "racy.c", tmp_path / "plan.json"
    kernel.write_text(RACY, "utf-8")
    save(edits.set_kind(micro.plan, "encode", GELU, "gelu:racy"), plan)
    code = main(arguments(tmp_path / "out", "--candidate", f"c:{plan}", "--kernels", str(kernel)))
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    assert code == 1
    fault = next(f for f in result["faults"] if f["value"] == GELU)
    assert fault["cause"]["kind"] == "nondeterministic"
    assert fault["cause"]["detail"]["inputs_equal"] is True
    assert result["extra"]["repeat"]["runs"] == 3
    assert "differs between runs" in out


def test_the_healthy_engine_repeats_itself(tmp_path: Path) -> None:
    assert main(arguments(tmp_path / "out")) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    assert result["extra"]["repeat"] == {"runs": 3, "differ": 0, "first": None}
