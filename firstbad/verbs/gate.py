"""gate: run the cases of firstbad.toml and compare them with their baselines; for CI, and for `git bisect run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from firstbad import options

if TYPE_CHECKING:
    from firstbad.config import Config

HELP = (
    "run the cases of firstbad.toml against their committed baselines: fails on a fault or a worse error, not on noise"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cases(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("firstbad-out"), metavar="DIR", help="output folder")
    parser.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="NAME[:FILE]",
        help="also write junit, sarif, gitlab, github, history or your own .py file; several may be given",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def add_cases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases to run (default: all)")
    parser.add_argument(
        "--config", type=Path, default=Path("firstbad.toml"), metavar="FILE", help="the cases (default: firstbad.toml)"
    )
    parser.add_argument("--model", default="", metavar="MODEL", help="another model than the cases name")
    parser.add_argument("--candidate", default="", metavar="KIND[:ARGUMENT]", help="another candidate")
    parser.add_argument("--baselines", type=Path, metavar="DIR", help="another folder of baselines")
    parser.add_argument(
        "--inputs", type=options.positive, metavar="N", help="so many inputs only (default: the case's)"
    )
    parser.add_argument(
        "--jobs", type=options.positive, metavar="N", help="trials at a time (default: one for each core)"
    )


def configuration(args: argparse.Namespace) -> Config:
    """What the file says, and the options that change it."""
    from firstbad.config import changed, load

    asked = args.model or args.candidate
    config = None if asked and not args.config.is_file() else load(args.config)
    return changed(config, args.config, args.model, args.candidate, args.baselines)


def run(args: argparse.Namespace) -> int:
    from firstbad.config import select
    from firstbad.gate import gate
    from firstbad.gate_reports import room_of, write_reports
    from firstbad.progress import progress
    from firstbad.rooms import load as room
    from firstbad.theme import theme_for

    config = configuration(args)
    cases = select(config, args.cases)
    for word in args.report:
        room_of(word)
    with progress("firstbad gate") as tell:
        result = gate(
            config,
            cases,
            args.output,
            inputs=args.inputs,
            jobs=args.jobs,
            command=args.typed,
            tell=tell,
        )
    written = write_reports(result, args.report, args.output)
    if args.json:
        print(result.to_json())
    else:
        print(room("reports", "gate").render(result, theme_for(sys.stdout)))
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    return result.exit_code
