"""Bisect against a full capture on the faults of the zoo: the same answer, in how many runs, for which share of bytes.

    python tests/bench/bisecting.py [--every N] [--only PATTERN] [--model micro|tiny.en]

Leaves out causes (both ways hand the same values to the same explainer) and faults that are no single C engine's.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "case_studies" / "fault_zoo"
sys.path.insert(0, str(ZOO))

from broken import Broken, broken  # noqa: E402 - the zoo is a folder of scripts
from zoo import Zoo  # noqa: E402 - the same folder of scripts

from firstbad import session  # noqa: E402 - after the path
from firstbad.alignment import align  # noqa: E402 - after the path
from firstbad.bisect import Both  # noqa: E402 - after the path
from firstbad.bisection import Search, bisect  # noqa: E402 - after the path
from firstbad.cuts import nbytes  # noqa: E402 - after the path
from firstbad.halving import halve  # noqa: E402 - after the path
from firstbad.local import measure  # noqa: E402 - after the path
from firstbad.precision import as_candidate  # noqa: E402 - after the path
from firstbad.probes import c  # noqa: E402 - after the path
from firstbad.probes.plan import save  # noqa: E402 - after the path
from firstbad.search import flagged  # noqa: E402 - after the path
from firstbad.trace import open_trace  # noqa: E402 - after the path


@dataclass(frozen=True)
class Row:
    """One fault, found both ways."""

    id: str
    full: tuple[str, ...]  # values that a full capture blames, first site of each
    bisected: tuple[str, ...]
    reaches: bool  # the last value of some step is damaged
    runs: int
    share: float  # of the bytes of the full capture
    full_capture: bool
    seconds: float

    @property
    def same(self) -> bool:
        """Both name the same first value (and where it is nothing, nothing)."""
        return self.full[:1] == self.bisected[:1]


@dataclass(frozen=True)
class Engine(Both):
    """The zoo's broken engine in the place of an adapter."""

    made: Broken

    def candidate(self, path: Path, want: tuple[str, ...], stop: tuple[str, ...]) -> None:
        run(self.made, path, replace(self.options, want=None if want == ("*",) else want, stop=stop))


def run(made: Broken, path: Path, options: Any) -> Any:
    argument = path.with_suffix(".plan")
    save(made.plan, argument)
    output = c.capture(str(argument), made.prepared, path, options)
    argument.unlink()
    return output


def row(zoo: Zoo, entry: Mapping[str, Any], folder: Path) -> Row:
    made = broken(c.plan_for("", zoo.prepared), zoo.prepared, entry["edits"])
    options = replace(zoo.options, cflags=tuple(entry.get("cflags", "").split()))
    path = folder / "full.h5"
    output = run(made, path, options)
    executor = zoo.room.executor(zoo.prepared)
    with open_trace(zoo.reference(output)) as ours, open_trace(path) as theirs:
        alignment = align(ours.graph, theirs.graph, ours.array, theirs.array)
        judge = as_candidate(executor, ours.graph, theirs.graph, alignment)
        local = measure(ours, theirs, alignment, judge)
        full_bytes = sum(nbytes(v) for v in theirs.graph.values if v.kind == "value" and v.dataset)
        last = {j.step: j for j in local.values if "float" in j.pair.reference.dtype}
    full = tuple(f"{j.step}/{j.name}" for j in flagged(local.values))
    started = time.monotonic()
    kind = Engine(zoo.room, zoo.prepared, "c", options, executor, made)
    for stale in folder.glob("*.json"):
        stale.unlink()
    state = Search(kind, folder, None, {"id": entry["id"]}, lambda _: None)
    found = bisect(state)
    path.unlink()
    return Row(
        entry["id"],
        full,
        tuple(f"{j.step}/{j.name}" for j in found),
        any(j.cumulative_bad for j in last.values()),
        len(state.runs),
        state.bytes / full_bytes,
        state.full_capture,
        time.monotonic() - started,
    )


