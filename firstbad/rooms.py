"""The one door from `firstbad` to the three rooms: modules by name, and a user's own file in the same place.

`load("probes", "c")` is `firstbad.probes.c`; `load("reference", "./mine.py")` is the user's file.
Leaves out any registry: a file in a room's folder is an option value.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from firstbad.errors import UsageError

ROOMS = {"reference": "capture", "probes": "capture", "reports": "render"}
"""Room → the function that makes a file of it an option value (helpers in the same folder have none)."""


def load(room: str, name: str) -> ModuleType:
    """The module of `room` called `name`, or the user's file where `name` is a path to a .py file.

    Raises UsageError with a close match for a misspelt name.
    """
    if name.endswith(".py"):
        return _load_file(Path(name), ROOMS[room])
    if name.isidentifier() and importlib.util.find_spec(f"firstbad.{room}.{name}"):
        module = importlib.import_module(f"firstbad.{room}.{name}")
        if hasattr(module, ROOMS[room]):
            return module
    known = names(room)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known)}, or a path to your own .py file"
    raise UsageError(f"no `{name}` in {room}: {hint}")


def names(room: str) -> list[str]:
    """The option values of a room, found by their text so that nothing heavy is imported."""
    package = importlib.import_module(f"firstbad.{room}")
    files = sorted(Path(package.__path__[0]).glob("*.py"))
    return [f.stem for f in files if f"\ndef {ROOMS[room]}(" in f.read_text("utf-8")]


def _load_file(path: Path, face: str) -> ModuleType:
    module = file_module(path, f"that defines `{face}`")
    if not hasattr(module, face):
        raise UsageError(f"`{path}` defines no function `{face}`: see the protocols in firstbad/run.py")
    return module


def file_module(path: Path | str, what: str = "of yours") -> ModuleType:
    """A user's Python file as a module."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"no file `{path}`: give the path of a Python file {what}")
    spec = importlib.util.spec_from_file_location(f"firstbad_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"`{path}` is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
