"""One session: prepare the input, run the candidate and then the reference on its tokens, compare, write the folder.

The order matters: the candidate's own tokens drive the reference, so that every step has the same history on both
sides. Leaves out arguments (verbs/) and text (reports/).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from firstbad.allocator import keep_large_blocks, return_large_blocks
from firstbad.arguments import did_you_mean
from firstbad.comparison import Comparison, compare
from firstbad.errors import UsageError
from firstbad.evidence import Evidence, Wanted, check_wanted, gather
from firstbad.gguf_file import is_gguf
from firstbad.mapfile import Mapped
from firstbad.material import material_of, write_report
from firstbad.profile import Profile
from firstbad.result import save
from firstbad.rooms import load, names
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.sampling import SampledWriter, sampled, sampling_of, suspicious, words
from firstbad.trace import Trace, mark_default, open_trace
from firstbad.whisper_file import is_whisper_file
from firstbad.writer import check_replaceable

Tell = Callable[[str], None]


def silent(_: str) -> None:
    """Progress that nobody sees."""


def room_of(model: str) -> ModuleType:
    """The model room for `--model`: a room's name before a colon, a user's file, or what a name or folder says."""
    head, _, rest = model.partition(":")
    if head.endswith(".py"):
        return load("reference", "own" if rest else head)
    if head in names("reference"):
        return load("reference", head)
    folder = Path(model)
    if folder.is_dir():
        return load("reference", _family_of(folder))
    if is_gguf(folder):
        return load("reference", "causal")
    if "whisper" in model.lower() or is_whisper_file(folder):
        return load("reference", "whisper")
    return load("reference", _room_name(model))


def _family_of(folder: Path) -> str:
    """The family of a model folder: what its config.json says; a CTranslate2 folder is Whisper's so far."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        config = {}
    family = config.get("model_type") or ("whisper" if (folder / "model.bin").is_file() else "")
    if not family:
        raise UsageError(f"`{folder}` holds no model: a folder with config.json and weights is meant")
    return str(family) if str(family) in names("reference") else _room_name(str(folder))


def _room_name(model: str) -> str:
    """The room of a model of transformers; by name alone, as whatever imports torch."""
    name: str = import_module("firstbad.reference.checkpoint").room_name(model)
    return name


def prepare(spec: ModelSpec) -> tuple[ModuleType, Prepared]:
    """The model room and what both engines are given."""
    return_large_blocks() if spec.offload else keep_large_blocks()
    room = room_of(spec.model)
    return room, room.prepare(spec)


def meta_of(prepared: Prepared) -> dict[str, Any]:
    """What a trace says about how it was made; enough to load the weights again."""
    spec = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(prepared.spec).items()}
    return {
        "family": prepared.family,
        "model": prepared.model,
        "source": prepared.source,
        "config": dict(prepared.config),
        "prompt": list(prepared.prompt),
        "notes": list(prepared.notes),
        "spec": spec,
    }


def capture_reference(
    room: ModuleType,
    prepared: Prepared,
    path: Path,
    options: CaptureOptions,
    tokens: tuple[int, ...] | None = None,
    candidate: Path | None = None,
) -> RunOutput:
    """Runs and records the reference into `path`; `tokens` are the candidate's choices, None: its own.

    `candidate`: its trace, whose other choices (experts of a router) are followed too.
    """
    with ExitStack() as stack:
        writer = stack.enter_context(
            SampledWriter(
                path,
                "reference",
                "torch",
                meta_of(prepared),
                hash_only=options.hash_only,
                sampling=sampling_of(options, prepared),
            )
        )
        extra: dict[str, Any] = {}
        chosen = {} if candidate is None else choices_of(stack.enter_context(open_trace(candidate)))
        if chosen:
            recorder = import_module("firstbad.reference.recorder").Recorder
            extra["recording"] = partial(recorder, follow=lambda step, name: chosen.get((step, name)))
        output: RunOutput = room.capture(prepared, writer, tokens=tokens, options=options, **extra)
        writer.outputs({"tokens": list(output.tokens), "text": output.text})
        writer.close(complete=output.complete)
    return output


