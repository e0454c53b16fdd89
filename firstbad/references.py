"""Reference traces kept from run to run, found again by what they depend on: the same input need not run twice.

The key holds the model, its weights, the inputs, the tokens that drive the steps, the versions of PyTorch and
transformers, and the model room's own code. The oldest go when the folder outgrows its budget. Leaves out candidates.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from firstbad.hashing import hash_array
from firstbad.result import plain
from firstbad.toolchain import cache_folder

if TYPE_CHECKING:
    import numpy as np

    from firstbad.run import CaptureOptions, Prepared

BUDGET_BYTES = 8 << 30
"""Of the folder; FIRSTBAD_REFERENCES_BYTES changes it, 0 keeps nothing."""


_NOT_THE_REFERENCE = ("threads", "timeout", "cflags", "kernels")
"""Options of a capture that its values do not depend on."""


def weights_digest(weights: Mapping[str, np.ndarray]) -> str:
    """One digest of all weights by name and content."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].shape} {hash_array(weights[name]):016x}\n".encode())
    return digest.hexdigest()[:32]


def key(room: ModuleType, prepared: Prepared, weights: str, tokens: Sequence[int], options: CaptureOptions) -> str:
    """What a reference trace depends on, as one word."""
    parts = {
        "family": prepared.family,
        "config": dict(prepared.config),
        "weights": weights,
        "inputs": {name: [list(a.shape), hash_array(a)] for name, a in sorted(prepared.inputs.items())},
        "prompt": list(prepared.prompt),
        "choice": [prepared.eos, list(prepared.suppress), list(prepared.begin_suppress)],
        "tokens": list(tokens),
        "options": {k: v for k, v in asdict(options).items() if k not in _NOT_THE_REFERENCE},
        "versions": [metadata.version(name) for name in ("torch", "transformers", "h5py")],
        "code": _code(Path(str(room.__file__))),
    }
    return hashlib.sha256(json.dumps(plain(parts), sort_keys=True).encode()).hexdigest()[:32]


@cache
def _code(file: Path) -> str:
    """The text of the room that records, and of the writer of its trace."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in [*sorted(file.parent.glob("*.py")), here / "writer.py", here / "tables.py", here / "graph.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def folder() -> Path:
    return cache_folder() / "references"


def get(name: str, make: Callable[[Path], Any]) -> tuple[Path, bool]:
    """(the trace of this key, whether it was there); `make` writes it to the path that it is given."""
    path = folder() / f"{name}.h5"
    if path.is_file():
        os.utime(path)
        return path, True
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".new-", suffix=".h5")
    os.close(handle)
    try:
        make(Path(scratch))
        Path(scratch).replace(path)
    finally:
        Path(scratch).unlink(missing_ok=True)
    _shrink(keep=path)
    return path, False


def _shrink(keep: Path) -> None:
    """Removes the oldest until the rest fits; what another process has open stays readable to it."""
    budget = int(os.environ.get("FIRSTBAD_REFERENCES_BYTES", BUDGET_BYTES))
    disk = shutil.disk_usage(folder())
    budget = min(budget, disk.free // 2 + sum(path.stat().st_size for path in folder().glob("*.h5")) // 2)
    aged = sorted((path for path in folder().glob("[!.]*.h5") if path != keep), key=lambda path: path.stat().st_mtime)
    total = keep.stat().st_size + sum(path.stat().st_size for path in aged)
    for path in aged:
        if total <= budget:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
