"""lint: wiring faults of a plan with no run and no reference, or of one traced run by itself."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstbad.lint import Finding

HELP = "find wiring faults in a plan, or in one traced run, without a reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="PLAN.json|TRACE.h5", help="a plan of the C engine, or any trace")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON on stdout")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where there is a finding")


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from firstbad.errors import EXIT_DIVERGED, EXIT_MATCH
    from firstbad.theme import theme_for

    kind, findings = _findings(args.file)
    theme = theme_for(sys.stdout)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            step = f" ({finding.step})" if finding.step else ""
            print(f"{theme.warn(finding.rule)}{step}: {finding.text}")
        count = len(findings)
        said = f"{count} finding{'s' * (count != 1)} in the {kind}" if count else f"nothing to say against the {kind}"
        print(f"{theme.warn('! ' + said) if count else theme.good('✓ ' + said)} {args.file}")
    return EXIT_DIVERGED if findings and args.strict else EXIT_MATCH


def _findings(path: Path) -> tuple[str, tuple[Finding, ...]]:
    from firstbad.lint import lint_run
    from firstbad.rooms import load
    from firstbad.trace import open_trace

    if _is_hdf5(path):
        with open_trace(path) as trace:
            return "trace", lint_run(trace)
    return "plan", load("probes", "c").lint(str(path))


def _is_hdf5(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(8) == b"\x89HDF\r\n\x1a\n"
    except OSError:
        return False
