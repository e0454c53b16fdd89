"""Options that several verbs share: the model and its input, the candidate, what is captured, where it goes."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, ModelSpec

if TYPE_CHECKING:
    from firstbad.mapfile import Mapped
    from firstbad.profile import Profile


def add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and input")
    group.add_argument(
        "--model",
        default="whisper",
        metavar="MODEL",
        help="whisper (tiny.en), whisper:base, a folder, an installed package, a hub name; with --random-weights a "
        "family: llama, bert, vit, ...; or your own FILE.py or FILE.py:factory (default: whisper)",
    )
    group.add_argument("--audio", type=Path, metavar="FILE", help="a recording: wav, flac, mp3, ogg")
    group.add_argument("--text", action="append", metavar="PROMPT", help="a prompt; again for a batch of them")
    group.add_argument("--tokens", action="append", type=_ids, metavar="IDS", help="a prompt as ids: 15496,11,995")
    group.add_argument("--image", type=Path, metavar="FILE", help="a picture, for ViT, CLIP and their like")
    group.add_argument(
        "--inputs", type=Path, metavar="FILE.npz", help="the model's inputs by name, as numpy.savez writes"
    )
    group.add_argument("--random-weights", type=int, metavar="SEED", help="random weights instead of a checkpoint")
    group.add_argument("--size", choices=("tiny", "micro"), default="", help="size of a model with random weights")
    group.add_argument(
        "--offload",
        action="store_true",
        help="leave the reference's weights in their safetensors files: for a model larger than memory",
    )
    group.add_argument(
        "--audio-context", type=positive, metavar="N", help="encoder positions, 50 a second of sound (default: 1500)"
    )


def add_capture(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("capture")
    group.add_argument("--max-tokens", type=positive, metavar="N", help="new tokens at most")
    group.add_argument("--steps", metavar="LIST", default="", help="only these steps: encode,prefill,decode.0,decode")
    group.add_argument("--threads", type=_threads, metavar="N", help="threads of the candidate (default: all cores)")
    group.add_argument("--timeout", type=seconds, metavar="SECONDS", help="a candidate silent for so long is stopped")
    group.add_argument("--cflags", default="", metavar="FLAGS", help="further compiler flags for the built-in C engine")
    group.add_argument(
        "--kernels", type=Path, action="append", default=[], metavar="FILE.c", help="further kernels for it"
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sample-from",
        type=_count,
        metavar="N",
        help="of attention over N positions and more keep some rows, and all of what is wrong on a second pass; "
        "0: keep all (default: 1024 for language models)",
    )


def add_hash_only(parser: argparse.ArgumentParser, help_: str) -> None:
    parser.add_argument("--hash-only", action="store_true", help=help_)


def add_candidate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--candidate",
        default="c",
        metavar="KIND[:ARGUMENT]",
        help="c[:PLAN.json] the built-in C engine, or another adapter of probes/ (default: c)",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, default=Path("firstbad-out"), metavar="DIR", help="output folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def add_map(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help="which candidate value is which, as `firstbad align --write` writes it"
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile",
        default="",
        metavar="NAME|FILE",
        help="what the candidate computes another way on purpose: `ggml`, or a JSON file of your own",
    )


def profile(args: argparse.Namespace) -> Profile | None:
    from firstbad.profile import load_profile

    return load_profile(args.profile) if args.profile else None


def mapped(args: argparse.Namespace) -> Mapped | None:
    from firstbad.mapfile import load_map

    return load_map(args.map) if args.map is not None else None


def spec(args: argparse.Namespace) -> ModelSpec:
    prompts = tuple(args.text or ()), tuple(args.tokens or ())
    given = (args.audio, args.image, args.inputs, args.random_weights)
    if given == (None,) * len(given) and not any(prompts):
        raise UsageError(
            "no input: give a recording with --audio FILE, a prompt with --text or --tokens, a picture with --image, "
            "or --inputs FILE.npz"
        )
    if args.size and args.random_weights is None:
        raise UsageError(f"--size {args.size} is of a model with random weights: give --random-weights SEED with it")
    about = (args.model, args.audio, args.random_weights, args.audio_context, args.size)
    return ModelSpec(*about, *prompts, args.image, args.inputs, args.offload)


def capture_options(args: argparse.Namespace) -> CaptureOptions:
    steps = tuple(s for s in args.steps.split(",") if s)
    try:
        flags = tuple(shlex.split(args.cflags))
    except ValueError as e:
        raise UsageError(f"--cflags {args.cflags!r}: {str(e).lower()}") from None
    kernels = tuple(args.kernels)
    hash_only = getattr(args, "hash_only", False)  # not every verb has it
    about = (args.max_tokens, args.threads, args.timeout, steps, flags, kernels)
    return CaptureOptions(*about, hash_only=hash_only, sample_from=getattr(args, "sample_from", 0))


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number of at least 1")
    return number


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is no list of ids: 15496,11,995 is meant") from None


def _threads(text: str) -> int:
    number = positive(text)
    if number > 1024:  # every one of them is started, in both engines
        raise argparse.ArgumentTypeError(f"`{text}` threads are too many: 1024 are the most")
    return number


def seconds(text: str) -> float:
    """A time from the command line."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of seconds above 0")
    return number
