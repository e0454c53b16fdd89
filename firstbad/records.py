"""Records from plain data: a Result as it was, from result.json. Unknown keys of a newer minor version are left out."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from firstbad.result import Result


def result_from(data: Mapping[str, Any]) -> Result:
    """The Result whose `to_json` gave `data`; infinite numbers, null in JSON, stay None."""
    made: Result = _record(Result, data)
    return made


def _record(kind: Any, data: Any) -> Any:
    if data is None:
        return None
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        known = {f.name for f in fields(kind)}
        return kind(**{name: _record(hints[name], item) for name, item in data.items() if name in known})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _record(next(one for one in inner if one is not type(None)), data)
    if origin is tuple:
        item = inner[0] if len(inner) == 2 and inner[1] is Ellipsis else None
        kinds = [item] * len(data) if item is not None else inner
        return tuple(_record(one, part) for one, part in zip(kinds, data, strict=True))
    return data