def capture_candidate(candidate: str, prepared: Prepared, path: Path, options: CaptureOptions) -> RunOutput:
    """Runs the candidate `KIND[:ARGUMENT]` under its probe into `path`; an older trace is removed first."""
    kind, _, argument = candidate.partition(":")
    check_replaceable(path)
    path.unlink(missing_ok=True)  # a candidate that dies at once must not be judged by what another one left
    output: RunOutput = load("probes", kind).capture(argument, prepared, path, options)
    return output


def choices_of(trace: Trace) -> dict[tuple[str, str], Any]:
    """(step, name) → the places that a top-k of this run chose."""
    values = (v for v in trace.graph.values if "topk" in v.name and "int" in v.dtype and v.op >= 0)
    return {(v.step, v.name): trace.array(v) for v in values if trace.stored(v)}


def diff(
    spec: ModelSpec,
    candidate: str,
    folder: Path,
    options: CaptureOptions,
    *,
    budget: float,
    mapped: Mapped | None = None,
    profile: Profile | None = None,
    command: str = "",
    started: float | None = None,
    wanted: Wanted | None = None,
    tell: Tell = silent,
) -> Comparison:
    """Runs both engines and compares them; everything lands in `folder`.

    `wanted`: proofs beside the comparison; `started`: time.monotonic() at the start of the process, so that imports are
    counted.
    """
    check_wanted(candidate, wanted or Wanted())
    output_folder(folder)
    tell("loading")
    at = time.monotonic()
    room, prepared = prepare(spec)
    timings = {"import and load": time.monotonic() - (started or at)}
    check_space(room, prepared, folder, options, tell)
    for name in ("result.json", "report.html"):
        (folder / name).unlink(missing_ok=True)  # of an earlier run

    def run(options: CaptureOptions) -> None:
        """Both engines, into the two traces of the folder."""
        at = time.monotonic()
        tell("candidate")
        answer = capture_candidate(candidate, prepared, folder / "candidate.h5", options)
        timings["candidate"] = time.monotonic() - at
        at = time.monotonic()
        tell("reference")
        wishes = replace(options, unfinished=not answer.complete)
        own = capture_reference(room, prepared, folder / "reference.h5", wishes, answer.tokens, folder / "candidate.h5")
        timings["reference"] = time.monotonic() - at
        for side, output in (("candidate", answer), ("reference", own)):
            if "write" in output.seconds:
                timings[f"writing {side}.h5"] = output.seconds["write"]

    def judged(options: CaptureOptions, others: frozenset[tuple[str, str]] | None) -> Comparison:
        """`others`: (step, name) of values that are not looked at again; None: a first pass, whose faults lead to a
        second one where rows alone are kept."""
        with open_trace(folder / "reference.h5") as reference, open_trace(folder / "candidate.h5") as other:
            check_steps(options.steps, reference, other)
            first = others is None and sampled(reference.graph)
            comparison = compare(
                reference,
                other,
                room.executor(prepared),
                budget=0.0 if first else budget,
                mapped=mapped,
                profile=profile,
                command=command,
                judged=lambda value: (value.step, value.name) not in (others or ()),
                notes=(*prepared.notes, *words(reference.graph, others or ())),
                timings=timings,
                progress=tell,
            )
            faults = comparison.localised.faults
            if not (first and faults):
                about = Evidence(room, prepared, candidate, folder, options, reference, other, tell, wanted or Wanted())
                return gather(comparison, about)
            whole, others = suspicious(faults, comparison.local, reference.graph)
        if whole:
            tell("second pass")
            options = replace(options, whole=whole)
            run(options)
        return judged(options, others)

    run(options)
    comparison = judged(options, None)
    return finish(comparison, folder)


