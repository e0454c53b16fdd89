"""Made-up runs for the reports: two small traces and the result that goes with them, as plain as NumPy can make them.

Nothing is computed by a model: the candidate's values are the reference's with an error planted in some. What a
report shows of them is known beforehand. Leaves out the comparison, which has tests of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.graph import READ_CHANGED, READ_OK, Op, Read, Value
from firstbad.result import CauseResult, Coverage, FaultResult, Input, Result, SiteResult, Source, Worst, save
from firstbad.trace import TraceWriter

NOISE = 1e-7
LAYER = ("norm", "attn.q_proj", "attn.v_proj", "attn.softmax", "attn.matmul", "attn.out_proj", "add")


def names_of(layers: int, path: str = "model") -> list[str]:
    """Values of one step in execution order: a stem, layers, a head."""
    inner = [f"{path}.layers.{i}.{op}" for i in range(layers) for op in LAYER]
    return [f"{path}.embed", *inner, f"{path}.head"]


def made(
    folder: Path,
    *,
    steps: Sequence[tuple[str, Sequence[str]]] = (("encode", names_of(3)),),
    fault: str = "model.layers.1.attn.v_proj",
    cause: str = "wrong_input",
    text: tuple[str, str] = ("the right words", "the wrong words"),
    shape: tuple[int, ...] = (1, 12, 16),
    command: str = "firstbad diff --model whisper",
    death: str = "",
    bare: bool = False,
) -> Path:
    """A folder with reference.h5, candidate.h5 and result.json. `fault` "" is a run that matches.

    `bare`: an engine that records neither times nor addresses.
    Each value reads the one before it. From the fault on, the values of its step are wrong by about their own size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = [(step, name) for step, names in steps for name in names]
    at = next((i for i, (_, name) in enumerate(plan) if name == fault), len(plan))
    guilty_step = plan[at][0] if at < len(plan) else ""
    random = np.random.default_rng(7)
    values = [random.standard_normal(shape).astype(np.float32) for _ in plan]
    own = [v + np.float32(NOISE) * random.standard_normal(shape).astype(np.float32) for v in values]
    for i in range(at, len(plan)):
        if plan[i][0] == guilty_step:
            own[i] = own[i] + random.standard_normal(shape).astype(np.float32)
    for role, arrays in (("reference", values), ("candidate", own)):
        _trace(folder / f"{role}.h5", role, plan, arrays, at if cause == "clobbered" else -1, bare)
    save(_result(folder, plan, at, cause, text, shape, command, death), folder / "result.json")
    return folder


def _trace(
    path: Path, role: Any, plan: Sequence[tuple[str, str]], arrays: Sequence[np.ndarray], clobbered: int, bare: bool
) -> None:
    meta = {"model": "made", "config": {"encoder_attention_heads": 4}, "cflags": ["-O3"]}
    with TraceWriter(path, role=role, engine="torch" if role == "reference" else "c", meta=meta) as writer:
        width = arrays[0].nbytes if arrays else 0
        for i, ((step, name), array) in enumerate(zip(plan, arrays, strict=True)):
            place = 0 if bare else 0x7F0000000000 + i % 3 * width
            start = 0 if bare else 1000 * i + 1
            value = Value(i, step, name, "value", array.shape, "float32", op=i, address=place, extent=width, hash=i + 1)
            writer.value(value, array)
            read = Read(i - 1, "x", READ_CHANGED if i == clobbered else READ_OK, overwritten_by=(i - 2,))
            reads = (read if i == clobbered else replace(read, overwritten_by=()),) if i else ()
            writer.op(Op(i, step, name, "linear", reads, (i,), {}, "kernels.c", 40 + i, start, start and start + 899))
        writer.outputs({"tokens": [1, 2], "text": ""})


def _result(
    folder: Path,
    plan: Sequence[tuple[str, str]],
    at: int,
    cause: str,
    text: tuple[str, str],
    shape: tuple[int, ...],
    command: str,
    death: str,
) -> Result:
    guilty_step = plan[at][0] if at < len(plan) else ""
    off = [i >= at and step == guilty_step for i, (step, _) in enumerate(plan)]
    verdict = ["culprit" if i == at else "victim" if off[i] else "clean" for i in range(len(plan))]
    columns: dict[str, list[Any]] = {
        "step": [step for step, _ in plan],
        "name": [name for _, name in plan],
        "op": ["linear"] * len(plan),
        "shape": [list(shape)] * len(plan),
        "dtype": ["float32"] * len(plan),
        "verdict": verdict,
        "local_error": [1.0 if i == at else NOISE * (1 + i % 5) / 5 for i in range(len(plan))],
        "noise_floor": [NOISE] * len(plan),
        "times_noise": [1e7 if i == at else (1 + i % 5) / 5 for i in range(len(plan))],
        "cumulative_error": [1.0 if off[i] else NOISE for i in range(len(plan))],
        "test": ["whole"] * len(plan),
        "region_length": [1] * len(plan),
    }
    fault = _fault(plan, at, cause) if at < len(plan) else None
    return Result(
        verdict="diverged" if fault else "incomplete" if death else "match",
        first_bad=fault,
        faults=(fault,) if fault else (),
        damage=tuple(name for i, (_, name) in enumerate(plan) if verdict[i] == "victim"),
        values=columns,
        outputs={
            "reference": {"text": text[0], "tokens": [1, 2]},
            "candidate": {"text": text[1], "tokens": [1, 3] if fault else [1, 2]},
            "first_differing_token": 1 if fault else -1,
            "tokens_equal": not fault,
        },
        coverage=Coverage(
            {"encode": len(plan)},
            len(plan),
            len(plan) + 1,
            (("encode", "x.view", "only moves values"),),
            (),
            1,
            (),
            2,
            (),
            9,
            0,
        ),
        stage="values" if fault else "",
        notes=("made up",),
        environment={
            "firstbad": "0",
            "python": "3",
            "reference": {"config": {"encoder_attention_heads": 4}},
            "candidate": {},
        },
        timings={"replay": 1.5},
        files={side: str(folder / f"{side}.h5") for side in ("reference", "candidate")},
        command=command,
        death=death,
        extra={"allowed": [6e-6] * len(plan), "partners": {}},
    )


def _fault(plan: Sequence[tuple[str, str]], at: int, cause: str) -> FaultResult:
    step, name = plan[at]
    right, wrong = plan[at - 1][1], plan[max(0, at - 3)][1]
    detail = {
        "wrong_input": {"input": right, "input_step": step, "read": wrong, "read_step": step},
        "clobbered": {
            "input": right,
            "overwritten_by": wrong,
            "writer": {"file": "kernels.c", "line": 7, "step": step},
        },
        "stale": {"input": wrong, "instead_of": right},
    }.get(cause, {"why": "no edit reproduces it"})
    proved = None if cause == "unknown" else 2e-7
    return FaultResult(
        name, step, "linear", Source("kernels.c", 42), (Input(right, step, 1e-7, True),), 1.0, proved, NOISE, 1e7, 1.0,
        "whole", "row 3", Worst((0, 3, 4), 1.0, 2.0, 1.0, 9.0),
        CauseResult(cause, f"{name} reads {wrong} instead of {right}", detail, proved, (), 3),
        "culprit", (SiteResult(step, 1.0, NOISE, 1e7, 1.0),), (),
    )  # fmt: skip # one line a group of fields
