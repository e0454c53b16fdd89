"""The example of a C program of one's own: healthy it matches; five bugs in its source are named with their line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from firstbad.cli import main
from firstbad.probes import c

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "case_studies/gpt2_in_c"
SOURCE = (EXAMPLE / "gpt2.c").read_text("utf-8")


@dataclass(frozen=True)
class Bug:
    """What is changed in the source, and what must be said of it."""

    right: str
    wrong: str
    value: str
    kernel: str  # whose line is named
    kinds: frozenset[str]


BUGS = {
    "stride": Bug(
        "*q = qkv.at + t * qkv.D + h * K",
        "*q = qkv.at + t * D + h * K",
        "transformer.h.0.attn.add",
        "scores",
        frozenset({"layout", "wrong_input", "unknown"}),  # no single edit is a stride that runs across rows
    ),
    "missing bias": Bug(
        "float sum = b.at[j];\n            for (int i = 0; i < x.D",
        "float sum = x.D == y.D ? 0 : b.at[j];\n            for (int i = 0; i < x.D",
        "transformer.h.0.attn.c_proj.addmm",
        "linear",
        frozenset({"missing_bias"}),
    ),
    "wrong eps": Bug(
        "variance + 1e-5f", "variance + 1e-3f", "transformer.h.0.ln_1", "layer_norm", frozenset({"wrong_constant"})
    ),
    "mask off by one": Bug(
        "n <= seen + t ?", "n <= seen + t + 1 ?", "transformer.h.0.attn.add", "scores", frozenset({"mask"})
    ),
    "stale buffer": Bug(
        "APPLY(add, x2, x1, m);",
        "APPLY(add, x2, x, m);",
        "transformer.h.0.add_1",
        "add",
        frozenset({"wrong_input", "stale"}),
    ),
}


def built(folder: Path, source: str) -> Path:
    (folder / "gpt2.c").write_text(source, "utf-8")
    include = Path(c.__file__).parent / "include"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address", f"-I{include}"]
    subprocess.run(["cc", *flags, "-o", "gpt2", "gpt2.c", "-lm", "-lpthread"], cwd=folder, check=True)
    return folder / "gpt2"


Diff = Callable[[Path], dict[str, Any]]


@pytest.fixture
def diff(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Diff:
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")  # buffers live to the end of the program

    def diff(program: Path) -> dict[str, Any]:
        candidate = f"exec:{program} {{weights}} {{tokens}} 4 {{max_tokens}}"
        prompt = ["--model", "causal", "--random-weights", "1", "--tokens", "84,104,101,32,99,97,116"]
        rest = ["--max-tokens", "3", "--budget", "5", "--json", "-o", str(tmp_path / "out")]
        code = main(["diff", *prompt, "--candidate", candidate, *rest])
        assert code in (0, 1)
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return diff


def test_the_healthy_program_matches(diff: Diff, tmp_path: Path) -> None:
    result = diff(built(tmp_path, SOURCE))
    assert result["verdict"] == "match", result["first_bad"]
    assert result["outputs"]["tokens_equal"]
    assert sum(result["coverage"]["compared"].values()) >= 85
    assert result["coverage"]["weights_compared"] == 28
    left = {name.rpartition(".")[2] for _, name, _ in result["coverage"]["only_candidate"]}
    assert left <= {"keys", "values"}, "in prefill the caches are copies, which the reference does not keep"


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_the_source_is_named_with_its_line(diff: Diff, tmp_path: Path, name: str) -> None:
    bug = BUGS[name]
    assert SOURCE.count(bug.right) == 1
    source = SOURCE.replace(bug.right, bug.wrong)
    first = diff(built(tmp_path, source))["first_bad"]
    assert first is not None
    assert first["value"] == bug.value
    assert first["source"]["file"].endswith("gpt2.c")
    line = source.splitlines()[first["source"]["line"] - 1]
    assert re.search(rf"KERNEL\({bug.kernel}\)", line), line
    assert first["cause"]["kind"] in bug.kinds, first["cause"]


def test_the_probe_is_a_few_lines() -> None:
    lines = [line for line in SOURCE.splitlines() if re.search(r"\bFB_[A-Z]|firstbad\.h|FIRSTBAD_IMPL", line)]
    assert len(lines) <= 12, lines


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile_builds_it(tmp_path: Path) -> None:
    for name in ("gpt2.c", "Makefile"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    program = f"{sys.executable} -m firstbad.cli"
    subprocess.run(["make", f"FIRSTBAD={program}"], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([tmp_path / "gpt2"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: gpt2 WEIGHTS TOKENS")
