"""What stands beside a comparison, in words: lint findings and proofs, as (label, text) lines.

Takes `Result.extra` and gives plain sentences. Leaves out colours and layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from firstbad.statement import number

LISTED = 4


def lines(extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every line of evidence with its label, in the order of a run."""
    yield from _lint(extra.get("lint", ()))
    if "confirm" in extra:
        yield from _confirm(extra["confirm"])
    if "substitute" in extra:
        yield "substitute", _substitute(extra["substitute"])
    if "allocations" in extra:
        yield from _allocations(extra["allocations"])
    for row in extra.get("repro", ())[:LISTED]:
        if row["test"]:
            yield "repro", f"pytest {row['test']}"


def _lint(findings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    ordered = sorted(findings, key=lambda f: not f["fault"])  # those that predict a fault first
    for finding in ordered[:LISTED]:
        where = "from the plan alone" if finding["source"] == "plan" else "from this run alone"
        speaks = f"; predicts {finding['fault']}" if finding["fault"] else ""
        yield "lint", f"{finding['rule']}: {finding['text']} ({where}{speaks})"
    if len(findings) > LISTED:
        yield "lint", f"{len(findings) - LISTED} more findings: extra.lint in result.json"


def _confirm(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not said["faults"] and "heal" not in said:
        yield "confirm", "nothing to confirm: no fault was found"
    heal = said.get("heal")
    if heal and "why" in heal:
        yield "confirm", str(heal["why"])
    elif heal:
        yield "confirm", _heal(heal)
    if "break" in said:
        yield "confirm", _break(said["break"])


def _heal(heal: Mapping[str, Any]) -> str:
    names = ", ".join(heal["injected"][:LISTED]) + (" ..." if len(heal["injected"]) > LISTED else "")
    how = "heals" if heal["heals"] else "does not heal"
    text = f"with the reference's {names} put in its place the candidate {how}: {heal['off_after']} values off"
    text += f" of {heal['compared']} (before: {heal['off_before']})"
    if heal["first_off"]:
        text += f", the first {'/'.join(heal['first_off'])}"
    same = "the reference's" if heal["transcript_equal"] else "still another"
    return f"{text}; its transcript is {same}: “{heal['text']}”"


def _break(broken: Mapping[str, Any]) -> str:
    if not broken["edited"] and not broken["compared"]:
        return "no cause has an edit that the reference could be given"
    text = (
        "with the edit in its place the reference breaks alike"
        if broken["breaks_alike"]
        else ("with the edit in its place the reference breaks otherwise")
    )
    text += f": {broken['alike']} of {broken['compared']} values come out as the candidate's"
    text += (
        f", to {number(broken['worst'])}"
        if broken["breaks_alike"]
        else f", the first that does not is {broken['first_other']}"
    )
    if broken["left_out"]:
        text += f"; without an edit: {', '.join(broken['left_out'])}"
    return text + (f"; up to {broken['until']}" if broken["until"] else "")


def _substitute(said: Mapping[str, Any]) -> str:
    if "why" in said:
        return f"not done: {said['why']}"
    off = ", ".join(row["value"] for row in said["off"][:LISTED]) + (" ..." if len(said["off"]) > LISTED else "")
    text = f"on the reference's own values {len(said['off'])} ops are off"
    text += f" ({off})" if off else ""
    if said["agrees"]:
        return f"{text}: the same as by replay"
    parts = [
        f"{words} {', '.join(said[key][:LISTED])}"
        for key, words in (("only_replay", "only by replay"), ("only_substitution", "only so"))
        if said[key]
    ]
    return f"{text}; {'; '.join(parts)}"


def _allocations(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, run in said["runs"].items():
        if run["value"]:
            yield (
                "allocation",
                (
                    f"with buffers {name}, {run['changed']} values change, the first {run['value']} ({run['step']}): "
                    f"{run['text']}"
                ),
            )
    if not said["differs"]:
        yield (
            "allocation",
            f"with buffers {' and with buffers '.join(said['runs'])} every value is the same, bit for bit",
        )
