"""`firstbad doctor`: says what this machine lacks, and the command that mends it; 0 where nothing needed is missing."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from firstbad.errors import EXIT_MATCH, EXIT_USAGE
from firstbad.progress import progress
from firstbad.theme import theme_for

HELP = "check compiler, packages, weights, GPU and disk, and say what to do for each lack"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("firstbad-out"), metavar="DIR", help="where runs will be written"
    )


def run(args: argparse.Namespace) -> int:
    from firstbad.doctor import checkup

    checks = []
    with progress("looking") as tell:
        for check in checkup(args.output):
            tell(check.name)
            checks.append(check)
    lacks = sum(check.state == "lack" for check in checks)
    if args.json:
        print(json.dumps([asdict(check) for check in checks]))
        return EXIT_USAGE if lacks else EXIT_MATCH

    theme = theme_for(sys.stdout)
    paint = {"ok": theme.good, "lack": theme.bad, "note": theme.dim}
    for check in checks:
        advice = f": {check.advice}" if check.advice else ""
        print(f"{paint[check.state](check.state.ljust(4))}  {check.name:13} {check.found}{theme.dim(advice)}")
    if lacks:
        print(
            theme.bad(f"{lacks} of {len(checks)} is missing" if lacks == 1 else f"{lacks} of {len(checks)} are missing")
        )
        return EXIT_USAGE
    print("nothing that firstbad needs is missing; next: firstbad diff --model whisper --audio YOUR.wav")
    return EXIT_MATCH
