"""Runs the zoo, prints its tables and writes result.json and RESULTS.md: python run.py [--quick] [--model micro] ...

What was said about each fault is kept in the output folder, so a run that was stopped goes on where it was; with
`--again` everything is run anew. `--quick` takes every tenth fault and clean run on the small model. Ends with 1 where
a rate is below what is promised (score.short_of).
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from broken import HERE, number
from page import page, table
from score import judged, short_of, tables
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
    short = short_of(rows)
    print("\n".join(short), file=sys.stderr)
    return 1 if short else 0


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
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes side by side")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/zoo"), metavar="DIR")
    return parser.parse_args(argv)


def read(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text("utf-8"))) if path.is_file() else []


def run(model: str, entries: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every entry of one model, judged."""
    entries = [e for e in entries if e.get("on", model if model not in LANGUAGE else "") == model]
    entries = [e for e in entries if e.get("seed") is None or model == "micro"]
    kept = {n: kept_in(args.output / model, e) for n, e in enumerate(entries)}
    missing = [n for n, path in kept.items() if not args.score and (args.again or not path.is_file())]
    with closing(answers(model, [entries[n] for n in missing], args)) as found:
        for n, said_of in zip(missing, found, strict=True):
            kept[n].write_text(json.dumps(said_of) + "\n", "utf-8")
            print(f"[{model} {n + 1}/{len(entries)}] {said(row_of(entries[n], said_of))}", file=sys.stderr, flush=True)
    there = [(e, kept[n]) for n, e in enumerate(entries) if kept[n].is_file()]
    return [row_of(e, json.loads(path.read_text("utf-8"))) for e, path in there]


def answers(model: str, entries: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is said about each entry, in order; a process a worker, each with a folder of its own."""
    folder, workers = args.output / model, min(args.workers, len(entries))
    if workers <= 1:
        _begin(model, folder, args.budget)
        yield from map(_one, entries)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _begin, (model, folder, args.budget, True)) as pool:
        yield from pool.imap(_one, entries)


_WORK: dict[str, Any] = {}  # of this process: model, folder, budget, and a zoo for each seed


def _begin(model: str, folder: Path, budget: float, beside: bool = False) -> None:
    own = folder / multiprocessing.current_process().name if beside else folder
    _WORK.update(model=model, folder=own, budget=budget, beside=beside, zoos={})


def _one(entry: Mapping[str, Any]) -> dict[str, Any]:
    seed, zoos, folder = entry.get("seed"), _WORK["zoos"], _WORK["folder"]
    if seed not in zoos:
        own = folder if seed is None else folder / f"seed-{seed}"
        zoos[seed] = Zoo.of(_WORK["model"], own, _WORK["budget"], seed)
        if _WORK["beside"]:
            torch.set_num_threads(1)  # the workers share the cores
    return dict(zoos[seed].run(entry))


def row_of(entry: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    config = found.get("config") or {}
    return judged(entry, found, lambda x: number(x, config))


def kept_in(folder: Path, entry: Mapping[str, Any]) -> Path:
    """Where what was said about an entry is kept."""
    return folder / f"{entry['id'].replace(':', '_')}.{digest(entry)}.json"


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
