"""accept: make or renew the baselines of the gate, or waive one known fault; shows what would change, then writes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from firstbad import options
from firstbad.errors import EXIT_DIVERGED, UsageError
from firstbad.verbs.gate import add_cases, configuration

HELP = "make or renew the baselines of the gate, or waive a known fault until a date"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cases(parser)
    parser.add_argument(
        "--repeat", type=options.positive, default=3, metavar="N", help="clean runs to learn from (default: 3)"
    )
    parser.add_argument("--yes", action="store_true", help="write without asking")
    parser.add_argument("-o", "--output", type=Path, default=Path("firstbad-out"), metavar="DIR", help="output folder")
    waive = parser.add_argument_group("waive a fault, run nothing")
    waive.add_argument("--fault", metavar="NAME", help="the guilty value, or a pattern with *")
    waive.add_argument("--reason", metavar="TEXT", help="why it is accepted; shown in every run")
    waive.add_argument("--until", metavar="DATE", help="the last day on which it is, as 2026-12-31")


def run(args: argparse.Namespace) -> int:
    for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
        if os.environ.get(name, "").lower() not in ("", "0", "false"):
            raise UsageError(f"accept does not run in CI (${name} is set): accept where you work, and commit the files")

    from firstbad.config import select

    config = configuration(args)
    cases = select(config, args.cases)
    if args.fault or args.reason or args.until:
        return _waive(args, config.baselines, args.cases or ["*"])

    from firstbad.accept import propose, write
    from firstbad.gate import unused
    from firstbad.progress import progress
    from firstbad.theme import theme_for

    with progress("firstbad accept") as tell:
        proposals = propose(
            config, cases, args.output, repeat=args.repeat, inputs=args.inputs, jobs=args.jobs, tell=tell
        )
    theme = theme_for(sys.stdout)
    for proposal in proposals:
        if proposal.new is None:
            print(f"{theme.bad('✗')} {theme.name(proposal.case.name)}  is not clean: mend it, or waive the fault")
            for finding in proposal.refused:
                print(f"  {theme.bad(finding.kind.ljust(11))}{finding.message}")
                if finding.cause:
                    print(f"  {theme.dim('cause'.ljust(11))}{finding.cause}")
            continue
        state = "would change" if proposal.changed else "is as it was"
        print(f"{theme.good('✓')} {theme.name(proposal.case.name)}  {state}: {_relative(proposal.path)}")
        for line in proposal.changes():
            print(f"  {line}")
        for note in proposal.notes:
            print(f"  {theme.dim('note'.ljust(11))}  {note}")
    for name in unused(config):
        print(f"{theme.warn('unused')}  the baseline {name} belongs to no case: delete it")
    wanted = [proposal for proposal in proposals if proposal.changed]
    if wanted and not args.yes and not _agreed(len(wanted)):
        print("nothing was written; with --yes it is")
        return 0
    for proposal in wanted:
        write(proposal)
        print(f"wrote {_relative(proposal.path)}")
    return EXIT_DIVERGED if any(proposal.new is None for proposal in proposals) else 0


def _agreed(count: int) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input(f"write {count} baseline{'s' if count > 1 else ''}? [y/N] ").strip().lower() in ("y", "yes")


def _waive(args: argparse.Namespace, folder: Path, cases: list[str]) -> int:
    from firstbad import waivers

    missing = [f"--{name}" for name in ("fault", "reason", "until") if not getattr(args, name)]
    if missing:
        raise UsageError(f"a waiver needs a fault, a reason and a date: give {', '.join(missing)} too")
    until = waivers.day(args.until).isoformat()
    new = tuple(waivers.Waiver(case, args.fault, args.reason, until) for case in cases)
    if any(waiver.expired(waivers.today()) for waiver in new):
        raise UsageError(f"{until} is over: give a day to come with --until")
    kept = tuple(w for w in waivers.read(folder) if (w.case, w.fault) not in {(n.case, n.fault) for n in new})
    path = waivers.write(folder, (*kept, *new))
    print(f"{args.fault} is waived until {until} in {', '.join(cases)}: wrote {_relative(path)}")
    return 0


def _relative(path: Path) -> str:
    return os.path.relpath(path)
