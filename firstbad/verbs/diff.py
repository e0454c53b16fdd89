"""diff: run both engines on one input, compare them, and name the first value that is wrong given its own inputs."""

from __future__ import annotations

import argparse
import sys
import time

from firstbad import options

HELP = "run a candidate and the reference side by side and name the first bad value"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_candidate(parser)
    options.add_capture(parser)
    options.add_output(parser)
    options.add_map(parser)
    parser.add_argument(
        "--budget", type=options.seconds, default=10.0, metavar="SECONDS", help="search for the cause of a fault"
    )


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    spec = options.spec(args)  # before anything heavy is imported

    from firstbad import session
    from firstbad.progress import progress
    from firstbad.rooms import load
    from firstbad.theme import theme_for

    with progress("firstbad") as tell:
        comparison = session.diff(
            spec,
            args.candidate,
            args.output,
            options.capture_options(args),
            budget=args.budget,
            mapped=options.mapped(args),
            command=options.command_line(),
            started=started,
            tell=tell,
        )
    result = comparison.result
    if args.json:
        print(result.to_json())
    else:
        print(load("reports", "terminal").render(result, theme_for(sys.stdout)))
    return result.exit_code
