"""selfcheck: silent on a healthy engine, and each kind of bug found by the check that is there for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import cache_utils

from firstbad.reference import causal
from firstbad.run import CaptureOptions, ModelSpec
from firstbad.same_rows import Rows
from firstbad.selfcheck import Check, selfcheck

BUGS = Path(__file__).parents[1] / "probes/candidates/selfcheck_bugs.py"
SPEC = ModelSpec("mistral", random_weights=1, tokens=((5, 9, 11, 40, 7, 3, 8, 2, 30, 77, 41, 6),))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates' files run in this process; what they patch is put back."""
    monkeypatch.setenv("FIRSTBAD_APART", "1")
    for layer in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):
        monkeypatch.setattr(layer, "update", layer.update)


def checked(candidate: str, folder: Path, repeats: int = 2) -> dict[str, Check]:
    checks = selfcheck(candidate, causal.prepare(SPEC), folder, CaptureOptions(threads=1), repeats=repeats)
    return {check.name: check for check in checks}


def test_a_healthy_module_passes_all(here: None, tmp_path: Path) -> None:
    checks = checked(f"torch:{BUGS}:healthy", tmp_path)
    assert {name: c.first for name, c in checks.items() if c.first} == {}
    assert {name for name, c in checks.items() if c.impossible} == {"poisoned memory"}
    assert all(c.compared > 20 for c in checks.values() if not c.impossible)


def test_the_c_engine_passes_what_can_be_checked(tmp_path: Path) -> None:
    checks = checked("c", tmp_path)
    assert {name: c.first for name, c in checks.items() if c.first} == {}
    assert {name for name, c in checks.items() if c.impossible} == {
        "a batch of two",
        "other ids at padding",
        "a request before",
    }
    assert checks["a batch of two"].impossible.startswith("the built-in C engine takes one prompt at a time")


@pytest.mark.parametrize(
    ("bug", "check", "value"),
    [
        ("position_reset", "steps against prefill", "rotary"),
        pytest.param("kv_late", "steps against prefill", "self_attn", marks=pytest.mark.slow),
        pytest.param("state_kept", "a request before", "model.layers.1.", marks=pytest.mark.slow),
        ("window_narrow", "the window", "model.layers.0."),
        pytest.param("window_wide", "the window", "model.layers.0.self_attn", marks=pytest.mark.slow),
        ("padding_seen", "other ids at padding", "model.layers.0.self_attn"),
        pytest.param("race", "repeated runs", "model.layers.0.", marks=pytest.mark.slow),
    ],
)
def test_a_bug_is_found_by_its_check(here: None, tmp_path: Path, bug: str, check: str, value: str) -> None:
    checks = checked(f"torch:{BUGS}:{bug}", tmp_path, repeats=8 if bug == "race" else 2)
    first = checks[check].first
    assert first is not None, {name: c.first for name, c in checks.items()}
    assert value in first.value


def test_which_rows_stand_for_the_same_tokens() -> None:
    long = np.arange(2 * 3 * 5 * 5).reshape(2, 3, 5, 5)  # two prompts, three heads, five tokens
    one = Rows(3, 4, 5, batch=1, batches=2)
    assert np.array_equal(one.of(long, (1, 3, 1, 4)), long[1:, :, 3:4, :4]), "a step has the keys so far"
    assert np.array_equal(one.of(long, (1, 3, 1, 2)), long[1:, :, 3:4, 2:4]), "behind a window the newest"
    flat = np.arange(10 * 7).reshape(10, 7)
    assert np.array_equal(Rows(2, 5, 5, 1, 2).of(flat, (3, 7)), flat[7:10]), "a batch in one axis"
    assert one.of(flat, (3, 4)) is None
