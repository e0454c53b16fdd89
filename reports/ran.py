"""What ran: engines, versions, flags, hashes, coverage, as labelled lines for people.

Leaves out everything that is drawn. What the result does not know is not listed.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstbad.graph import Graph
from firstbad.material import Material

from .scale import seconds

Line = tuple[str, str]


@dataclass(frozen=True)
class Alone:
    """Values of one side without a partner, by reason."""

    side: str
    total: int
    reasons: tuple[tuple[str, int], ...]
    examples: tuple[tuple[str, str, str], ...]
    count: int


def lines_of(material: Material) -> list[tuple[str, list[Line]]]:
    """(heading, lines)."""
    environment = material.result["environment"]
    found = [("This run", list(_run(material.result)))]
    for side in ("reference", "candidate"):
        trace = material.reference if side == "reference" else material.candidate
        meta = environment.get(side, {})
        found.append(
            (side.capitalize(), list(_engine(meta, trace.engine if trace else "", trace.graph if trace else None)))
        )
    stages = [(name, seconds(x)) for name, x in material.result["timings"].items()]
    if stages:
        found.append(("Time of the comparison", stages))
    return [(heading, lines) for heading, lines in found if lines]


def _run(result: Mapping[str, Any]) -> Iterator[Line]:
    environment, machine = result["environment"], dict(result["extra"].get("machine", {}))
    known = {"firstbad": "firstbad", "python": "Python", "numpy": "NumPy", "platform": "system", "cores": "cores"}
    if "processor" not in machine:
        known["machine"] = "processor"
    for key, label in known.items():
        if environment.get(key):
            yield label, _text(environment[key])
            machine.pop(key, None)
    yield from ((key, str(data)) for key, data in machine.items() if (key, data) != ("threads", "all"))
    yield from ((side, str(path)) for side, path in result["files"].items())


def _engine(meta: Mapping[str, Any], engine: str, graph: Graph | None) -> Iterator[Line]:
    if engine:
        yield "engine", engine
    left_out = {"config", "notes", "spec", "family"}
    for key, data in meta.items():
        if key not in left_out and data not in (None, "", [], {}):
            yield key.replace("_", " "), _text(data)
    for key, data in (meta.get("spec") or {}).items():
        if data not in (None, "") and key != "model":
            yield key.replace("_", " "), _text(data)
    config = meta.get("config") or {}
    if config.get("transformers_version"):
        yield "transformers", str(config["transformers_version"])
    if graph is not None:
        yield from _hashes(graph)


def _hashes(graph: Graph) -> Iterator[Line]:
    weights = sorted((v for v in graph.values if v.kind == "weight" and v.hash), key=lambda v: v.name)
    if weights:
        together = 0
        for value in weights:
            together = (together * 0x9E3779B97F4A7C15 + value.hash) % 2**64
        yield "weights", f"{len(weights)} of {sum(v.extent for v in weights):,} bytes, hash {together:016x}"
    inputs = [v for v in graph.values if v.kind == "input" and v.hash and v.dtype.startswith("float")]
    for value in inputs[:4]:
        yield value.name, f"{list(value.shape)} {value.dtype}, hash {value.hash:016x}"


def _text(data: Any) -> str:
    if isinstance(data, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in data.items())
    if isinstance(data, Sequence) and not isinstance(data, str):
        words = [str(item) for item in data]
        return shlex.join(words) if any(word.startswith("-") for word in words) else ", ".join(words)
    return str(data)


def alone_of(coverage: Mapping[str, Any]) -> tuple[Alone, ...]:
    """What was not compared, the candidate's first."""
    found = []
    for side in ("candidate", "reference"):
        alone = coverage[f"only_{side}"]
        reasons = Counter(str(reason).partition(":")[0] for _, _, reason in alone)
        examples = tuple((str(step), str(name), str(reason)) for step, name, reason in alone[:12])
        found.append(Alone(side, coverage[f"{side}_values"], tuple(reasons.most_common(8)), examples, len(alone)))
    return tuple(found)