def entries(only: str, every: int) -> Iterator[Mapping[str, Any]]:
    singles = [
        e
        for e in json.loads((ZOO / "faults.json").read_text("utf-8"))
        if e.get("group", "single") == "single"
        and e.get("engine", "c") == "c"
        and "on" not in e  # of another model
        and fnmatch.fnmatch(e["id"], only)
    ]
    yield from singles[::every]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    wrong = [r for r in rows if r.full]
    visible = [r for r in wrong if r.reaches]
    shares = sorted(r.share for r in wrong) or [0.0]

    def part(some: Sequence[Row], of: Sequence[Row]) -> float:
        return len(some) / max(1, len(of))

    return {
        "faults": len(rows),
        "wrong given a full capture": len(wrong),
        "reach the output": len(visible),
        "same answer": part([r for r in wrong if r.same], wrong),
        "same answer, of those that reach the output": part([r for r in visible if r.same], visible),
        "in two runs, of those that reach the output": part([r for r in visible if r.runs <= 2], visible),
        "most runs": max((r.runs for r in wrong), default=0),
        "full captures": sum(r.full_capture for r in rows),
        "share of bytes, median": statistics.median(shares),
        "share of bytes, most": shares[-1],
    }


def measured(model: str, only: str, every: int, tell: Callable[[str], object]) -> list[Row]:
    """Every fault that is asked for, both ways."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        zoo = Zoo.of(model, folder / "zoo", 0.0)
        work = folder / "work"
        session.output_folder(work)
        for entry in entries(only, every):
            try:
                rows.append(row(zoo, entry, work))
            except Exception as error:  # one fault must not end the table
                tell(f"{entry['id']}: {type(error).__name__}: {error}")
                continue
            r = rows[-1]
            mark = "same" if r.same else f"DIFFERENT: full {r.full[:3]}, bisected {r.bisected[:3]}"
            tell(
                f"{r.id}: {r.runs} runs, {r.share:.1%}{' FULL' if r.full_capture else ''}"
                f"{'' if r.reaches else ' (fades)'} {r.seconds:.1f} s {mark}"
            )
    return rows


def rows(quick: bool = False) -> Iterator[tuple[str, float, str, str]]:
    """What `make bench` puts into its table: every twelfth fault of the zoo (quick: every fortieth)."""
    goals = {
        "same answer": ">= 1",
        "in two runs, of those that reach the output": ">= 0.95",
        "most runs": "<= 3",
        "share of bytes, median": "<= 0.2",
        "share of bytes, most": "<= 0.4",
    }
    found = summary(measured("micro", "*", 40 if quick else 12, lambda _: None))
    yield from ((f"bisect: {name}", float(figure), "", goals.get(name, "")) for name, figure in found.items())
    yield from of_a_thousand(1 if quick else 5)


def of_a_thousand(faults: int = 5) -> Iterator[tuple[str, float, str, str]]:
    """The graph of a thousand ops and the planted faults of the tests: by a budget of bytes, and a value a run."""
    sys.path.insert(0, str(ROOT))
    from tests.firstbad import test_bisection as tests

    bench = tests.Bench(tests.Deep())
    ops = sum(v.kind == "value" for v in bench.outline().values)
    yield "bisect: values of the deep graph", float(ops), "", ""
    most = {"a budget of 2 % of the bytes": (0, 0.0), "one value a run": (0, 0.0)}
    right = 0
    for block, kind in tests.PLACES[:faults]:
        name, bench.fault = tests.fault_of(block, kind)
        for way, share, search in (
            ("a budget of 2 % of the bytes", 0.02, bisect),
            ("one value a run", None, halve),
        ):
            with tempfile.TemporaryDirectory() as folder:
                state = tests.search(bench, Path(folder), share)
                right += [j.name for j in search(state)] == [name]
                most[way] = max(most[way][0], len(state.runs)), max(most[way][1], state.bytes / state.full_bytes)
    yield "bisect: faults of the deep graph that both ways name", right / 2 / faults, "", ">= 1"
    for way, (runs, share) in most.items():
        goal = 4 if "budget" in way else math.log2(ops) + 3
        yield f"bisect: most runs with {way}", float(runs), "", f"<= {goal:.3g}"
        yield f"bisect: most bytes of all runs with {way}", share, "of a full capture", ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="*")
    parser.add_argument("--model", default="micro")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found_rows = measured(args.model, args.only, args.every, print)
    found = summary(found_rows)
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(
            json.dumps({"summary": found, "rows": [asdict(r) for r in found_rows]}, indent=1) + "\n", "utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
