"""align: say which value of a candidate's trace is which value of the reference's, and write it down as a map."""

from __future__ import annotations

import argparse
from pathlib import Path

from firstbad import options

HELP = "match the values of two traces, and write what was found as a map"

SHOWN = 40
"""Lines of each list; --all shows the rest."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, metavar="REFERENCE.h5")
    parser.add_argument("candidate", type=Path, metavar="CANDIDATE.h5")
    options.add_map(parser)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the map, to be corrected and given to --map")
    parser.add_argument("--all", action="store_true", help="every pair and every value left over")


def run(args: argparse.Namespace) -> int:
    from firstbad import session
    from firstbad.alignment import Unmatched, align
    from firstbad.mapfile import save_map
    from firstbad.trace import open_trace

    with open_trace(args.reference) as reference, open_trace(args.candidate) as candidate:
        room, prepared = session.prepare(session.spec_of(reference))
        found = align(
            reference.graph,
            candidate.graph,
            reference.array,
            candidate.array,
            executor=room.executor(prepared),
            mapped=options.mapped(args),
        )
    other = [p for p in found.pairs if p.how != "name" or p.layout.words]
    lines = [
        f"{p.candidate.step}: {p.candidate.name} = {p.reference.name}"
        f" ({p.how}{', ' + p.layout.words if p.layout.words else ''})"
        for p in other
    ]

    def left(unmatched: Unmatched) -> str:
        guess = f"; closest: {unmatched.closest}" if unmatched.closest else ""
        return f"{unmatched.value.step}: {unmatched.value.name}: {unmatched.reason}{guess}"

    print(f"{len(found.pairs)} values aligned, {len(found.pairs) - len(other)} of them by name and as they are")
    _list(lines, args.all)
    for side, many in (("candidate", found.only_candidate), ("reference", found.only_reference)):
        print(f"{len(many)} values of the {side} have no partner")
        _list([left(u) for u in many], args.all)
    if args.write is not None:
        save_map(found, args.write)
        print(f"written: {args.write}")
    return 0


def _list(lines: list[str], everything: bool) -> None:
    for line in lines if everything else lines[:SHOWN]:
        print(f"  {line}")
    if len(lines) > SHOWN and not everything:
        print(f"  ... {len(lines) - SHOWN} more: --all shows them")
