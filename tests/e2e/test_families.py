"""Ten families of models: the reference run another way matches, and a planted bug is named (case_studies/families)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import firstbad

FILE = Path(__file__).parents[2] / "case_studies/families/run.py"
spec = importlib.util.spec_from_file_location("families_run", FILE)
assert spec is not None
assert spec.loader is not None
study: Any = importlib.util.module_from_spec(spec)
sys.modules["families_run"] = study
spec.loader.exec_module(study)

QUICK = ("bert",)


def marked(names: tuple[str, ...]) -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("family", marked(study.FAMILIES))
def test_run_another_way_it_matches(family: str, tmp_path: Path) -> None:
    for candidate in study.variants(family):
        row = study.run(family, candidate, tmp_path, max_tokens=2)
        assert row.verdict == "match", row
        assert row.values > 25


@pytest.mark.parametrize("family", marked(study.FAMILIES))
def test_a_planted_bug_is_named(family: str, tmp_path: Path) -> None:
    row = study.run(family, study.fault(family), tmp_path, max_tokens=2)
    value, kinds = study.EXPECTED[family]
    assert row.verdict == "diverged", row
    assert row.value.startswith(value), row
    assert row.kind in kinds, row


@pytest.mark.parametrize(
    ("family", "seed", "candidate"),
    [
        ("modernbert", 1, "torch:dtype=bfloat16"),  # its rotary tables are cast where they are read
        ("gpt_oss", 2, "torch:dtype=float16"),  # float16's lowest and a little less is -inf
    ],
)
def test_a_narrow_dtype_is_no_fault(family: str, seed: int, candidate: str, tmp_path: Path) -> None:
    result = firstbad.diff(
        family, random_weights=seed, candidate=candidate, output=tmp_path, max_tokens=1, threads=1, budget=0
    )
    assert result.verdict == "match", result.first_bad
    assert len(result.values["name"]) > 60
