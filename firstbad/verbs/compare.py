"""compare: two traces on disk, no engine needed; the reference's ops are replayed from what its trace recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

from firstbad import options

HELP = "compare two traces that were captured before"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, metavar="REFERENCE.h5")
    parser.add_argument("candidate", type=Path, metavar="CANDIDATE.h5")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder for result.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    options.add_map(parser)
    options.add_profile(parser)
    parser.add_argument(
        "--budget", type=options.seconds, default=10.0, metavar="SECONDS", help="search for the cause of a fault"
    )


def run(args: argparse.Namespace) -> int:
    from firstbad import session
    from firstbad.progress import progress
    from firstbad.verbs._answer import answer

    with progress("firstbad") as tell:
        comparison = session.compare_files(
            args.reference,
            args.candidate,
            args.output,
            budget=args.budget,
            mapped=options.mapped(args),
            profile=options.profile(args),
            command=args.typed,
            tell=tell,
        )
    return answer(comparison.result, args.json)
