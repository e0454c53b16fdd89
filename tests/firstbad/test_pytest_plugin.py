"""The pytest plug-in in runs of its own: what a failing kernel test prints, shrinking, reports, accepted errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "kernels"

GROWING = """
import numpy as np
import torch

x = np.random.Generator(np.random.PCG64(1)).standard_normal((64, 256)).astype(np.float32)

def kernel(x):
    y = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    noise = np.random.Generator(np.random.PCG64(2)).standard_normal(y.shape)
    return (y * (1 + NOISE * 2.0**-24 * noise)).astype(np.float32)

def test_softmax(firstbad):
    firstbad.check(kernel, lambda x: torch.softmax(x, -1), x)
"""


@pytest.fixture(autouse=True)
def installed() -> None:
    if not any(entry.value == "firstbad.pytest_plugin" for entry in entry_points(group="pytest11")):
        pytest.skip("needs the plug-in's entry point: install the package again (make setup)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in DATA.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    return tmp_path


def run(folder: Path, *words: str, ci: str = "") -> tuple[int, str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    settings = ["-c", os.devnull, "--rootdir", ".", "-q", "--tb=short", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**variables, "OMP_NUM_THREADS": "1", "CI": ci, "NO_COLOR": "1", "COLUMNS": "80"},
    )
    return done.returncode, done.stdout + done.stderr


def test_what_a_failing_kernel_test_prints(folder: Path) -> None:
    code, out = run(folder, "case_golden.py")
    assert code == 1
    out = re.sub(r"in \d+\.\d+s", "in N s", out)
    out = re.sub(r"[\d,]+(\.\d)? times the noise floor", "N times the noise floor", out)
    # several tests fail alike where every number is exact: which is named first is not this file's matter
    out = out.replace(" in element [0, 0], N times", ", N times")
    assert out == (DATA / "golden.txt").read_text("utf-8")


@pytest.mark.slow
def test_hypothesis_shrinks_a_stride_bug_to_its_smallest_shape(folder: Path) -> None:
    code, out = run(folder, "case_properties.py")
    assert code == 1
    assert "1 failed, 2 passed" in out
    assert "softmax_adjacent is not reference" in out
    # two rows of one element, further apart than one: with one row, or adjacent ones, there is no bug
    assert re.search(r"given +x float32 \[2, 1\], strides \[4, 1\] elements", out)
    assert "cause    nonfinite: row 1 of softmax is NaN" in out


def test_a_report_for_each_failed_check(folder: Path) -> None:
    code, out = run(folder, "case_golden.py", "-k", "bias", "--firstbad-report", "kept")
    assert code == 1
    kept = folder / "kept" / "case_golden.py_test_bias"
    assert json.loads((kept / "result.json").read_text())["verdict"] == "diverged"
    for name in ("reference.h5", "candidate.h5", "report.html"):
        assert (kept / name).is_file()
    assert f"report   kept/{kept.name}/report.html" in out


@pytest.mark.slow
def test_accepted_errors_may_not_grow(folder: Path) -> None:
    test = folder / "test_growing.py"
    test.write_text(GROWING.replace("NOISE", "0.5"))
    code, out = run(folder, "test_growing.py", "--firstbad-accept", ci="true")
    assert code == 4
    assert "does not run in CI" in out
    code, out = run(folder, "test_growing.py", "--firstbad-accept")
    assert code == 0, out
    assert "firstbad: wrote firstbad-baselines/test_growing.jsonl" in out
    assert run(folder, "test_growing.py")[0] == 0
    test.write_text(GROWING.replace("NOISE", "1.5"))  # still far within the limits of a single run
    code, out = run(folder, "test_growing.py")
    assert code == 1
    assert "the error of softmax grew" in out
    (folder / "firstbad-baselines" / "test_growing.jsonl").write_text("<<<<<<< HEAD\n")
    code, out = run(folder, "test_growing.py")
    assert code == 1
    assert "line 1 of" in out
    assert "was edited or merged" in out
