"""A function in a user's Python file: FILE.py:function."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError


def user_file(place: str) -> Path:
    """The file of FILE.py:function."""
    file = place.rpartition(":")[0]
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"no file `{file or place}`: give FILE.py:function")
    return path


def user_function(place: str) -> Callable[..., Any]:
    """The function that FILE.py:function names."""
    file, _, name = place.rpartition(":")
    path = user_file(place)
    spec = importlib.util.spec_from_file_location(f"firstbad_candidate_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"`{file}` is not a Python file: give FILE.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))  # the file may import what lies beside it
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise UsageError(f"`{file}` cannot be imported: {error}") from None
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if not callable(found):
        functions = [n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", "") == spec.name]
        hint = did_you_mean(name, functions) or f"it has {', '.join(functions) or 'none'}"
        raise UsageError(f"no function `{name}` in `{file}`: {hint}")
    function: Callable[..., Any] = found
    return function
