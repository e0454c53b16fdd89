"""history: how each value's error went over the runs of a gate, as text, or as a picture."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from firstbad import options
from firstbad.errors import UsageError

HELP = "show or plot how each value's error went over the commits, from the gate's history"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="HISTORY.jsonl", help="from `firstbad gate --report history:FILE`")
    parser.add_argument("--case", default="", metavar="NAME", help="this case (default: the first in the file)")
    parser.add_argument("--value", default="", metavar="PATTERN", help="only values whose name holds or matches this")
    parser.add_argument("--count", type=options.positive, default=12, metavar="N", help="so many values (default: 12)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="draw into this .png, .svg or .pdf")


def run(args: argparse.Namespace) -> int:
    from firstbad.arguments import did_you_mean
    from firstbad.history import plot, read, series, spark

    points, bad = read(args.file)
    cases = list(dict.fromkeys(point.case for point in points))
    if not cases:
        raise UsageError(f"`{args.file}` holds no run of a gate: write one with `firstbad gate --report history:FILE`")
    case = args.case or cases[0]
    if case not in cases:
        raise UsageError(f"no case `{case}` in `{args.file}`: {did_you_mean(case, cases) or ', '.join(cases)}")
    points = [point for point in points if point.case == case]
    found = series(points, args.value)
    if not found:
        raise UsageError(f"no value `{args.value}` in `{args.file}`: see all of them with --count 1000")
    if args.output is not None:
        plot(points, args.output, args.value, args.count)
        print(args.output)
        return 0
    verdicts = "".join(
        "✗" if point.verdict == "failed" else "✓" if point.verdict == "passed" else "?" for point in points
    )
    print(f"{case}, {len(points)} runs, {points[0].commit[:7]} to {points[-1].commit[:7]}; errors in noise floors")
    width = max(map(len, list(found)[: args.count]))
    print(f"{'verdict':{width}}  {verdicts}")
    for name, numbers in list(found.items())[: args.count]:
        known = [x for x in numbers if not math.isnan(x)]
        print(f"{name:{width}}  {spark(numbers)}  {min(known):.3g} to {max(known):.3g}, now {known[-1]:.3g}")
    if len(found) > args.count:
        print(f"{len(found) - args.count} more values, which vary less: --count {len(found)}")
    if bad:
        print(f"{bad} lines of the file are no runs and were left out")
    return 0
