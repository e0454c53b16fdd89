"""Names: which reference names a candidate's name may stand for. The rules are data, in families.json.

Leaves out whether shapes and contents agree: alignment.py asks that of every proposal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from firstbad.graph import Graph, Value


@dataclass(frozen=True)
class Rule:
    """A pattern of a family's names and the reference names that it may mean."""

    family: str
    match: re.Pattern[str]
    reference: tuple[str, ...]


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads((Path(__file__).parent / "families.json").read_text("utf-8"))
    return data


@cache
def _rules() -> tuple[Rule, ...]:
    return tuple(Rule(r["family"], re.compile(r["match"]), tuple(r["reference"])) for r in _data()["rules"])


def cleaned(name: str) -> str:
    """A name without what file formats add to it."""
    for pattern, text in _data()["clean"]:
        name = re.sub(pattern, text, name)
    return name


def proposals(name: str) -> Iterator[str]:
    """Names that the reference may have for this one, the likeliest first."""
    plain = cleaned(name)
    seen = {name}
    for proposal in [plain, *(t for start in (plain, name) for t in _by_rule(start))]:
        if proposal not in seen:
            seen.add(proposal)
            yield proposal


def _by_rule(name: str) -> Iterator[str]:
    for rule in _rules():
        found = rule.match.match(name)
        if found:
            yield from (template.format(*found.groups()) for template in rule.reference)


class Names:
    """The reference's values by name, and by the module whose output they are."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def find(self, step: str, name: str) -> Value | None:
        """The value of this name; for a module's path the last value that was made in the module."""
        value = self._graph.by_key.get((step, name))
        return value if value is not None and value.kind != "weight" else self._outputs.get((step, name))

    @cached_property
    def _outputs(self) -> Mapping[tuple[str, str], Value]:
        outputs: dict[tuple[str, str], Value] = {}
        for value in self._graph.values:
            if value.kind == "value" and value.dtype.startswith(("float", "bfloat")):
                path = value.name
                while "." in path:
                    path = path.rpartition(".")[0]
                    outputs[value.step, path] = value
        return outputs
