"""report: render the result of an earlier diff or compare again, in any form; nothing is run and nothing replayed."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "render the result in an output folder: html, worksheet, md, png, svg"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("firstbad-out"), metavar="DIR", help="output folder of a diff"
    )
    parser.add_argument(
        "--report", default="html", metavar="KIND", help="html, worksheet, md, png, svg, or your own .py file"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to (default: into DIR)")


def run(args: argparse.Namespace) -> int:
    from firstbad.material import write_report

    print(write_report(args.folder, args.report, args.output))
    return 0
