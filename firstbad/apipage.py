"""The reference page of the Python functions, made from their docstrings: `python -m firstbad.apipage`.

Leaves out what has no place in `firstbad.__all__`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import firstbad

_FUNCTIONS = ("diff", "capture", "compare", "explain", "load", "check", "tap", "step")


def page() -> str:
    """The page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# firstbad from Python"
    yield "\nMade from the docstrings by `python -m firstbad.apipage > firstbad/api.md`.\n"
    yield _module()
    for name in _FUNCTIONS:
        yield from _function(name, getattr(firstbad, name))
    for name in firstbad.__all__:
        thing = getattr(firstbad, name)
        if inspect.isclass(thing):
            yield from _record(name, thing)


def _module() -> str:
    """The module's own words, its example as code."""
    text = inspect.cleandoc(import_module("firstbad.api").__doc__ or "")
    shown: list[str] = []
    for block in text.split("\n\n"):
        if not block.startswith("    "):
            shown.append(block)
        elif shown and shown[-1].startswith("```"):
            shown[-1] = f"{shown[-1].removesuffix('```')}\n{inspect.cleandoc(chr(10) + block)}\n```"
        else:
            shown.append(f"```python\n{inspect.cleandoc(chr(10) + block)}\n```")
    return "\n\n".join(shown)


class _Words(str):
    """An annotation that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _function(name: str, function: Any) -> Iterator[str]:
    plain = inspect.signature(function)
    parameters = [p.replace(annotation=_Words(p.annotation)) for p in plain.parameters.values()]
    signature = plain.replace(parameters=parameters, return_annotation=_Words(plain.return_annotation))
    yield f"\n## firstbad.{name}\n"
    yield f"```python\nfirstbad.{name}{signature}\n```\n"
    yield inspect.cleandoc(function.__doc__ or "")


def _record(name: str, kind: type) -> Iterator[str]:
    yield f"\n## firstbad.{name}\n"
    yield inspect.cleandoc(kind.__doc__ or "") if not (kind.__doc__ or "").startswith(f"{name}(") else "A record."
    if dataclasses.is_dataclass(kind):
        shown = [field for field in dataclasses.fields(kind) if not field.name.startswith("_")]
        yield ""
        yield from (f"- `{field.name}`: `{field.type}`" for field in shown)


if __name__ == "__main__":
    print(page(), end="")
