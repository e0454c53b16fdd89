"""C code compiled on first use, and kept: `build` gives the path of a shared library or a program.

The cache key holds the text of the sources and of the headers beside them, the flags, the compiler's version and, for
-march=native, the processor. Leaves out dependency tracking beyond that: no make, no linking of several objects.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from firstbad.errors import UsageError

_HEADERS = (".h", ".hpp", ".hh", ".inc")


class NoCompilerError(UsageError):
    """There is no C compiler; whoever has another way (NumPy) catches this."""


class CompileError(UsageError):
    """The compiler refused a source."""


def build(
    sources: Sequence[Path],
    *,
    flags: Sequence[str] = (),
    program: bool = False,
    include: Sequence[Path] = (),
) -> Path:
    """Compile and link `sources` with $CC (default cc) unless that was done before; returns what was built.

    A shared library, or an executable where `program`. -lm is always there. Safe when several processes build at once.
    """
    compiler = _compiler()
    name = f"{sources[0].stem}-{_key(compiler, sources, flags, program, include)}{'' if program else '.so'}"
    target = cache_folder() / name
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{sources[0].stem}-")
        os.close(handle)
    except OSError as error:
        raise UsageError(
            f"cannot write the cache folder `{target.parent}` ({error.strerror}): set FIRSTBAD_CACHE to another one"
        ) from None
    try:
        kind = [] if program else ["-shared", "-fPIC"]
        paths = [f"-I{folder}" for folder in include]
        _run([*compiler, *flags, *kind, *paths, *map(str, sources), "-o", scratch, "-lm"], sources)
        Path(scratch).chmod(0o755)
        Path(scratch).replace(target)
    finally:
        Path(scratch).unlink(missing_ok=True)
    return target


def cache_folder() -> Path:
    """$FIRSTBAD_CACHE, or firstbad/ in $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("FIRSTBAD_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "firstbad"
    try:
        return Path.home() / ".cache" / "firstbad"
    except RuntimeError:  # no home folder: a container's bare user
        return Path(tempfile.gettempdir()) / f"firstbad-{os.getuid()}"


def _compiler() -> list[str]:
    words = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(words[0]) is None:
        hint = "set CC to one that exists" if os.environ.get("CC") else "install gcc or clang, or set CC"
        raise NoCompilerError(f"no C compiler `{words[0]}`: {hint}")
    return words


@cache
def _version(compiler: tuple[str, ...]) -> str:
    try:
        found = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False, errors="replace")
    except OSError as error:
        raise NoCompilerError(f"cannot run the C compiler `{compiler[0]}`: {error.strerror}") from None
    return found.stdout + found.stderr


def compiler_version() -> str:
    """The first line of what the compiler says of itself."""
    return _version(tuple(_compiler())).partition("\n")[0].strip()


@cache
def processor() -> str:
    """What -march=native looks at, as text: a cache in a shared home must not serve another machine."""
    lines: Iterable[str] = ()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _key(
    compiler: list[str], sources: Sequence[Path], flags: Sequence[str], program: bool, include: Sequence[Path]
) -> str:
    digest = hashlib.sha256()
    words = [_version(tuple(compiler)), *compiler, *flags, str(program)]
    if program:  # it says where its source stands, which another checkout must not be told
        words.append(str(sources[0].parent.resolve()))
    if any("native" in flag for flag in flags):
        words.append(processor())
    for word in words:
        digest.update(word.encode("utf-8", "surrogateescape") + b"\0")
    for path in [*sources, *_headers(sources, include)]:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read the C source `{path}`: {error.strerror}") from None
        digest.update(f"{path.name} {len(text)}\0".encode("utf-8", "surrogateescape") + text)
    return digest.hexdigest()[:20]


def _headers(sources: Sequence[Path], include: Sequence[Path]) -> list[Path]:
    """Headers beside the sources and anywhere in the include folders, in a fixed order."""
    found = {h for source in sources for h in source.parent.glob("*") if h.suffix in _HEADERS}
    found |= {h for folder in include for h in folder.rglob("*") if h.suffix in _HEADERS}
    return sorted(h for h in found if h.is_file())


def _run(command: list[str], sources: Sequence[Path]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    except OSError as error:
        raise NoCompilerError(f"cannot run the C compiler `{command[0]}`: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line or "undefined reference" in line] or lines
        first = errors[0].strip() if errors else f"exit status {done.returncode}"
        raise CompileError(f"cannot compile `{sources[0]}`: {first}: to see all of it, run {shlex.join(command)}")
