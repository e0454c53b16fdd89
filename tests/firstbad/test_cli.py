"""The command line: verbs are files, errors are one line, exit codes are a contract."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from firstbad import __version__, cli
from firstbad.errors import CompareError, FirstbadError, UnstableReferenceError, UsageError

COMMAND = [sys.executable, "-m", "firstbad.cli"]
HEAVY = ("numpy", "h5py", "torch", "transformers", "soundfile", "matplotlib", "importlib.metadata")

Verb = Callable[[str], None]


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Makes `firstbad probe` a verb whose `run` has the given body."""
    import firstbad.verbs

    def make(body: str) -> None:
        (tmp_path / "probe.py").write_text(
            'HELP = "a verb of the tests"\n'
            "def add_arguments(parser):\n"
            "    parser.add_argument('--threads', type=int)\n"
            "    parser.add_argument('--form', choices=['long', 'short'])\n"
            "def run(args):\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\n"
        )
        monkeypatch.setattr(cli, "VERBS", tmp_path)
        monkeypatch.setattr(firstbad.verbs, "__path__", [str(tmp_path)])
        sys.modules.pop("firstbad.verbs.probe", None)

    return make


def test_help_lists_every_verb_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for file in Path(cli.__file__).parent.joinpath("verbs").glob("[!_]*.py"):
        line = next(line for line in out.splitlines() if line.startswith(f"  {file.stem} "))
        assert len(line.split(maxsplit=1)[1]) > 10, f"{file.stem} has no HELP"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    show = (
        f"import sys, firstbad.cli; firstbad.cli.main(['--help']); print(*[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""

    def cpu() -> float:
        before = os.times()
        subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(cpu() for _ in range(3)) < 0.25


def test_a_verbs_help_does_not_run_it(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb("raise AssertionError")
    assert cli.main(["probe", "--help"]) == 0
    out = capsys.readouterr().out
    assert "a verb of the tests" in out
    assert "--traceback" in out
    assert cli.main(["help", "probe"]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("name", [file.stem for file in cli.VERBS.glob("[!_]*.py")])
def test_every_real_verb_answers_help_without_torch(name: str) -> None:
    ask = f"""
        import sys
        from firstbad import cli
        print(cli.main([{name!r}, "--help"]), *[m for m in ("torch", "transformers", "h5py") if m in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(ask)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"firstbad {project['version']}\n"
    assert __version__ == project["version"]


def test_without_a_verb_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: firstbad VERB")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["porbe"], "no verb `porbe`: did you mean `probe`?"),
        (["xyz"], "no verb `xyz`: known: probe"),
        (["__init__"], "no verb `__init__`: known: probe"),
        (["../cli"], "no verb `../cli`: known: probe"),
        (
            ["--model", "whisper"],
            "no verb before `--model`: a command is `firstbad VERB [options]`, see `firstbad --help`",
        ),
        (["probe", "--thread", "2"], "unknown option `--thread`: did you mean `--threads`?"),
        (["probe", "--tread=2"], "unknown option `--tread`: did you mean `--threads`?"),
        (["probe", "--zzz"], "unknown option `--zzz`: see `firstbad probe --help`"),
        (["probe", "-z"], "unexpected `-z`: see `firstbad probe --help`"),
        (["probe", "more"], "unexpected `more`: see `firstbad probe --help`"),
        (["probe", "--threads"], "`--threads`: expected one argument: see `firstbad probe --help`"),
        (["probe", "--threads", "two"], "`--threads`: invalid int value: 'two': see `firstbad probe --help`"),
        (
            ["probe", "--form", "shrt"],
            "`--form`: invalid choice: 'shrt', did you mean `short`?: see `firstbad probe --help`",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    words: list[str], message: str, verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    verb("return 0")
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"firstbad: error: {message}\n"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_code_of_a_verb_is_handed_on(code: int, verb: Verb) -> None:
    verb(f"return {code}")
    assert cli.main(["probe"]) == code


@pytest.mark.parametrize(
    ("error", "code", "bisect"), [(UsageError, 2, 128), (CompareError, 3, 125), (UnstableReferenceError, 4, 125)]
)
def test_each_error_has_its_code(
    error: type[FirstbadError], code: int, bisect: int, verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(f"from firstbad.errors import {error.__name__}\nraise {error.__name__}('x: torn\\nin two: mend it')")
    assert cli.main(["probe"]) == code
    assert capsys.readouterr().err == "firstbad: error: x: torn in two: mend it\n"
    assert cli.main(["probe", "--git-bisect"]) == bisect
    assert cli.main(["--git-bisect", "probe"]) == bisect


@pytest.mark.parametrize("code", [0, 1])
def test_git_bisect_keeps_good_and_bad(code: int, verb: Verb) -> None:
    verb(f"return {code}")
    assert cli.main(["probe", "--git-bisect"]) == code


def test_an_unexpected_error_says_where_and_how_to_report(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb("return {}['k']")
    assert cli.main(["probe"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("firstbad: error: unexpected KeyError at ")
    assert "probe.py:6: 'k'" in line
    assert line.endswith("run again with --traceback and report what it prints")
    assert cli.main(["probe", "--traceback"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("firstbad: error: unexpected KeyError")


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("raise MemoryError", 3, "out of memory: capture less with --steps or --max-tokens, or take a smaller model"),
        ("open('/nowhere/x')", 3, "/nowhere/x: no such file or directory"),
        (
            "import nosuchpackage",
            2,
            "the Python package `nosuchpackage` is missing: `firstbad doctor` says how to get it",
        ),
    ],
)
def test_other_ends(body: str, code: int, message: str, verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb(body)
    assert cli.main(["probe"]) == code
    assert capsys.readouterr().err == f"firstbad: error: {message}\n"


def test_a_dead_candidates_pipe_is_not_mistaken_for_ours(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    verb("raise BrokenPipeError(32, 'broken pipe')")
    assert cli.main(["probe"]) == 3
    assert "unexpected BrokenPipeError" in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_us_quietly() -> None:
    many = "import sys, firstbad.cli as c; c._overview = lambda: 'line\\n' * 10**6; sys.exit(c.main(['--help']))"
    with subprocess.Popen([sys.executable, "-c", many], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""


def test_interrupt_of_the_real_process() -> None:
    wait = """
        import signal, sys, time
        from firstbad import cli
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started with it ignored
        cli._dispatch = lambda words, typed: (print("up", flush=True), time.sleep(60))
        sys.exit(cli.main([]))
    """
    code = textwrap.dedent(wait)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.send_signal(2)
        started = time.monotonic()
        assert process.wait(30) == 130
        assert time.monotonic() - started < 10
        assert process.stderr.read() == b"firstbad: error: interrupted\n"


def test_closed_stdout_is_no_error() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{' '.join(COMMAND)} --version >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
