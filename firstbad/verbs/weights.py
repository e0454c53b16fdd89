"""weights: two files of one model, tensor by tensor: which differs, and by what."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from firstbad.errors import EXIT_DIVERGED, EXIT_MATCH

HELP = "compare converted weights with the original's: which tensor differs, and by what"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, meaning in (("original", "the weights that are right"), ("converted", "those to be checked")):
        parser.add_argument(name, help=f"{meaning}: a GGUF file, whisper.cpp's file, a folder or a model's name")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="equal tensors too")


def run(args: argparse.Namespace) -> int:
    from firstbad.converted import checked, load_weights

    findings = list(checked(load_weights(args.original), load_weights(args.converted)))
    wrong = [f for f in findings if not f.ok]
    if args.json:
        print(json.dumps({"tensors": [asdict(f) for f in findings], "wrong": len(wrong)}))
    else:
        width = max((len(f.name) for f in findings), default=0)
        for f in findings:
            if args.all or not f.equal:
                print(f"{'✓' if f.ok else '✗'} {f.name.ljust(width)}  {f.what}")
        equal = sum(f.equal for f in findings)
        print(
            f"{len(findings)} tensors: {equal} equal, {len(findings) - equal - len(wrong)} within their format, "
            f"{len(wrong)} wrong: {Path(args.original).name} against {Path(args.converted).name}"
        )
    return EXIT_DIVERGED if wrong else EXIT_MATCH
