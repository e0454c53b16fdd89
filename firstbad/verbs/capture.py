"""capture: run one side only and keep its trace."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from firstbad import options
from firstbad.errors import EXIT_INCOMPLETE

HELP = "run one engine and save every value it computes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    side = parser.add_mutually_exclusive_group()
    side.add_argument("--reference", action="store_true", help="capture the reference (default: the candidate)")
    side.add_argument("--candidate", default="c", metavar="KIND[:ARGUMENT]", help="the engine to capture (default: c)")
    options.add_capture(parser)
    options.add_sampling(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="TRACE.h5", help="the trace to write")
    options.add_hash_only(parser, "keep of every value its hash and a sketch alone: some hundred bytes a value")
    parser.add_argument(
        "--tokens-of", type=Path, metavar="TRACE.h5", help="drive the reference with the tokens of this trace"
    )


def run(args: argparse.Namespace) -> int:
    spec = options.spec(args)

    from firstbad import session
    from firstbad.progress import progress
    from firstbad.trace import open_trace

    session.output_folder(args.output.parent)
    tokens, unfinished = None, False
    if args.tokens_of is not None:
        with open_trace(args.tokens_of) as trace:
            tokens = tuple(int(t) for t in trace.outputs.get("tokens", ()))
            unfinished = not trace.complete
    with progress("firstbad") as tell:
        tell("loading")
        room, prepared = session.prepare(spec)
        wishes = options.capture_options(args)
        if args.reference:
            tell("reference")
            wishes = replace(wishes, unfinished=unfinished)
            output = session.capture_reference(room, prepared, args.output, wishes, tokens)
        else:
            tell("candidate")
            output = session.capture_candidate(args.candidate, prepared, args.output, wishes)
    print(f"{args.output}: {len(output.tokens)} tokens, {output.text!r}")
    if not output.complete:
        print(output.death)
        return EXIT_INCOMPLETE
    return 0
