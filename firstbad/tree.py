"""Names as a tree, for a terminal: modules as branches, values as leaves, chains of single modules on one line.

Plain lines of (branch, label, value); leaves out what stands beside a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from firstbad.graph import Value


@dataclass
class _Node:
    values: list[Value] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)


def tree(values: Sequence[Value]) -> Iterator[tuple[str, str, Value | None]]:
    """(lines before the label, label, value or None for a module), the steps as the first branches."""
    root = _Node()
    for value in values:
        node = root
        for part in (value.step, *value.name.split(".")):
            node = node.children.setdefault(part, _Node())
        node.values.append(value)
    yield from _below(root, "", top=True)


def _below(node: _Node, before: str, top: bool = False) -> Iterator[tuple[str, str, Value | None]]:
    children = list(node.children.items())
    for i, (name, child) in enumerate(children):
        label = name
        while not top and not child.values and len(child.children) == 1:
            part, child = next(iter(child.children.items()))  # noqa: PLW2901  # the chain ends at the last child
            label = f"{label}.{part}"
        last = i == len(children) - 1
        branch = "" if top else before + ("└─ " if last else "├─ ")
        yield branch, label, child.values[0] if child.values else None
        yield from ((branch, label, value) for value in child.values[1:])
        yield from _below(child, before if top else before + ("   " if last else "│  "))
