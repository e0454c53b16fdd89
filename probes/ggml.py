"""Any program that computes with ggml, unmodified: `ggml:COMMAND`, arguments and all, the whole in quotes.

    --candidate "ggml:whisper-cli -t 1 -m {model} -f {audio}"

In the command {audio} stands for the recording, {model} for a file of the reference's own weights, written in
whisper.cpp's format as float16 ({model:q8_0}, {model:q5_0} quantised; a model file given with --model is handed on as
it is), {prompt} for the ids of a language model's prompt, {context} for the number of encoder positions (0: all),
{tokens} for the most tokens (0: any number). A small library is compiled on first use and preloaded; it sees every node
of every graph. Leaves out programs with ggml linked into themselves, which are recognised and refused, and graphics
cards.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from firstbad import whisper_file
from firstbad.errors import CompareError, UsageError
from firstbad.gguf_file import is_gguf
from firstbad.run import CaptureOptions, Prepared, RunOutput
from firstbad.session import meta_of
from firstbad.toolchain import build
from firstbad.trace import TraceWriter

from .ggml_files import files_of
from .ggml_sink import GgmlSink
from .process import Ended, record, run_bare

AGAIN = (
    "the engine began anew after its first answer (another window of the sound, or another attempt): only the first is "
    "compared"
)
_HERE = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-ldl")


def shim() -> Path:
    """The preloaded library, built where it is not in the cache."""
    return build([_HERE / "shim" / "ggml.c"], flags=FLAGS, include=(_HERE / "include",))


def capture(argument: str, prepared: Prepared, trace_path: Path, options: CaptureOptions) -> RunOutput:
    """Runs the command under the shim and records every node; how it ended is told in the output."""
    trace_path.parent.mkdir(parents=True, exist_ok=True)
    library = shim()
    with tempfile.TemporaryDirectory(prefix=".ggml-", dir=trace_path.parent) as scratch:
        command = words(argument, prepared, options, Path(scratch))
        meta = {**meta_of(prepared), "command": argument, "threads": 1}
        with TraceWriter(trace_path, role="candidate", engine="ggml", meta=meta, hash_only=options.hash_only) as writer:
            files = files_of(prepared, command)
            sink = GgmlSink(writer, prepared, _selected(options.steps), files)
            ended = record(
                command,
                sink,  # type: ignore[arg-type]  # has the writer's face as far as a stream needs it
                Path(scratch),
                timeout=options.timeout,
                environment=_environment(library),
            )
            _check(ended, sink, command, prepared)
            tokens = _tokens(ended, sink, prepared)
            text = ended.recording.texts.get("text", "").strip() or prepared.text(tokens)
            version = ended.recording.texts.get("ggml.version", "")
            outputs = {"tokens": list(tokens), "text": text, "printed": ended.stdout, "ggml": version}
            notes = [*files.differ.values(), *([AGAIN] if sink.again else [])]
            writer.outputs({**outputs, "weights": files.differ, "notes": notes})
            writer.close(complete=not ended.death, death=ended.death)
    return RunOutput(tokens, text, not ended.death, ended.death, {"run": ended.seconds})


def bare(argument: str, prepared: Prepared, options: CaptureOptions, folder: Path) -> str:
    """What the command prints without the shim."""
    with tempfile.TemporaryDirectory(prefix=".ggml-", dir=folder) as scratch:
        command = words(argument, prepared, options, Path(scratch))
        return run_bare(command, timeout=options.timeout, environment=_plain_environment())


def words(argument: str, prepared: Prepared, options: CaptureOptions, folder: Path) -> list[str]:
    """The command with its placeholders filled in; files that it needs are written to `folder`."""
    try:
        command = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"cannot split `{argument}` into words: {str(error).lower()}") from None
    if not command:
        raise UsageError('`ggml` needs the command to run: --candidate "ggml:whisper-cli -m {model} -f {audio}"')
    known: dict[str, Any] = {
        "audio": lambda _: _audio(prepared),
        "model": lambda kind: _model(prepared, kind or "f16", folder),
        "prompt": lambda _: ",".join(map(str, prepared.prompt)),
        "context": lambda _: str(prepared.spec.audio_context or 0),
        "tokens": lambda _: str(options.max_tokens or 0),
    }

    def fill(match: re.Match[str]) -> str:
        name, _, more = match[1].partition(":")
        return str(known[name](more)) if name in known else match[0]

    return [re.sub(r"\{([a-z]+(?::[a-z0-9_]+)?)\}", fill, word) for word in command]


def _audio(prepared: Prepared) -> str:
    if prepared.spec.audio is None:
        raise UsageError("no recording to run on: give one with --audio")
    return str(Path(prepared.spec.audio).resolve())


def _model(prepared: Prepared, kind: str, folder: Path) -> str:
    given = Path(prepared.spec.model)
    if given.is_file() and (whisper_file.is_whisper_file(given) or is_gguf(given)):
        return str(given.resolve())
    if prepared.family != "whisper":
        raise UsageError(f"{{model}} is written for Whisper, not for {prepared.family}: name the engine's file itself")
    path = folder / f"model.{kind}.bin"
    if not path.exists():
        tokens = prepared.vocabulary() if prepared.vocabulary is not None else _numbers(prepared.eos)
        whisper_file.write(
            path, prepared.weights, prepared.config, filters=filters(prepared), vocabulary=tokens, kind=kind
        )
    return str(path.resolve())


def _numbers(count: int) -> list[bytes]:
    """A vocabulary for a model that has none; whisper.cpp looks for the blank in it."""
    return [b" " if i == 0 else f" {i}".encode() for i in range(count)]


def filters(prepared: Prepared) -> np.ndarray:
    from transformers import WhisperFeatureExtractor

    make: Any = WhisperFeatureExtractor  # untyped
    filters = make(feature_size=int(prepared.config["num_mel_bins"])).mel_filters
    return np.ascontiguousarray(filters.T, np.float32)


def _plain_environment() -> dict[str, str]:
    return {"GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def _environment(library: Path) -> dict[str, str]:
    before = os.environ.get("LD_PRELOAD", "")
    return {**_plain_environment(), "LD_PRELOAD": f"{library}{' ' if before else ''}{before}"}


def _selected(steps: tuple[str, ...]) -> Any:
    """`decode` selects every decode step."""
    return lambda step: not steps or step == "weights" or step in steps or step.partition(".")[0] in steps


def _check(ended: Ended, sink: GgmlSink, command: list[str], prepared: Prepared) -> None:
    """One line where nothing, or nothing comparable, was seen."""
    layout = ended.recording.texts.get("ggml.refused", "")
    if layout:
        raise CompareError(
            f"the ggml of `{command[0]}` lays its tensors out in a way unknown here ({layout}): nothing was read"
        )
    if not sink.graphs:
        if ended.death and "without closing" not in ended.death:
            raise CompareError(f"`{command[0]}` computed no graph: {ended.death}")
        if _has_ggml_inside(command[0]):
            raise CompareError(
                f"`{command[0]}` has ggml linked into itself, out of the shim's reach: build it with "
                "-DBUILD_SHARED_LIBS=ON, or give a program that loads libggml"
            )
        raise CompareError(f"`{command[0]}` computed no graph with a shared ggml: is it a program that uses ggml?")
    if sink.ids and sink.ids[0] != prepared.prompt:
        theirs = max(sink.ids, key=len) if prepared.family == "causal" else sink.ids[0]
        if _in_parts(sink.ids, prepared.prompt):
            raise CompareError(
                f"the engine reads the prompt's {len(prepared.prompt)} tokens in parts of {len(theirs)}: give it "
                f"batches (n_batch and n_ubatch) of at least {len(prepared.prompt)}"
            )
        raise CompareError(_other_prompt(theirs, prepared))


def _in_parts(fed: list[tuple[int, ...]], prompt: tuple[int, ...]) -> bool:
    """Whether some of the graphs, one after the other, were fed the whole prompt."""
    for first in range(len(fed)):
        joined: tuple[int, ...] = ()
        for ids in fed[first:]:
            joined += ids
            if joined == prompt:
                return True
            if joined != prompt[: len(joined)]:
                break
    return False


def _other_prompt(theirs: tuple[int, ...], prepared: Prepared) -> str:
    ours = prepared.prompt
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))

    def said(ids: tuple[int, ...]) -> str:
        return f"{ids[at]} ({prepared.text(ids[at : at + 1])!r})" if at < len(ids) else "nothing more"

    advice = (
        "give both the same ids (--tokens, {prompt}), or mend the tokenizer"
        if prepared.family == "causal"
        else "ask it for the same task (no timestamps, the same language, no text before)"
    )
    return (
        f"the engine starts from the tokens {list(theirs)}, the reference from {list(ours)}; token {at} is the first "
        f"that differs: {said(theirs)} against {said(ours)}. Nothing else was compared: {advice}"
    )


def _has_ggml_inside(program: str) -> bool:
    path = shutil.which(program)
    try:
        return path is not None and b"ggml_" in Path(path).read_bytes()
    except OSError:
        return False


def _tokens(ended: Ended, sink: GgmlSink, prepared: Prepared) -> tuple[int, ...]:
    """What the engine chose: each choice is fed to the next step; the last one is in its answer, or the end."""
    fed = tuple(ids[-1] for ids in sink.ids[1:])
    if not sink.ids or ended.death:
        return fed
    if prepared.family == "causal":  # the last choice is fed to nobody; these engines are asked to be greedy
        scores = sink.last
        return fed if scores is None else (*fed, int(np.argmax(scores.reshape(-1, scores.shape[-1])[-1])))
    told = [int(word) for word in ended.recording.texts.get("ggml.tokens", "").split()]
    kept = [t for t in told if t < prepared.eos]
    last = kept[len(fed)] if len(kept) > len(fed) and tuple(kept[: len(fed)]) == fed else prepared.eos
    return (*fed, last)
