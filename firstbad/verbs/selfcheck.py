"""selfcheck: a candidate against itself, with no reference; names the first value that breaks an equality."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from firstbad import options

if TYPE_CHECKING:
    from firstbad.selfcheck import Check
    from firstbad.theme import Theme

HELP = "run a candidate on related inputs and name the first value that should be equal and is not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_candidate(parser)
    options.add_capture(parser)
    parser.add_argument(
        "--repeats", type=options.positive, default=3, metavar="N", help="runs that must be the same bits"
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    spec = options.spec(args)

    from dataclasses import asdict

    from firstbad import selfcheck, session
    from firstbad.errors import EXIT_DIVERGED, EXIT_MATCH
    from firstbad.progress import progress
    from firstbad.result import plain
    from firstbad.theme import theme_for

    with progress("firstbad") as tell, tempfile.TemporaryDirectory(prefix="firstbad-selfcheck-") as folder:
        _, prepared = session.prepare(spec)
        wishes = options.capture_options(args)
        checks = selfcheck.selfcheck(args.candidate, prepared, Path(folder), wishes, repeats=args.repeats, tell=tell)
    bad = [check for check in checks if check.first]
    if args.json:
        print(json.dumps(plain([asdict(check) for check in checks]), indent=1))
    else:
        theme = theme_for(sys.stdout)
        for check in checks:
            print(_line(check, theme))
        made = sum(not check.impossible for check in checks)
        said = f"{len(bad)} of {made} checks failed" if bad else f"all {made} checks that could be made hold"
        print(
            (theme.bad(f"✗ {said}") if bad else theme.good(f"✓ {said}")) + f"; {len(checks) - made} could not be made"
        )
    return EXIT_DIVERGED if bad else EXIT_MATCH


def _line(check: Check, theme: Theme) -> str:
    label = check.name.ljust(24)
    if check.first is not None:
        f = check.first
        at = f", {f.file}:{f.line}" if f.file else ""
        apart = "not the same bits" if check.basis == "bits" else f"{f.error:.2g} apart, {f.limit:.2g} would be noise"
        return f"{theme.bad('✗ ' + label)} {theme.name(f.value)} ({f.step}{at}), {f.where}: {apart}; {check.detail}"
    if check.impossible:
        return f"{theme.dim('- ' + label)} not made: {check.impossible}"
    return f"{theme.good('✓ ' + label)} {check.compared} values, by {check.basis}"