def compare_files(
    reference: Path,
    candidate: Path,
    folder: Path | None,
    *,
    budget: float,
    mapped: Mapped | None = None,
    profile: Profile | None = None,
    command: str = "",
    tell: Tell = silent,
) -> Comparison:
    """Compares two traces on disk; the weights are found again from what the reference's trace says."""
    with open_trace(reference) as ours, open_trace(candidate) as theirs:
        for trace, role in ((ours, "reference"), (theirs, "candidate")):
            if trace.role != role:
                raise UsageError(
                    f"`{trace.path}` is a trace of a {trace.role}: give the reference first, then the candidate"
                )
            if trace.sketches:
                raise UsageError(
                    f"`{trace.path}` holds hashes and sketches alone, nothing to replay: set it beside the other one "
                    f"with `firstbad show {reference} --with {candidate}`"
                )
        room, prepared = prepare(spec_of(ours))
        comparison = compare(
            ours,
            theirs,
            room.executor(prepared),
            budget=budget,
            mapped=mapped,
            profile=profile,
            command=command,
            notes=ours.meta.get("notes", ()),
            progress=tell,
        )
    if folder is not None:
        output_folder(folder)
        comparison = finish(comparison, folder)
    return comparison


def spec_of(trace: Trace) -> ModelSpec:
    """The model of a trace, without its input: enough to replay."""
    recorded = trace.meta.get("spec")
    if not isinstance(recorded, dict) or "model" not in recorded:
        raise UsageError(f"`{trace.path}` does not say which model it is of: capture it again with `firstbad capture`")
    known = {k: recorded[k] for k in ("model", "random_weights", "audio_context", "size", "offload") if k in recorded}
    return ModelSpec(**known)


def finish(comparison: Comparison, folder: Path) -> Comparison:
    """Writes result.json and report.html, and makes HDF5 viewers open the traces on the first bad value.

    Returns the comparison with the report among its files; where none could be made, with a note that says so.
    """
    report = folder / "report.html"
    plain = replace(comparison.result, extra={**comparison.result.extra, **material_of(comparison)})
    result = replace(plain, files={**plain.files, "report": str(report)})
    save(result, folder / "result.json")
    if plain.first_bad is not None:
        for path in plain.files.values():
            if Path(path).parent == folder:
                mark_default(path, plain.first_bad.step, plain.first_bad.value)
    try:
        write_report(folder, "html", report)
    except Exception as error:  # whatever it is, the verdict stands without its page
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        result = replace(plain, notes=(*plain.notes, f"no report.html ({reason}): try `firstbad report {folder}`"))
        save(result, folder / "result.json")
    return replace(comparison, result=result)


def output_folder(folder: Path) -> Path:
    """Makes the folder; refuses a file in its place and too little space for a capture."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`{folder}` is a file: give a folder with -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"cannot make the folder `{folder}`: {(e.strerror or str(e)).lower()}") from e
    return folder


def check_steps(wanted: tuple[str, ...], *traces: Trace) -> None:
    """Refuses steps that no engine ran: a misspelt one would leave nothing to compare."""
    ran = dict.fromkeys(step for trace in traces for step in trace.graph.steps)
    known = dict.fromkeys(name for step in ran for name in (step, step.partition(".")[0]))
    for step in wanted:
        if step not in known:
            hint = did_you_mean(step, known) or f"there are {', '.join(ran)}"
            raise UsageError(f"no step `{step}` in this run: {hint}")


def check_space(room: ModuleType, prepared: Prepared, folder: Path, options: CaptureOptions, tell: Tell) -> None:
    """Says what the two traces will take, and refuses what will not fit. A room that cannot tell has no `footprint`."""
    if not hasattr(room, "footprint") or options.steps:
        return
    first, token = room.footprint(prepared)
    # How many tokens will come is not known before; what is asked for, or one short sentence, must fit.
    needed = 2 * (first + token * (options.max_tokens or 32))
    free = shutil.disk_usage(folder).free
    tell(f"two traces of {first / 1e6:,.0f} MB and {token / 1e6:.1f} MB a token")
    if needed > free:
        raise UsageError(
            f"`{folder}` has {free / 1e9:.1f} GB free and the two traces need about {needed / 1e9:.1f} GB: "
            "use another folder with -o, or fewer steps with --steps or --max-tokens"
        )
