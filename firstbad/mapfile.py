"""A map file: which candidate value is which reference value, by hand or as `firstbad align --write` found it.

    {"map": 1, "pairs": [{"candidate": "blk.0.q", "reference": "model.encoder.layers.0.self_attn.q_proj"}, ...]}

`step` (default: every step that has both) and the layout (`first`, `part`, `split`, `axes`, `order`, `along`: see
layout.py) may be given with a pair. Names may hold `*` on both sides, which stands for the same text. Leaves out how
pairs are found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.graph import Graph, Value
from firstbad.layout import Layout

if TYPE_CHECKING:
    from firstbad.alignment import Alignment

KEYS = {"candidate", "reference", "step", "how", "split", "axes", "part", "order", "along", "first"}


@dataclass(frozen=True)
class Mapped:
    """The pairs of a map file."""

    path: Path
    rows: tuple[dict[str, Any], ...]

    def pairs(self, reference: Graph, candidate: Graph) -> Iterator[tuple[Value, Value, Layout | None]]:
        """(reference value, candidate value, layout or None); UsageError for a name that a graph has not."""
        for row in self.rows:
            found = list(_pairs_of(row, reference, candidate))
            if not found:
                side, graph = (
                    ("candidate", candidate) if not _has(candidate, row["candidate"]) else ("reference", reference)
                )
                close = did_you_mean(row[side], [v.name for v in graph.values])
                raise UsageError(
                    f"`{self.path}` names `{row[side]}`, which the {side} has not{': ' + close if close else ''}"
                )
            yield from found


def _has(graph: Graph, name: str) -> bool:
    return any(_pattern(name).fullmatch(v.name) for v in graph.values)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(re.escape(part) for part in name.split("*")))


def _pairs_of(row: dict[str, Any], reference: Graph, candidate: Graph) -> Iterator[tuple[Value, Value, Layout | None]]:
    pattern = _pattern(row["candidate"])
    for value in candidate.values:
        match = pattern.fullmatch(value.name)
        if match is None or value.kind == "weight" or row.get("step", value.step) != value.step:
            continue
        parts = row["reference"].split("*")
        texts = match.groups()[: len(parts) - 1]
        name = parts[0] + "".join(text + part for text, part in zip(texts, parts[1:], strict=False))
        partner = reference.by_key.get((value.step, name))
        if partner is not None:
            yield partner, value, _layout(row, partner)


def _layout(row: dict[str, Any], partner: Value) -> Layout | None:
    given = {key: tuple(row[key]) for key in ("first", "split", "axes", "part", "order") if row.get(key)}
    return Layout(partner.shape, along=int(row.get("along", 0)), **given) if given else None


def load_map(path: Path) -> Mapped:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the map `{path}`: {error}") from None
    rows = data.get("pairs") if isinstance(data, dict) else None
    if not isinstance(rows, list) or data.get("map") != 1:
        raise UsageError(
            f'`{path}` is no map: {{"map": 1, "pairs": [{{"candidate": ..., "reference": ...}}]}} is meant'
        )
    for n, row in enumerate(rows):
        names = (row.get("candidate"), row.get("reference")) if isinstance(row, dict) else (None, None)
        if not all(isinstance(name, str) and name for name in names) or set(row) - KEYS:
            raise UsageError(f"pair {n} of the map `{path}` is not understood: known keys: {', '.join(sorted(KEYS))}")
    return Mapped(path, tuple(rows))


def save_map(alignment: Alignment, path: Path) -> None:
    """Writes what was found, to be looked at, corrected and given back with --map."""
    rows = []
    wholes = {one.value.id for one in alignment.joins}  # found again by their content
    for pair in (p for p in alignment.pairs if p.candidate.id not in wholes):
        row: dict[str, Any] = {
            "step": pair.reference.step,
            "candidate": pair.candidate.name,
            "reference": pair.reference.name,
            "how": pair.how,
        }
        layout = pair.layout
        row.update({k: list(v) for k in ("first", "split", "axes", "part", "order") if (v := getattr(layout, k))})
        if layout.order:
            row["along"] = layout.along
        rows.append(row)
    left = {
        "reference": [[u.value.step, u.value.name, u.reason] for u in alignment.only_reference],
        "candidate": [[u.value.step, u.value.name, u.reason] for u in alignment.only_candidate],
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    text = f'{{"map": 1, "pairs": [\n  {lines}\n], "left": {json.dumps(left, indent=1)}}}\n'
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from error
