"""What is wrong with what the user gave is said in one line, by its exit code, before anything is made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from firstbad.probes import edits
from firstbad.probes.plan import save
from firstbad.probes.planner import plan as planned

from .conftest import CLIP, MICRO, Bench, Command, Said

WITHOUT_AUDIO = tuple(word for word in MICRO if word not in ("--audio", CLIP))


def one_line(said: Said) -> str:
    """The message of a refused command."""
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("firstbad: error: ")
    message = said.err.removeprefix("firstbad: error: ").rstrip("\n")
    assert not message.endswith(".")
    assert "unexpected" not in message
    return message


def recording(folder: Path, name: str) -> Path:
    path = folder / name
    tone = (0.1 * np.sin(np.arange(35 * 8000) * 0.3)).astype(np.float32)
    if name == "empty.wav":
        path.write_bytes(b"")
    elif name == "text.wav":
        path.write_text("hello " * 100)
    elif name == "none.wav":
        soundfile.write(path, tone[:0], 8000)
    elif name == "cut.flac":
        soundfile.write(path, tone, 8000)
        path.write_bytes(path.read_bytes()[:30])
    elif name == "silent.wav":
        soundfile.write(path, 0 * tone[:8000], 8000)
    elif name == "long.wav":
        soundfile.write(path, tone, 8000)
    elif name == "folder.wav":
        path.mkdir()
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.wav", "does not exist"),
        ("folder.wav", "is a folder"),
        ("empty.wav", "as audio"),
        ("text.wav", "as audio"),
        ("cut.flac", "as audio"),
        ("none.wav", "holds no sound: it has 0 samples"),
    ],
)
def test_what_is_no_recording(tmp_path: Path, firstbad: Command, name: str, message: str) -> None:
    path = recording(tmp_path, name)
    said = firstbad("diff", *WITHOUT_AUDIO, "--audio", path, "-o", tmp_path / "out")
    assert said.code == 2
    assert f"`{path}`" in one_line(said)
    assert message in said.err


@pytest.mark.parametrize(
    ("name", "note"), [("silent.wav", "the clip is silent"), ("long.wav", "clip of 35.0 s cut to 30.0 s")]
)
def test_what_is_decided_for_the_user_is_said(tmp_path: Path, firstbad: Command, name: str, note: str) -> None:
    path = recording(tmp_path, name)
    said = firstbad("diff", *WITHOUT_AUDIO, "--audio", path, "--max-tokens", 1, "-o", tmp_path / "out")
    assert said.code == 0
    assert any(line.startswith("note ") and note in line for line in said.out.splitlines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "whisper:bsae"], "did you mean `whisper:base`?"),
        (["--model", "nosuch"], "known: "),
        (["--model", "./nofolder"], "no"),
        (["--model", "EMPTY"], "holds no model"),
        (["--model", "mine.py"], "no file `mine.py`"),
        (["--size", "micro"], "give --random-weights SEED"),
        (["--random-weights", "-1"], "from 0 on"),
        (["--random-weights", "1", "--size", "huge"], "known: tiny, micro"),
        (["--audio-context", "0"], "at least 1"),
        (["--random-weights", "1", "--size", "micro", "--audio-context", "1501"], "1 to 1500"),
        (["--max-tokens", "many"], "at least 1"),
        (["--threads", "100000"], "1024 are the most"),
        (["--timeout", "-1"], "seconds above 0"),
        (["--timeout", "nan"], "seconds above 0"),
        (["--budget", "0"], "seconds above 0"),
        (["--cflags", "'-O1"], "no closing quotation"),
        (["--modle", "whisper"], "did you mean `--model`?"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_wrong_words_of_diff(tmp_path: Path, firstbad: Command, words: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    words = [str(tmp_path / "empty") if word == "EMPTY" else word for word in words]
    said = firstbad("diff", "--audio", CLIP, "-o", tmp_path / "out", *words)
    assert said.code == 2
    assert message in one_line(said)


def test_no_input(tmp_path: Path, firstbad: Command) -> None:
    for words in ((), WITHOUT_AUDIO):
        said = firstbad("diff", *words, "-o", tmp_path / "out")
        assert said.code == 2
        assert "--audio" in one_line(said)


def _not_json(micro: Bench, path: Path) -> None:
    path.write_text("{")


def _of_another_format(micro: Bench, path: Path) -> None:
    path.write_text("{}")


def _of_another_input(micro: Bench, path: Path) -> None:
    save(planned(micro.prepared.config, 39), path)


def _too_small_a_buffer(micro: Bench, path: Path) -> None:
    save(micro.plan, path)
    path.write_text(path.read_text().replace('"arena": ', '"arena": 1, "was": '))


def _no_such_kind(micro: Bench, path: Path) -> None:
    save(edits.set_kind(micro.plan, "encode", "model.encoder.gelu", "gleu"), path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_not_json, "is not JSON"),
        (_of_another_format, "firstbad-plan"),
        (_of_another_input, "this input has [1, 80, 80]"),
        (_too_small_a_buffer, "of a buffer of 1"),
        (_no_such_kind, "did you mean `gelu`?"),
        (lambda _micro, _path: None, "no such file"),
    ],
)
def test_wrong_plans(
    micro: Bench, tmp_path: Path, firstbad: Command, make: Callable[[Bench, Path], None], message: str
) -> None:
    make(micro, tmp_path / "plan.json")
    for verb, out in (("diff", "out"), ("capture", "trace.h5")):
        said = firstbad(verb, *MICRO, "--candidate", f"c:{tmp_path}/plan.json", "-o", tmp_path / out)
        assert said.code == 2
        assert message in one_line(said)


@pytest.mark.parametrize(
    ("candidate", "message"),
    [("onxn:x", "no `onxn`"), ("torhc", "did you mean `torch`?"), ("mine.py", "no file `mine.py`"), ("", "no ``")],
)
def test_unknown_candidates(tmp_path: Path, firstbad: Command, candidate: str, message: str) -> None:
    said = firstbad("diff", *MICRO, "--candidate", candidate, "-o", tmp_path / "out")
    assert said.code == 2
    assert message in one_line(said)


def test_a_flag_that_the_compiler_does_not_know(tmp_path: Path, firstbad: Command) -> None:
    said = firstbad("diff", *MICRO, "--cflags=-fnosuchflag", "-o", tmp_path / "out")
    assert said.code == 2
    assert "-fnosuchflag" in one_line(said)


def test_places_where_nothing_can_be_written(tmp_path: Path, firstbad: Command) -> None:
    (tmp_path / "file").write_text("mine")
    for folder, message in (
        (tmp_path / "file", "is a file: give a folder"),
        (tmp_path / "file" / "out", "not a directory"),
        (Path("/proc/none/out"), "cannot make the folder"),
    ):
        said = firstbad("diff", *MICRO, "-o", folder)
        assert said.code == 2
        assert message in one_line(said)
    for trace, message in ((tmp_path / "file", "is there and is no trace"), (tmp_path, "is a folder")):
        said = firstbad("capture", *MICRO, "-o", trace)
        assert said.code == 2
        assert message in one_line(said)
    assert (tmp_path / "file").read_text() == "mine"


def test_too_little_space_is_refused_before_anything_runs(
    tmp_path: Path, firstbad: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=1 << 30, used=0, free=100_000))
    said = firstbad("diff", *MICRO, "-o", tmp_path / "out")
    assert said.code == 2
    assert "0.0 GB free and the two traces need about" in one_line(said)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_disk_that_fills_up_is_told(tmp_path: Path, firstbad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2_500_000
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=limit - os.fstat(fd).st_size, f_frsize=1))
    trace = tmp_path / "trace.h5"
    said = firstbad("capture", *MICRO, "--max-tokens", 3, "--reference", "-o", trace)
    assert said.code == 3
    assert one_line(said) == f"cannot write the trace `{trace}`: no space left on device: is the disk full?"


def test_wrong_files_of_compare(micro: Bench, tmp_path: Path, firstbad: Command) -> None:
    theirs, output = micro.run()
    ours = micro.reference(output.tokens)
    (tmp_path / "text.h5").write_text("not HDF5")
    (tmp_path / "half.h5").write_bytes(theirs.read_bytes()[:5000])
    for words, code, message in (
        ((theirs, ours), 2, "give the reference first, then the candidate"),
        ((ours, ours), 2, "is a trace of a reference"),
        ((ours,), 2, "missing `CANDIDATE.h5`"),
        ((ours, tmp_path / "none.h5"), 3, "no trace"),
        ((ours, tmp_path / "text.h5"), 3, "not an HDF5 file"),
        ((ours, tmp_path / "half.h5"), 3, "half.h5"),
        ((ours, theirs, "-o", tmp_path / "text.h5"), 2, "is a file"),
    ):
        said = firstbad("compare", *words)
        assert said.code == code
        assert message in one_line(said)


def test_wrong_words_of_capture(tmp_path: Path, firstbad: Command) -> None:
    assert "missing `-o/--output`" in one_line(firstbad("capture", *MICRO))
    said = firstbad("capture", *MICRO, "--reference", "--tokens-of", tmp_path / "none.h5", "-o", tmp_path / "t.h5")
    assert said.code == 3
    assert "no trace" in one_line(said)
