"""The command line: finds the verb, runs it, and turns every error into one line and an exit code.

A verb is a file, `firstbad/verbs/NAME.py`, with three names: `HELP` (one line), `add_arguments(parser)` and
`run(args) -> int`. Its text is read for the help; only the verb that runs is imported, and imports torch and its like
inside `run`: `firstbad --help` must answer at once.

Exit codes: see firstbad/errors.py; further 130 interrupted, 141 whoever read our output went away.
"""

from __future__ import annotations

import importlib
import os
import select
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from firstbad import __version__
from firstbad.arguments import Parser, did_you_mean
from firstbad.errors import EXIT_INCOMPLETE, EXIT_REFERENCE, EXIT_USAGE, FirstbadError, UsageError
from firstbad.theme import theme_for

VERBS = Path(__file__).parent / "verbs"

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

#: `git bisect run` takes 1 to 124 for "bad", 125 for "cannot tell", 128 and more for "stop": a commit that could not be
#: compared is skipped, and a wrong command line stops the bisection, else it would call every commit bad
GIT_BISECT = {EXIT_USAGE: 128, EXIT_INCOMPLETE: 125, EXIT_REFERENCE: 125}

_EVERYWHERE = {
    "--git-bisect": "exit codes for `git bisect run`: 125 (skip) where nothing could be compared",
    "--traceback": "show Python's traceback with an error",
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    typed = shlex.join(["firstbad", *words])
    words, flags = _take_flags(words)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # × and − must not end a run on an ASCII terminal
    code = _guarded(lambda: _dispatch(words, typed), traceback="--traceback" in flags)
    return GIT_BISECT.get(code, code) if "--git-bisect" in flags else code


def verbs() -> dict[str, str]:
    """Verb → its line of help, read from the files' text."""
    files = sorted(f for f in VERBS.glob("*.py") if not f.name.startswith("_"))
    return {f.stem: _help_line(f) for f in files}


def _dispatch(words: list[str], typed: str) -> int:
    """`typed`: the whole command, for the verbs whose results say how they were made."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words:
        print(_overview(), file=sys.stderr)
        return EXIT_USAGE
    first, rest = words[0], words[1:]
    if first in ("-h", "--help"):
        print(_overview())
        return 0
    if first in ("-V", "--version"):
        print(f"firstbad {__version__}")
        return 0
    if not (VERBS / f"{first}.py").is_file() or not first.isidentifier() or first.startswith("_"):
        raise UsageError(_no_such_verb(first))

    verb = importlib.import_module(f"firstbad.verbs.{first}")
    parser = Parser(prog=f"firstbad {first}", description=verb.HELP)
    verb.add_arguments(parser)
    everywhere = parser.add_argument_group("with every verb")
    for flag, text in _EVERYWHERE.items():
        everywhere.add_argument(flag, action="store_true", help=text)
    args = parser.parse(rest)
    args.typed = typed
    return int(verb.run(args))


def _guarded(work: Callable[[], int], traceback: bool) -> int:
    """Runs `work`; every way in which it can end gets its exit code, and an error its line on stderr."""
    try:
        code = work()
        print(end="", flush=True)
    except SystemExit as stop:  # argparse's --help
        code = stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt as error:
        code = _report(error, "interrupted", EXIT_INTERRUPTED, traceback)
    except FirstbadError as error:
        code = _report(error, str(error), error.exit_code, traceback)
    except ModuleNotFoundError as error:
        if (error.name or "firstbad").startswith("firstbad"):
            code = _report(error, _unexpected(error), EXIT_INCOMPLETE, traceback)
        else:
            message = f"the Python package `{error.name}` is missing: `firstbad doctor` says how to get it"
            code = _report(error, message, EXIT_USAGE, traceback)
    except BrokenPipeError as error:
        if not _nobody_reads_stdout():
            code = _report(error, _unexpected(error), EXIT_INCOMPLETE, traceback)
        else:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to say at exit
            code = EXIT_BROKEN_PIPE
    except MemoryError as error:
        message = "out of memory: capture less with --steps or --max-tokens, or take a smaller model"
        code = _report(error, message, EXIT_INCOMPLETE, traceback)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{(error.strerror or str(error)).lower()}"
        code = _report(error, message, EXIT_INCOMPLETE, traceback)
    except Exception as error:
        code = _report(error, _unexpected(error), EXIT_INCOMPLETE, traceback)
    return code


def _report(error: BaseException, message: str, code: int, traceback: bool) -> int:
    if traceback:
        sys.excepthook(type(error), error, error.__traceback__)
    theme = theme_for(sys.stderr)
    line = " ".join(message.split())
    print(f"firstbad: {theme.bad('error')}: {line}", file=sys.stderr)
    return code


def _unexpected(error: Exception) -> str:
    where = _blame(error.__traceback__)
    return (
        f"unexpected {type(error).__name__}{where}: {error}: a bug in firstbad, or in a file of yours that it ran; "
        "run again with --traceback and report what it prints"
    )


def _blame(traceback: TracebackType | None) -> str:
    """The innermost line of ours, or of a user's file loaded by us."""
    where = ""
    while traceback:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith("firstbad"):
            where = f" at {frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return where


def _nobody_reads_stdout() -> bool:
    """Tells `firstbad show | head` from the pipe of a candidate that died."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _take_flags(words: list[str]) -> tuple[list[str], set[str]]:
    """The flags that stand before or after any verb, taken out."""
    end = words.index("--") if "--" in words else len(words)
    flags = {word for word in words[:end] if word in _EVERYWHERE}
    return [word for word in words[:end] if word not in flags] + words[end:], flags


def _no_such_verb(word: str) -> str:
    if word.startswith("-"):
        return f"no verb before `{word}`: a command is `firstbad VERB [options]`, see `firstbad --help`"
    known = verbs()
    hint = did_you_mean(word, known) or f"known: {', '.join(known)}"
    return f"no verb `{word}`: {hint}"


def _overview() -> str:
    known = verbs()
    width = max(map(len, [*known, *_EVERYWHERE])) + 2
    return "\n".join(
        [
            "usage: firstbad VERB [options]",
            "",
            "git bisect for tensors: find the first value an inference engine computes wrong, and why",
            "",
            "verbs:",
            *(f"  {verb:{width}}{line}" for verb, line in known.items()),
            "",
            "options:",
            *(f"  {flag:{width}}{line}" for flag, line in _EVERYWHERE.items()),
            f"  {'--version':{width}}print the version",
            "",
            "exit codes: 0 agree, 1 a fault or divergence, 2 wrong usage, 3 could not compare, 4 the reference is not",
            "reproducible",
            "",
            "options of a verb: firstbad VERB --help",
        ]
    )


def _help_line(path: Path) -> str:
    """The value of `HELP = "..."` in a verb's file, without running it."""
    import ast

    for node in ast.parse(path.read_text("utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "HELP":
            value = getattr(node, "value", None)
            return str(ast.literal_eval(value)) if value else ""
    return ""


if __name__ == "__main__":
    sys.exit(main())
