"""A wiring bug in the seventh of twelve commits: the gate is red from there on, `git bisect run` names it, and the
annotation stands at the line that reads the wrong buffer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from firstbad.cli import main

DATA = Path(__file__).parents[1] / "data" / "bisect"
HEADERS = Path(__file__).parents[2] / "probes" / "include"

CONFIG = """
[case.gated]
model = "model.py"
candidate = "exec:sh run.sh"
inputs = 2
"""
RUN = "set -e\ncc -O2 -o engine engine.c -lm\nexec ./engine\n"

SUM = "            for (int i = 0; i < in; i++) sum += x[t * in + i] * w[o * in + i];\n"
UNROLLED = (
    "            for (int i = 0; i < in; i += 2)\n"
    "                sum += x[t * in + i] * w[o * in + i] + x[t * in + i + 1] * w[o * in + i + 1];\n"
)
COMMITS = [  # what each does to engine.c; all but the seventh are harmless
    (
        "say what forward does",
        "static void forward(void) {",
        "/* x + down(silu(gate(h)) * up(h)) */\nstatic void forward(void) {",
    ),
    ("unroll the loop of linear", SUM, UNROLLED),
    ("const in main", "    char path[4096];", "    char path[8192];"),
    ("name the epsilon", "#include <stdlib.h>\n", "#include <stdlib.h>\n\n#define EPSILON 1e-5\n"),
    ("use it", "square / D + 1e-5", "square / D + EPSILON"),
    ("read the input once", 'LINEAR("gate", gate, hidden, w_gate', 'LINEAR("gate", gate, x, w_gate'),
    ("a comment on the weights", "static float weights", "/* norm, up, gate, down */\nstatic float weights"),
    ("print six digits", '"%.3f\\n"', '"%.6f\\n"'),
    ("silu by one division", "gate[i] / (1 + expf(-gate[i]))", "gate[i] * (1 / (1 + expf(-gate[i])))"),
    ("print eight numbers", "i < 4; i++) printf", "i < 8; i++) printf"),
    ("close what was opened first", "    fclose(file);\n", "    fclose(file); /* read-only */\n"),
]
BUG = 7
WIRE = "gate, x, w_gate"


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *settings, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """(the folder, its twelve commits)."""
    folder = tmp_path_factory.mktemp("bisect")
    for path in [*DATA.iterdir(), *HEADERS.iterdir()]:
        shutil.copy(path, folder)
    random = np.random.Generator(np.random.PCG64(1))
    (random.standard_normal(2 * 32 + 2 * (32 * 64 + 64) + 64 * 32 + 32) * 0.3).astype(np.float32).tofile(
        folder / "weights.bin"
    )
    (folder / "firstbad.toml").write_text(CONFIG)
    (folder / "run.sh").write_text(RUN)
    (folder / ".gitignore").write_text("engine\nfirstbad-out/\n__pycache__/\n")
    git(folder, "init", "-q", "-b", "main")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        assert main(["accept", "--yes", "--jobs", "1"]) == 0
    commits = []
    for message, old, new in [("an engine and its baseline", "", ""), *COMMITS]:
        text = (folder / "engine.c").read_text()
        assert old in text, message
        (folder / "engine.c").write_text(text.replace(old, new, 1) if old else text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", message)
        commits.append(git(folder, "rev-parse", "HEAD"))
    assert len(commits) == 12
    return folder, commits


@pytest.mark.slow
def test_git_bisect_run_names_the_seventh(repository: tuple[Path, list[str]]) -> None:
    folder, commits = repository
    git(folder, "bisect", "start", commits[-1], commits[0])
    try:
        done = subprocess.run(
            ["git", "bisect", "run", sys.executable, "-m", "firstbad.cli", "gate", "--git-bisect", "--jobs", "1"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    finally:
        git(folder, "bisect", "reset")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{commits[BUG - 1]} is the first bad commit" in done.stdout.replace(
        "is the first 'bad'", "is the first bad"
    )


@pytest.mark.slow
def test_red_from_the_seventh_on_and_the_annotation_at_its_line(
    repository: tuple[Path, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    folder, commits = repository
    monkeypatch.chdir(folder)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    history = tmp_path / "history.jsonl"
    try:
        for number, commit in enumerate(commits, 1):
            git(folder, "checkout", "-q", commit)
            capsys.readouterr()
            code = main(["gate", "--jobs", "1", "--report", f"history:{history}"])
            captured = capsys.readouterr()
            assert code == (number >= BUG), f"commit {number}:\n{captured.out}"
            errors = [line for line in captured.err.splitlines() if line.startswith("::error ")]
            assert len(errors) == (number >= BUG)
            if errors:
                text = (folder / "engine.c").read_text().splitlines()
                line = next(n for n, content in enumerate(text, 1) if WIRE in content)
                assert errors[0].startswith(f"::error file=engine.c,line={line},")
                assert "wrong_input: gate reads x instead of norm" in errors[0]
    finally:
        git(folder, "checkout", "-q", "main")
    runs = [json.loads(line) for line in history.read_text().splitlines()]
    assert [run["verdict"] for run in runs] == ["passed"] * (BUG - 1) + ["failed"] * (13 - BUG)
    assert [run["commit"] for run in runs] == commits
    outputs = (tmp_path / "GITHUB_OUTPUT").read_text().splitlines()
    assert outputs == ["first-bad="] * (BUG - 1) + ["first-bad=gate"] * (13 - BUG)
