"""Compiling on first use: built once, rebuilt when anything that matters changes, clear when it cannot be."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from firstbad import toolchain
from firstbad.errors import UsageError
from firstbad.toolchain import CompileError, NoCompilerError, build, cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTBAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


def source(tmp_path: Path, text: str, name: str = "six.c") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


SIX = "#include <math.h>\nint six(void) { return (int)sqrt(36.0); }\n"


def test_a_library_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path, SIX)
    built = build([path], flags=["-O2"])
    assert ctypes.CDLL(str(built)).six() == 6
    assert built.parent == tmp_path / "cache"
    monkeypatch.setattr(toolchain, "_run", lambda *_: pytest.fail("compiled again"))
    assert build([path], flags=["-O2"]) == built
    assert list((tmp_path / "cache").iterdir()) == [built]


def test_a_program_runs(tmp_path: Path) -> None:
    main = source(tmp_path, "int six(void);\nint main(void) { return six(); }\n", "main.c")
    built = build([main, source(tmp_path, SIX)], program=True)
    assert subprocess.run([built], check=False).returncode == 6


def test_what_matters_is_in_the_key(tmp_path: Path) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "n.h").write_text("#define N 6\n")
    path = source(tmp_path, '#include "n.h"\nint six(void) { return N; }\n')
    first = build([path], include=[headers])
    assert build([path], include=[headers], flags=["-O1"]) != first
    (headers / "n.h").write_text("#define N 7\n")
    second = build([path], include=[headers])
    assert second != first
    assert ctypes.CDLL(str(second)).six() == 7
    source(tmp_path, '#include "n.h"\nint six(void) { return N + 1; }\n')
    assert ctypes.CDLL(str(build([path], include=[headers]))).six() == 8


def test_native_code_is_kept_apart_by_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path, SIX)
    plain, native = build([path]), build([path], flags=["-march=native"])
    monkeypatch.setattr(toolchain, "processor", lambda: "another machine")
    assert build([path]) == plain
    assert build([path], flags=["-march=native"]) != native


def test_a_compile_error_is_one_line_with_the_place(tmp_path: Path) -> None:
    path = source(tmp_path, "int six(void) { return seven; }\n")
    with pytest.raises(CompileError) as caught:
        build([path])
    assert "six.c:1:" in str(caught.value) and "seven" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path, SIX)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match="install gcc or clang"):
        build([path])
    monkeypatch.setenv("CC", "no-such-cc -m64")
    with pytest.raises(NoCompilerError, match="no C compiler `no-such-cc`: set CC"):
        build([path])


def test_cc_may_hold_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path, "int six(void) { return N; }\n")
    monkeypatch.setenv("CC", "cc -DN=6")
    assert ctypes.CDLL(str(build([path]))).six() == 6


def test_a_missing_source_and_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot read the C source"):
        build([tmp_path / "none.c"])
    path = source(tmp_path, SIX)
    monkeypatch.setenv("FIRSTBAD_CACHE", str(path / "below-a-file"))
    with pytest.raises(UsageError, match="set FIRSTBAD_CACHE"):
        build([path])


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("FIRSTBAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/firstbad")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder() == Path("/h/.cache/firstbad")


def test_several_processes_may_build_at_once(tmp_path: Path) -> None:
    path = source(tmp_path, SIX)
    script = f"from pathlib import Path; from firstbad.toolchain import build; print(build([Path({str(path)!r})]))"
    runs = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    built = {run.communicate()[0].strip() for run in runs}
    assert len(built) == 1
    assert ctypes.CDLL(built.pop()).six() == 6
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_program_says_where_its_own_source_stands(tmp_path: Path) -> None:
    text = "#include <stdio.h>\nint main(void) { puts(__FILE__); return 0; }\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = source(tmp_path / name, text, "main.c")
        said = subprocess.run([build([path], program=True)], capture_output=True, text=True, check=True).stdout
        assert said.strip() == str(path)
