"""diff: run both engines on one input, compare them, and name the first value that is wrong given its own inputs."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from firstbad import options

if TYPE_CHECKING:
    from firstbad.evidence import Wanted

HELP = "run a candidate and the reference side by side and name the first bad value"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_candidate(parser)
    options.add_capture(parser)
    options.add_sampling(parser)
    options.add_output(parser)
    options.add_map(parser)
    options.add_profile(parser)
    parser.add_argument(
        "--budget", type=options.seconds, default=10.0, metavar="SECONDS", help="search for the cause of a fault"
    )
    group = parser.add_argument_group("proofs")
    group.add_argument(
        "--confirm",
        nargs="?",
        const="",
        metavar="VALUES",
        help="put the reference's value in the place of each fault's (or of these: value or step/value, by commas) and "
        "see the candidate heal; apply the cause to the reference and see it break alike",
    )
    group.add_argument(
        "--substitute", action="store_true", help="run once more with every value replaced by the reference's"
    )
    group.add_argument(
        "--allocations", action="store_true", help="run the C engine again with poisoned and never-reused buffers"
    )
    group.add_argument(
        "--repeat",
        type=options.positive,
        default=1,
        metavar="N",
        help="run the candidate N times and name the first value that differs between runs",
    )


def wanted(args: argparse.Namespace) -> Wanted:
    from firstbad.evidence import Wanted

    patterns = None if args.confirm is None else tuple(p for p in args.confirm.split(",") if p)
    return Wanted(patterns, args.substitute, args.allocations, args.repeat)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    spec = options.spec(args)  # before anything heavy is imported

    from firstbad import session
    from firstbad.progress import progress
    from firstbad.verbs._answer import answer

    with progress("firstbad") as tell:
        comparison = session.diff(
            spec,
            args.candidate,
            args.output,
            options.capture_options(args),
            budget=args.budget,
            mapped=options.mapped(args),
            profile=options.profile(args),
            command=args.typed,
            started=started,
            wanted=wanted(args),
            tell=tell,
        )
    return answer(comparison.result, args.json)
