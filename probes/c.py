"""The built-in C engine as a candidate: `c` plans the model anew, `c:PLAN.json` runs a plan from a file.

Of a language model `c:stored` takes the blocks of its GGUF file, `c:float16` and `c:bfloat16` weights rounded so.

Compiles the engine on first use, hands it plan, weights and features as files that are gone afterwards, and records
it into the trace while it runs. Leaves out audio and text: they are the model room's.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import UsageError
from firstbad.graph import Op, Value
from firstbad.hashing import hash_array
from firstbad.lint import Finding
from firstbad.precision import LOW
from firstbad.run import CaptureOptions, Launch, Prepared, RunOutput
from firstbad.sampling import SampledWriter, sampling_of
from firstbad.session import meta_of
from firstbad.toolchain import build
from firstbad.trace import Trace

from .allocations import allocated_again
from .caches import LAYOUTS
from .lifetimes import assign
from .lint import lint as lint_plan
from .plan import Plan
from .plan_check import load
from .planner import PROMPT_ROOM, plan
from .planner_causal import plan as plan_causal
from .process import record, run_bare, wanted_of
from .program import BLOCKS, lower, write_weights
from .stream import Replace

FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-pthread")
"""Before the user's own. Contraction is on so that a fused multiply-add is used where the processor has one."""

STORED = ("stored", *LOW)
STEPS = 8
"""New tokens of a language model where nobody says how many."""

_HERE = Path(__file__).parent


def engine(cflags: Sequence[str] = (), kernels: Sequence[Path] = ()) -> Path:
    """The engine's program, built where it is not in the cache; later flags win. `kernels`: further C files."""
    sources = [*sorted((_HERE / "engine").glob("*.c")), *kernels]
    include = (_HERE / "include", *((_HERE / "engine",) if kernels else ()))
    return build(sources, flags=(*FLAGS, *cflags), program=True, include=include)


def plan_for(argument: str, prepared: Prepared, *, tokens: int | None = None, further: bool = False) -> Plan:
    """The plan in the file `argument`, or one made for the model and its input, with room for so many new tokens."""
    if "input_features" not in prepared.inputs:
        return _plan_of_language(argument, prepared, tokens, further=further)
    M, frames = prepared.inputs["input_features"].shape[1:]
    if not argument:
        return plan(prepared.config, frames // 2)
    chosen = load(Path(argument), further=further)
    if "encode" not in chosen.steps:
        raise UsageError(f"the plan `{argument}` is of a language model, and the input is a recording: plan it anew")
    step = chosen.steps["encode"]
    wanted = step.tensors[step.input].shape
    if wanted != (1, M, frames):
        raise UsageError(
            f"the plan `{argument}` is for features {list(wanted)}, this input has {[1, M, frames]}: choose "
            "--audio-context to fit, or plan it anew"
        )
    return chosen


def _plan_of_language(argument: str, prepared: Prepared, tokens: int | None, *, further: bool) -> Plan:
    stored, layout = _options(argument)
    if stored and stored not in STORED:
        chosen = load(Path(argument), further=further)
        if "encode" in chosen.steps:
            raise UsageError(f"the plan `{argument}` starts from sound, and the input is tokens: plan it anew")
        return chosen
    shapes = {name: array.shape for name, array in prepared.weights.items()}
    room = max(len(prepared.prompt), PROMPT_ROOM)
    types = _types(stored, prepared)
    return plan_causal(prepared.config, shapes, prompt=room, tokens=tokens or STEPS, types=types, cache=layout)


def _options(argument: str) -> tuple[str, str]:
    """`c:stored,cache=ring` in parts: how weights are stored, or a plan's file; how keys and values are kept."""
    words = argument.split(",")
    layouts = [word.removeprefix("cache=") for word in words if word.startswith("cache=")]
    others = [word for word in words if not word.startswith("cache=")]
    if not layouts:
        return argument, "stream"
    if len(layouts) > 1 or len(others) > 1 or layouts[0] not in LAYOUTS or not {*others} <= {*STORED}:
        raise UsageError(
            f"`c:{argument}` is nothing that the built-in C engine knows: c:cache=ring or c:cache=paged, and before it "
            f"{', '.join(STORED)} with a comma"
        )
    return (others[0] if others else ""), layouts[0]


def _types(argument: str, prepared: Prepared) -> dict[str, str]:
    """How the matrices that only products and look-ups read are stored."""
    if argument == "stored":
        types = {name: kind for name, (kind, _) in prepared.stored.items() if kind in BLOCKS}
        if not types:
            raise UsageError("`c:stored` takes the blocks of a GGUF file, and this model has none: give `c` alone")
        return types
    matrices = [n for n, w in prepared.weights.items() if w.ndim == 2 and n.endswith(".weight")]
    return dict.fromkeys(matrices, argument) if argument in LOW else {}


def lint(argument: str, prepared: Prepared | None = None) -> tuple[Finding, ...]:
    """What is wrong with a plan by itself: the one in the file, else the one that the model would get."""
    plan = load(Path(argument), further=True) if prepared is None else plan_for(argument, prepared, further=True)
    return lint_plan(plan)


def capture(
    argument: str,
    prepared: Prepared,
    trace_path: Path,
    options: CaptureOptions,
    *,
    stop: Sequence[str] = (),
    replace: Replace | None = None,
    replaced: Sequence[str] = ("*",),
    poison: bool = False,
    spread: bool = False,
) -> RunOutput:
    """Runs the engine and records it. `replace` may put another value in the place of each that `replaced` names;
    `stop` ends the run after the first value that it names; `poison` fills every buffer with NaN first; `spread` gives
    every tensor bytes of its own."""
    _check_input(prepared)
    chosen = plan_for(argument, prepared, tokens=options.max_tokens, further=bool(options.kernels))
    if spread:
        chosen = assign(chosen, reuse=False)
    meta = {
        **meta_of(prepared),
        "plan": argument or "made for this model",
        "threads": _threads(options),
        "cflags": [*FLAGS, *options.cflags],
    }
    trace_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".engine-", dir=trace_path.parent) as scratch:
        folder = Path(scratch)
        started = time.monotonic()
        command = _command(chosen, prepared, options, folder, poison)
        handed = time.monotonic() - started
        sampling = sampling_of(options, prepared)
        with _Writer(
            trace_path, role="candidate", engine="c", meta=meta, hash_only=options.hash_only, sampling=sampling
        ) as writer:
            writer.blocks = {name: prepared.stored[name][1] for name in chosen.types if name in prepared.stored}
            writer.numbers = prepared.weights
            ended = record(
                command,
                writer,
                folder,
                timeout=options.timeout,
                want=wanted_of(options),
                stop=stop or options.stop,
                replace=replace,
                replaced=replaced,
                source=_HERE.parent,
            )
            recording = ended.recording
            tokens = tuple(recording.tokens)
            text = prepared.text(tokens)
            writer.outputs({**recording.outputs(), "text": text, "printed": ended.stdout})
            writer.close(complete=not ended.death, death=ended.death)
    seconds = {"run": ended.seconds, "hand over": handed}
    return RunOutput(tokens, text, not ended.death, ended.death, seconds)


