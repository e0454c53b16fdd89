"""Whether what was said is right: records against expectations, and the counts of it.

A fault counts as exact where the values named are the ones expected, all of them and no others; its cause as right
where kind and detail are (one of equally good edits may be the truth), as unknown where nothing is claimed, else as
wrong. Only faults that change a value beyond noise count, by the zoo's own judgement (rivals.shows); the others may be
found or not. Leaves out text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import rivals

COUNTS = ("faults", "exact", "cause_right", "cause_wrong", "unknown", "clean", "false_alarms")

HELD_OUT = "held-out"
"""The group that is counted apart from all others."""

WIRING = ("rewire", "move", "cache", "weight", "no_bias")
"""Edits that lint may see in a plan; another kernel is another program, which no plan shows."""

NEAR = 0.02
"""Relative distance at which a number found counts as the one planted."""


def judged(entry: Mapping[str, Any], said: Mapping[str, Any], numbers: Any) -> dict[str, Any]:
    """One record, judged. `numbers`: [dim, power] → number, for this model."""
    named = [f["value"] for f in said["faults"]]
    row = {
        "id": entry["id"],
        "model": said["model"],
        "engine": entry.get("engine", "c"),
        "named": named,
        "seconds": said["seconds"],
        "verdict": said["verdict"],
        "sources": said.get("sources", ""),
        "rivals": said["rivals"],
        "lint": said["lint"],
    }
    if "what" in entry:
        return {
            **row,
            "kind": "clean",
            "class": entry["what"],
            "false_alarm": bool(named) or said["verdict"] != "match",
        }
    expected = list(dict.fromkeys(s["value"] for s in entry["shows"]))
    causes = {f["value"]: f["cause"] for f in said["faults"]}
    verdicts = [_cause(s["causes"], causes[s["value"]], said, numbers) for s in entry["shows"] if s["value"] in causes]
    return {
        **row,
        "kind": "fault",
        "class": entry["class"],
        "operator": entry["operator"],
        "group": entry["group"],
        "visible": bool(said["shows"]),
        "expected": expected,
        "exact": sorted(set(named)) == sorted(set(expected)),
        "first": bool(named) and named[0] in expected,
        "cause": _together(verdicts, len(entry["shows"])),
        "extra": sorted(set(named) - set(expected)),
        "first_by": {rule: value in expected for rule, value in said["rivals"].items()},
        "wired": any(edit[0] in WIRING for edit in entry["edits"]),
        "linted": sorted(
            {rule for rule, *names in said["lint"]["plan"] if set(names) & set(expected)}
            | ({"predicted"} if set(said["lint"]["predicted"]) & set(expected) else set())
        ),
    }


def _together(verdicts: Sequence[str], wanted: int) -> str:
    """Of several values: right where all are; wrong where any is."""
    if "wrong" in verdicts:
        return "wrong"
    return "right" if len(verdicts) == wanted and set(verdicts) == {"right"} else "unknown"


def _cause(
    needed: Sequence[Sequence[Mapping[str, Any]]], cause: Mapping[str, Any], said: Mapping[str, Any], numbers: Any
) -> str:
    if cause["kind"] == "unknown":
        return "unknown"
    claims = [cause, *cause["alternatives"]]
    if all(any(_matches(truth, claim, said, numbers) for truth in options for claim in claims) for options in needed):
        return "right"
    return "wrong"


def _matches(truth: Mapping[str, Any], claim: Mapping[str, Any], said: Mapping[str, Any], numbers: Any) -> bool:
    """One claim against one truth; a claim of two edits may hold it in either."""
    parts = [claim, *({"kind": e["kind"], "detail": e} for e in claim["detail"].get("and", ()))]
    return any(
        part["kind"] in truth["kinds"] and _holds(truth["words"], part["detail"], said, numbers) for part in parts
    )


def _holds(words: Iterable[Any], detail: Mapping[str, Any], said: Mapping[str, Any], numbers: Any) -> bool:
    leaves = list(_leaves({k: v for k, v in detail.items() if k != "and"}))
    texts = [str(leaf).lower() for leaf in leaves if isinstance(leaf, str)]
    found = [float(leaf) for leaf in leaves if isinstance(leaf, int | float) and not isinstance(leaf, bool)]
    for word in words:
        if word is True:
            good = True in [leaf for leaf in leaves if isinstance(leaf, bool)]
        elif word == "$there":
            good = any(name.lower() in texts for name in said.get("there", ()))
        elif isinstance(word, str):
            good = any(word.lower() in text for text in texts)
        else:
            wanted = numbers(word)
            # a gain near 1 must be near in what it adds: 1.01 is not 1.001
            size = 10 * NEAR * abs(wanted - 1) if 0 < abs(wanted - 1) < 0.1 else NEAR * abs(wanted)
            good = any(abs(x - wanted) <= size for x in found)
        if not good:
            return False
    return True


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, Mapping):
        for key, item in data.items():
            if key != "of":  # the shape, not what is wrong
                yield key
                yield from _leaves(item)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from _leaves(item)
    elif data is not None:
        yield data


def counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The counts that result.json has, of any selection of rows."""
    rows = list(rows)
    faults = [r for r in rows if r["kind"] == "fault" and r["visible"]]
    clean = [r for r in rows if r["kind"] == "clean"]
    hidden = [r for r in rows if r["kind"] == "fault" and not r["visible"]]
    return {
        "faults": len(faults),
        "exact": sum(r["exact"] for r in faults),
        "cause_right": sum(r["cause"] == "right" for r in faults),
        "cause_wrong": sum(r["cause"] == "wrong" for r in faults),
        "unknown": sum(r["cause"] == "unknown" for r in faults),
        "clean": len(clean),
        "false_alarms": sum(r["false_alarm"] for r in clean),
        "hidden": len(hidden),
        "hidden_exact": sum(r["exact"] for r in hidden),
        "hidden_wrong": sum(bool(r["extra"]) for r in hidden),
        "wired": sum(r["wired"] for r in faults),
        "linted": sum(r["wired"] and bool(r["linted"]) for r in faults),
        "lint_alarms": sum(bool(r["lint"]["plan"]) for r in clean),
        **{f"by_{rule}": sum(r["first_by"][rule] for r in faults) for rule in rivals.RULES},
        **{f"clean_{rule}": sum(bool(r["rivals"][rule]) for r in clean) for rule in rivals.RULES},
    }


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts in all, and by class, operator, group, engine and model."""
    known = [r for r in rows if r.get("group") != HELD_OUT]
    data: dict[str, Any] = {"all": counts(known), "held_out": counts([r for r in rows if r.get("group") == HELD_OUT])}
    for key in ("model", "engine", "group", "class", "operator"):
        chosen = rows if key == "group" else known
        names = dict.fromkeys(r[key] for r in chosen if key in r)
        data[key] = {name: counts([r for r in chosen if r.get(key) == name]) for name in names}
    return data


def short_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What falls short of the promise, a line each: 99 % exact, 90 % causes right, 1 % wrong, no false alarm."""
    known = counts([r for r in rows if r.get("group") != HELD_OUT])
    faults = known["faults"]
    promised = (
        (known["exact"] >= 0.99 * faults, f"named exactly: {known['exact']} of {faults}, 99 % promised"),
        (known["cause_right"] >= 0.9 * faults, f"causes right: {known['cause_right']} of {faults}, 90 % promised"),
        (known["cause_wrong"] <= 0.01 * faults, f"causes wrong: {known['cause_wrong']} of {faults}, 1 % promised"),
        (not known["false_alarms"], f"false alarms in clean runs: {known['false_alarms']}, none promised"),
    )
    return [line for kept, line in promised if not kept]
