"""bisect: the first bad value with few and small captures, where a full one is too large or too slow."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from firstbad import options

HELP = "find the first bad value with a few partial captures"

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_candidate(parser)
    options.add_capture(parser)
    options.add_output(parser)
    options.add_hash_only(parser, "leave traces with hashes and sketches alone when the search is over")
    group = parser.add_argument_group("search")
    group.add_argument(
        "--budget",
        type=size,
        metavar="BYTES",
        help="what one run may store: 200M, or 2%% of a full capture (default: the cuts, then whole segments)",
    )
    group.add_argument("--one-value", action="store_true", help="for an engine that can give one value a run")
    group.add_argument(
        "--cause-budget", type=options.seconds, default=10.0, metavar="SECONDS", help="search for the cause of a fault"
    )


def size(text: str) -> Callable[[float], float]:
    """A number of bytes, or a share of a full capture: a function of the bytes of a full capture."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:(%)|([kMGkmg]?)i?B?)", text)
    number = float(found[1]) if found else 0.0
    if found is None or number <= 0:
        raise argparse.ArgumentTypeError(f"`{text}` is no size: give bytes (2000000, 200M, 1.5G) or a share (2%)")
    if found[2]:
        return lambda full: full * number / 100
    bytes_ = number * _UNITS[(found[3] or "").lower()]
    return lambda _full: bytes_


def run(args: argparse.Namespace) -> int:
    spec = options.spec(args)

    from firstbad import bisect
    from firstbad.progress import progress
    from firstbad.verbs._answer import answer

    with progress("firstbad") as tell:
        comparison = bisect.run(
            spec,
            args.candidate,
            args.output,
            options.capture_options(args),
            budget=args.budget,
            one_value=args.one_value,
            cause_budget=args.cause_budget,
            command=args.typed,
            tell=tell,
        )
    return answer(comparison.result, args.json)