class _Writer(SampledWriter):
    """Blocks that the engine holds as the file has them are the reference's numbers: they get these' hash."""

    blocks: Mapping[str, np.ndarray] = {}
    numbers: Mapping[str, np.ndarray] = {}

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.names: dict[int, str] = {}

    def op(self, op: Op) -> None:
        """Rows that are stored in a cache are said to be a part of what was made for it."""
        if op.kind == "store_rows":
            whole = next((self.names.get(read.value, "") for read in op.reads if read.slot == "x"), "")
            op = dataclasses.replace(op, attrs={**op.attrs, "part_of": whole})
        super().op(op)

    def value(self, v: Value, array: np.ndarray | None) -> Value:
        self.names[v.id] = v.name
        if v.kind == "weight" and v.dtype == "uint8" and v.name in self.blocks:
            right = v.hash == hash_array(np.ascontiguousarray(self.blocks[v.name]))
            v = dataclasses.replace(v, hash=hash_array(self.numbers[v.name]) if right else v.hash)
        return super().value(v, array)


def allocations(
    argument: str, prepared: Prepared, first: Trace, options: CaptureOptions, folder: Path
) -> dict[str, Any]:
    """What other places in memory change of the run recorded as `first`; only hashes are taken."""
    hashes_only = dataclasses.replace(options, steps=("none",))
    return allocated_again(first, lambda path, **how: capture(argument, prepared, path, hashes_only, **how), folder)


def relaunch(
    argument: str, prepared: Prepared, options: CaptureOptions, folder: Path, weights: Collection[str]
) -> Launch:
    """Lays out in `folder` what another run needs; of the weights only these, the rest of the file is a hole."""
    chosen = plan_for(argument, prepared, tokens=options.max_tokens, further=bool(options.kernels))
    (folder / "program").write_text(lower(chosen, prepared, max_tokens=_most(prepared, options)), "utf-8")
    write_weights(chosen, prepared.weights, folder / "weights", only=weights, blocks=prepared.stored)
    _features(prepared).tofile(folder / "features")
    program = shlex.quote(str(engine(options.cflags, options.kernels)))
    return Launch([f'"${{ENGINE:-{program}}}"', '"${PROGRAM:-program}"', "weights", "features", str(_threads(options))])


def bare(argument: str, prepared: Prepared, options: CaptureOptions, folder: Path) -> str:
    """What the engine prints with no probe: the tokens, one a line."""
    with tempfile.TemporaryDirectory(prefix=".engine-", dir=folder) as scratch:
        command = _command(
            plan_for(argument, prepared, tokens=options.max_tokens), prepared, options, Path(scratch), poison=False
        )
        return run_bare(command, timeout=options.timeout)


def _threads(options: CaptureOptions) -> int:
    return options.threads or len(os.sched_getaffinity(0))


def _most(prepared: Prepared, options: CaptureOptions) -> int | None:
    """New tokens at most: of a language model a few where nobody says how many."""
    return options.max_tokens or (None if "input_features" in prepared.inputs else STEPS)


def _features(prepared: Prepared) -> np.ndarray:
    return np.ascontiguousarray(prepared.inputs.get("input_features", np.zeros(0)), np.float32)


def _check_input(prepared: Prepared) -> None:
    if "input_features" in prepared.inputs:
        return
    if prepared.family == "whisper":
        raise UsageError("no recording to run on: give one with --audio")
    ids = prepared.inputs.get("input_ids")
    if prepared.family != "causal":
        raise UsageError(
            f"the built-in C engine runs Whisper and language models, not {prepared.family}: choose another candidate"
        )
    if ids is None or ids.shape[0] != 1:
        raise UsageError("the built-in C engine takes one prompt at a time: give one with --text or --tokens")


def _command(chosen: Plan, prepared: Prepared, options: CaptureOptions, folder: Path, poison: bool) -> list[str | Path]:
    """The engine's command line, with its files laid out in `folder`."""
    files = [folder / name for name in ("program", "weights", "features")]
    files[0].write_text(lower(chosen, prepared, max_tokens=_most(prepared, options), poison=poison), "utf-8")
    write_weights(chosen, prepared.weights, files[1], blocks=prepared.stored)
    _features(prepared).tofile(files[2])
    return [engine(options.cflags, options.kernels), *files, str(_threads(options))]
