"""Runs the zoo, prints its tables and writes result.json and RESULTS.md: python run.py [--quick] [--model micro] ...

What was said about each fault is kept in the output folder, so a run that was stopped goes on where it was; with
`--again` everything is run anew. `--quick` takes every tenth fault and clean run on the small model.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broken import HERE, number
from page import page, table
from score import judged, tables
from zoo import LANGUAGE, MODELS, Zoo

import firstbad

QUICK = 10  # every n-th


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    every = [e for name in ("faults", "held_out", "clean") for e in read(HERE / f"{name}.json")]
    entries = [e for e in every if any(fnmatch.fnmatch(e["id"], pattern) for pattern in args.only or ["*"])]
    entries = entries[:: QUICK if args.quick else args.every]
    models = args.model or (["micro"] if args.quick else list(MODELS))
    rows = [row for model in models for row in run(model, entries, args)]
    if not rows:
        print("no fault of that name", file=sys.stderr)
        return 2
    data = {"models": models, "quick": args.quick, "firstbad": firstbad.__version__, **tables(rows), "rows": rows}
    print("\n".join(table(data)))
    for row in rows:
        if (row["kind"] == "clean" and row["false_alarm"]) or (
            row["kind"] == "fault" and row["visible"] and not (row["exact"] and row["cause"] == "right")
        ):
            print(said(row))
    args.output.mkdir(parents=True, exist_ok=True)
    whole = not (args.quick or args.model or args.only or args.every > 1)
    where = HERE if args.publish or whole else args.output
    (where / "result.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    (where / "RESULTS.md").write_text(page(data), "utf-8")
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="plant every fault of the zoo and see what firstbad says")
    parser.add_argument("--quick", action="store_true", help="a fixed tenth, on the small model")
    parser.add_argument("--model", action="append", choices=list(MODELS), help="micro (random weights) or tiny.en")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="faults of this name: 'gelu.*'")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th")
    parser.add_argument("--again", action="store_true", help="run what was run before")
    parser.add_argument("--score", action="store_true", help="run nothing: judge what was said before")
    parser.add_argument("--publish", action="store_true", help="of a part too: write result.json and RESULTS.md here")
    parser.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="search for a cause")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/zoo"), metavar="DIR")
    return parser.parse_args(argv)


def read(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text("utf-8"))) if path.is_file() else []


def run(model: str, entries: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every entry of one model, judged."""
    entries = [e for e in entries if e.get("on", model if model not in LANGUAGE else "") == model]
    folder = args.output / model
    zoos: dict[int | None, Zoo] = {}
    rows = []
    for n, entry in enumerate(entries):
        seed = entry.get("seed")
        if seed is not None and model != "micro":
            continue
        path = folder / f"{entry['id'].replace(':', '_')}.{digest(entry)}.json"
        if path.is_file() and (args.score or not args.again):
            found = json.loads(path.read_text("utf-8"))
        elif args.score:
            continue
        else:
            if seed not in zoos:
                zoos[seed] = Zoo.of(model, folder if seed is None else folder / f"seed-{seed}", args.budget, seed)
            found = zoos[seed].run(entry)
            path.write_text(json.dumps(found) + "\n", "utf-8")
        config = found.get("config") or {}
        rows.append(judged(entry, found, lambda x, config=config: number(x, config)))
        print(f"[{model} {n + 1}/{len(entries)}] {said(rows[-1])}", file=sys.stderr, flush=True)
    return rows


def digest(entry: Mapping[str, Any]) -> str:
    """Of what is run, not of what is expected."""
    what = {k: entry.get(k) for k in ("edits", "engine", "argument", "cflags", "threads", "poison", "seed")}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]


def said(row: Mapping[str, Any]) -> str:
    """One line about one row."""
    if row["kind"] == "clean":
        verdict = "FALSE ALARM" if row["false_alarm"] else "clean"
        return f"{verdict} {row['id']} {row['seconds']} s {' '.join(row['named'])}"
    seen = "" if row["visible"] else " (below noise)"
    if row["verdict"] not in ("match", "diverged", "incomplete"):
        return f"{row['id']}{seen}: TOOL FAILED: {row['verdict']}"
    exact = (
        "exact"
        if row["exact"]
        else f"NOT EXACT: {', '.join(row['named']) or 'nothing'} for {', '.join(row['expected'])}"
    )
    return f"{row['id']}{seen}: {exact}, cause {row['cause']}, {row['seconds']} s"


if __name__ == "__main__":
    sys.exit(main())
