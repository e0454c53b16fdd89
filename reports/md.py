"""The answer as Markdown, to paste into an issue: the verdict, the evidence, a small map in squares, the command.

Every name and text stands in code, so that nothing in it is taken for markup. Leaves out pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstbad.material import Material

from . import words
from .map import Map, maps_of
from .rows import Row, Rows, rows_of
from .scale import LIMIT_STEP, number, times

FILE = "report.md"

LISTED = 10

_MARKS = re.compile(r"[\\`*_\[\]<>|@#~&!]")


def render(material: Material) -> str:
    """The page as text."""
    rows = rows_of(material)
    return "\n".join(_lines(material, rows)) + "\n"


def _lines(material: Material, rows: Rows) -> Iterator[str]:
    result = material.result
    faults = result["faults"]
    yield f"## {words.SYMBOLS[result['verdict']]} {words.NAMES[result['verdict']]}"
    yield ""
    yield f"**{marked(words.sentence(result))}**"
    yield ""
    if faults:
        yield from _table(
            ["first bad", "step", "op", "kernel", "local error", "noise floor", "× noise", "cause"], faults
        )
        yield ""
        cause = faults[0]["cause"]
        if cause["reproduces_to"] is not None:
            left = number(cause["reproduces_to"])
            yield f"Proved: with that edit the reference gives the candidate's values, to {left}. "
        damage = len(result["damage"])
        yield f"{damage} values are off only because of {'it' if len(faults) == 1 else 'these'}."
        if len(faults) > LISTED:
            yield f"{len(faults) - LISTED} more faults are in `result.json`."
    else:
        yield f"{marked(words.margin(rows))}."
    yield ""
    for answer in words.answers(result):
        yield f"- {answer.side}: {code(' '.join(filter(None, (answer.before, answer.differs, answer.after))))}"
    yield f"- {words.tokens(result)}"
    yield f"- compared: {words.coverage(result)}"
    yield ""
    known = [row for fault in faults if (row := rows.by_key.get((fault["step"], fault["value"])))]
    yield from _map(next((m for m in maps_of(rows, known) if not known or known[0].step in m.steps), None))
    if result["command"]:
        yield "```sh"
        yield result["command"].replace("```", "'''")
        yield "```"


def _table(heads: list[str], faults: list[dict[str, object]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for fault in faults[:LISTED]:
        cells = [
            code(str(fault["value"])),
            code(str(fault["step"])),
            code(str(fault["op"])),
            code(words.source(fault)) if words.source(fault) else "",
            number(fault["local_error"]),  # type: ignore[arg-type]  # plain data of JSON
            number(fault["noise_floor"]),  # type: ignore[arg-type]  # plain data of JSON
            times(fault["times_noise"]),  # type: ignore[arg-type]  # plain data of JSON
            str(fault["cause"]["kind"]).replace("_", " "),  # type: ignore[index]  # plain data of JSON
        ]
        yield f"| {' | '.join(cells)} |"


def _map(shown: Map | None) -> Iterator[str]:
    """The map in squares: blue agrees, orange is off, a cross is a fault."""
    if shown is None or shown.field:
        return
    lines: dict[float, list[str]] = {}
    for cell in shown.cells:
        lines.setdefault(cell.y, []).append(_square(cell.row))
    labels = [label.text for label in shown.labels]
    width = max(map(len, labels), default=0)
    yield "```text"
    yield shown.step
    for label, squares in zip(labels, lines.values(), strict=True):
        yield f"{label:>{width}} {''.join(squares)}"
    yield "```"


def _square(row: Row) -> str:
    return "❌" if row.fault else "🟦" if row.colour <= LIMIT_STEP else "🟧"


def marked(text: str) -> str:
    """A sentence with its names as code, and every mark of Markdown or HTML in the rest made harmless."""
    return "".join(code(part) if name else _MARKS.sub(r"\\\g<0>", part) for name, part in words.parts(text))


def code(text: str) -> str:
    """Text as a code span on one line, whatever it holds; a bar would end the cell of a table."""
    text = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest or not text else f"{fence}{text}{fence}"
