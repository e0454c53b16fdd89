"""The zoo's tables: for a terminal, and the page RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import rivals

CLASSES = {
    "BA": "buffer alias, lifetime, wire",
    "TL": "tile, tail",
    "MK": "mask",
    "SC": "constant or term of scores",
    "DT": "range",
    "WL": "weight layout",
    "ST": "KV cache",
    "PO": "position",
    "NG": "norm gain, wrong or skipped norm",
    "PU": "unwritten memory",
    "SV": "strides, layout",
    "FU": "ops lost, doubled or fused wrongly",
    "RD": "rounding, low precision",
    "QZ": "quantisation",
    "AC": "activation",
    "BI": "bias lost",
    "FE": "front end",
    "GH": "heads",
    "NE": "norm epsilon",
    "CV": "convolution",
}


def table(data: Mapping[str, Any]) -> Iterator[str]:
    """Lines for a terminal."""
    rules = list(rivals.RULES)
    yield f"{'':26}{'faults':>7}{'exact':>7}{'right':>7}{'wrong':>7}{'unknown':>8}  first past: " + " ".join(rules)
    for name, c in _rows(data):
        ours = "".join(f"{c[key]:>7}" for key in ("faults", "exact", "cause_right", "cause_wrong"))
        others = " ".join(f"{c[f'by_{rule}']:>{len(rule)}}" for rule in rules)
        yield f"{name:26}{ours}{c['unknown']:>8}  {'':12}{others}"
    c = data["all"]
    yield f"clean runs {c['clean']}, false alarms {c['false_alarms']}; by the rules: " + ", ".join(
        f"{rule} {c[f'clean_{rule}']}" for rule in rules
    )
    yield f"below noise {c['hidden']}: {c['hidden_exact']} named all the same, {c['hidden_wrong']} with another value"


def _rows(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, int]]]:
    yield "all", data["all"]
    for key in ("model", "engine", "group"):
        for name, c in data[key].items():
            if c["faults"]:
                yield f"{key} {name}", c
    for name, c in data["class"].items():
        if c["faults"] and name in CLASSES:
            yield f"{name} {CLASSES[name][:22]}", c


def _states(data: Mapping[str, Any]) -> str:
    """Whether all that is said is of one state of the product's sources, and what has not been run."""
    states = {r["sources"] for r in data["rows"]}
    left = ", ".join(f"{n} of {what}" for what, n in data.get("not_run", {}).items())
    more = f" Not run yet: {left}." if left else ""
    if len(states) == 1:
        return f"All of them are of one state of the sources ({states.pop()}).{more}"
    return f"A result is kept until it is run again: these are of {len(states)} states of the sources.{more}"


def page(data: Mapping[str, Any]) -> str:
    """The page, from the same data as result.json."""
    c, late = data["all"], data["held_out"]
    lines = [
        "# What the zoo says",
        "",
        f"Written by run.py on {' and '.join(data['models'])}{', a tenth of it' if data['quick'] else ''}; the numbers "
        "are those of result.json.",
        "",
        "Runs: "
        + ", ".join(f"{sum(r['model'] == m for r in data['rows'])} on {m}" for m in data["models"])
        + ". "
        + _states(data),
        "",
        f"{c['faults']} faults that change a value beyond noise, {c['hidden']} that do not, {c['clean']} clean runs.",
        "",
        f"- value named exactly: {_share(c['exact'], c['faults'])}",
        f"- cause right in kind and detail: {_share(c['cause_right'], c['faults'])}",
        f"- cause unknown: {_share(c['unknown'], c['faults'])}; wrong: {_share(c['cause_wrong'], c['faults'])}",
        f"- false alarms in clean runs: {c['false_alarms']} of {c['clean']}",
        f"- below noise: {c['hidden_exact']} of {c['hidden']} named all the same, {c['hidden_wrong']} wrongly",
        "",
        f"Held-out faults, counted apart: of {late['faults']} the value of {late['exact']} is named exactly, the cause "
        f"is right for {late['cause_right']}, unknown for {late['unknown']}, wrong for {late['cause_wrong']}.",
        "",
        "## Beside the rules that other tools use",
        "",
        "The first value past each rule is its answer; in clean runs any answer is a false alarm.",
        "",
        "| rule | names the value | alarms in clean runs |",
        "|---|---|---|",
        f"| firstbad | {_share(c['exact'], c['faults'])} | {c['false_alarms']} of {c['clean']} |",
    ]
    words = {
        "allclose": "allclose, torch's defaults",
        "cosine": "cosine < 0.99",
        "relative": "relative L2 > 1e-3",
        "difference": "1 - 2<x,y>/(x²+y²) > 1e-3",
        "largest": "largest absolute difference > 1e-5",
    }
    lines += [
        f"| {words[rule]} | {_share(c[f'by_{rule}'], c['faults'])} | {c[f'clean_{rule}']} of {c['clean']} |"
        for rule in rivals.RULES
    ]
    for title, key in (
        ("By class", "class"),
        ("By operator of the list of faults", "operator"),
        ("By group", "group"),
        ("By engine", "engine"),
        ("By model", "model"),
    ):
        lines += [
            "",
            f"## {title}",
            "",
            "| | faults | exact | cause right | cause wrong | unknown | by the best rule |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, n in data[key].items():
            if n["faults"] and "+" not in name:
                best = max(n[f"by_{rule}"] for rule in rivals.RULES)
                label = f"{name} {CLASSES[name]}" if name in CLASSES else name
                keys = ("faults", "exact", "cause_right", "cause_wrong", "unknown")
                lines.append(f"| {label} | {' | '.join(str(n[key]) for key in keys)} | {best} |")
    missed = [r for r in data["rows"] if r["kind"] == "fault" and r["visible"] and not r["exact"]]
    wrong = [r for r in data["rows"] if r["kind"] == "fault" and r["visible"] and r["exact"] and r["cause"] != "right"]
    alarms = [r for r in data["rows"] if r["kind"] == "clean" and r["false_alarm"]]
    lines += ["", "## Lint, from the plan alone", ""]
    lines.append(
        f"{c['linted']} of {c['wired']} wiring faults named with no run; {c['lint_alarms']} findings in clean plans."
    )
    lines += ["Not named, since the plan is whole and no sibling layer differs from it:", ""]
    silent = dict.fromkeys(r["id"] for r in data["rows"] if r["kind"] == "fault" and r["wired"] and not r["linted"])
    lines += [f"- `{name}`" for name in silent] or ["none"]
    for title, rows in (
        ("Not named exactly", missed),
        ("Named, but the cause is unknown or wrong", wrong),
        ("False alarms", alarms),
    ):
        lines += ["", f"## {title}", "", *([f"- {_line(r)}" for r in rows] or ["none"])]
    return "\n".join([*lines, ""])


def _line(row: Mapping[str, Any]) -> str:
    if row["kind"] == "clean":
        return f"`{row['id']}` ({row['model']}): {', '.join(row['named']) or 'tokens'}"
    if not row["exact"]:
        named, expected = ", ".join(row["named"]) or "nothing", ", ".join(row["expected"])
        return f"`{row['id']}` ({row['model']}): named {named}, expected {expected}"
    return f"`{row['id']}` ({row['model']}): {row['cause']}"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "none"
