"""The answer in words, from the plain data of a result: verdict, headline, outputs with the first difference marked.

The same sentences stand in the page, the worksheet, the Markdown and under the charts. Leaves out markup.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .rows import Rows
from .scale import number, times

SYMBOLS = {"match": "✓", "diverged": "✗", "incomplete": "?"}
_NAME = r"(?<![\w.:/-])/?[A-Za-z_][\w/\[\]-]*(?:[._][\w/\[\]-]+)+(?::\w+)*"

NAMES = {"match": "Match", "diverged": "Diverged", "incomplete": "Incomplete"}


@dataclass(frozen=True)
class Answer:
    """One engine's text, cut where the two begin to differ: before, the differing words, after."""

    side: str
    before: str
    differs: str
    after: str
    tokens: int


def sentence(result: Mapping[str, Any]) -> str:
    """The verdict in one sentence without a full stop: the cause where there is one."""
    fault = result["first_bad"]
    if fault is not None:
        statement = str(fault["cause"]["statement"])
        return statement[:1].upper() + statement[1:] if not _is_name(statement) else statement
    if result["verdict"] == "incomplete":
        return f"No fault in what was compared; the candidate {result['death'] or 'gave nothing to compare'}"
    if result["verdict"] == "diverged":
        return "The tokens differ although every value is right given its own inputs"
    return f"All {compared(result):,} values are right given their own inputs"


def parts(text: str) -> list[tuple[bool, str]]:
    """A sentence cut into names (True) and what stands between them."""
    found = re.split(f"({_NAME})", text)
    return [(i % 2 == 1, part) for i, part in enumerate(found) if part]


def _is_name(statement: str) -> bool:
    """A statement that begins with a name is left as it is."""
    return "." in statement.partition(" ")[0] or "_" in statement.partition(" ")[0]


def compared(result: Mapping[str, Any]) -> int:
    return sum(result["coverage"]["compared"].values())


def source(fault: Mapping[str, Any]) -> str:
    """file:line of the kernel, "" where it is not known."""
    where = fault["source"]
    return f"{where['file']}:{where['line']}" if where["file"] else ""


def headline(fault: Mapping[str, Any]) -> str:
    """The line that stands alone: value, op, source line, error, times the noise floor."""
    at = f", {source(fault)}" if source(fault) else ""
    where = f" in {fault['where']}" if fault["where"] else ""
    return (
        f"{fault['value']} ({fault['step']}), op {fault['op']}{at}: "
        f"local error {number(fault['local_error'])}{where}, {noise(fault['times_noise'])}"
    )


def noise(x: float | None) -> str:
    return "where no error is allowed" if x is None else f"{times(x)} times the noise floor"


def answers(result: Mapping[str, Any]) -> tuple[Answer, Answer]:
    """Both outputs, the first differing words marked."""
    outputs = result["outputs"]
    texts = [str(outputs[side]["text"]) for side in ("reference", "candidate")]
    words = [text.split(" ") for text in texts]
    blocks = (
        difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes()
        if max(map(len, words)) < 3000
        else []
    )
    change = next((block for block in blocks if block[0] != "equal"), None)
    if texts[0] == texts[1] or change is None:
        spans = [(len(w), len(w)) for w in words]
    else:
        spans = [(change[1], change[2]), (change[3], change[4])]
    made = []
    for side, word, (first, end) in zip(("reference", "candidate"), words, spans, strict=True):
        before, differs, after = (" ".join(part) for part in (word[:first], word[first:end], word[end:]))
        made.append(Answer(side, before, differs, after, len(outputs[side]["tokens"])))
    return made[0], made[1]


def tokens(result: Mapping[str, Any]) -> str:
    """How the choices compare."""
    outputs = result["outputs"]
    first, count = outputs["first_differing_token"], len(outputs["candidate"]["tokens"])
    if result["death"]:
        return f"{count} tokens until the candidate ended"
    if first < 0:
        return f"{count} tokens, all equal" if count else "no tokens from the candidate"
    ours, theirs = outputs["reference"]["tokens"], outputs["candidate"]["tokens"]
    pair = [str(t[first]) if first < len(t) else "none" for t in (ours, theirs)]
    return f"token {first} differs: reference {pair[0]}, candidate {pair[1]}"


def margin(rows: Rows) -> str:
    """How close a matching run came."""
    if not rows.all:
        return "Nothing was compared"
    weakest = rows.weakest[0]
    return f"The weakest value, {weakest.name} ({weakest.step}), is at {times(weakest.times)} of 3 noise floors"


def coverage(result: Mapping[str, Any]) -> str:
    """What was compared, in one line."""
    c = result["coverage"]
    groups = ", ".join(f"{group} {n:,}" for group, n in c["compared"].items()) or "none"
    weights = (
        f"{c['weights_compared']} weights equal"
        if not c["weights_differ"]
        else f"{len(c['weights_differ'])} weights differ"
    )
    inputs = (
        f"{c['inputs_equal']} inputs equal" if not c["inputs_differ"] else f"{len(c['inputs_differ'])} inputs differ"
    )
    edges = f"{c['edges_checked']:,} reads checked" + (
        f", {c['edges_changed']:,} changed" if c["edges_changed"] else ""
    )
    return f"{compared(result):,} values ({groups}); {inputs}; {weights}; {edges}"
