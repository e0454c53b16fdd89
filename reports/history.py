"""JSON Lines of history: one line a case and run, with each value's error in noise floors; adds to its file."""

from __future__ import annotations

import json

from firstbad.finding import GateResult

GATE = True
APPEND = True
FILE = "history.jsonl"


def render(gate: GateResult) -> str:
    """The lines of this run."""
    lines = []
    for case in gate.cases:
        errors = {
            f"{row.step}/{row.name}": float(f"{row.error[0] / row.noise[0]:.3g}")
            for row in case.rows
            if row.error and row.noise[0] > 0
        }
        first = case.red[0] if case.red else None
        line = {
            "time": gate.started,
            "commit": gate.commit,
            "case": case.name,
            "verdict": case.verdict,
            "first_bad": first.value if first else "",
            "cause": first.cause if first else "",
            "seconds": round(case.seconds, 2),
            "errors": errors,
        }
        lines.append(json.dumps(line, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines)
