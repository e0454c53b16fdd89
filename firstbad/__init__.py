"""firstbad: git bisect for tensors.

The functions for Python: `diff`, `capture`, `compare`, `explain`, `load` (api.py), `check` (checking.py), `tap` and
`step` (tapping.py), and the records that they give. Everything is imported when it is first asked for: `import
firstbad` brings neither PyTorch nor NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firstbad.tapping import step, tap

if TYPE_CHECKING:
    from firstbad.api import capture, compare, diff, explain, load
    from firstbad.checking import MismatchError, check
    from firstbad.errors import CompareError, FirstbadError, UnstableReferenceError, UsageError
    from firstbad.result import CauseResult, FaultResult, Result
    from firstbad.trace import Trace

__all__ = [
    "CauseResult",
    "CompareError",
    "FaultResult",
    "FirstbadError",
    "MismatchError",
    "Result",
    "Trace",
    "UnstableReferenceError",
    "UsageError",
    "__version__",
    "capture",
    "check",
    "compare",
    "diff",
    "explain",
    "load",
    "step",
    "tap",
]

__version__ = "0.1.0"

_HOMES = {
    "firstbad.api": ("capture", "compare", "diff", "explain", "load"),
    "firstbad.checking": ("MismatchError", "check"),
    "firstbad.errors": ("CompareError", "FirstbadError", "UnstableReferenceError", "UsageError"),
    "firstbad.result": ("CauseResult", "FaultResult", "Result"),
    "firstbad.trace": ("Trace",),
}


def __getattr__(name: str) -> Any:
    """PEP 562: the names above, from where they live."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            found = getattr(import_module(home), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'firstbad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
