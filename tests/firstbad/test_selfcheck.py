"""selfcheck: silent on a healthy engine, and each kind of bug found by the check that is there for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import cache_utils

from firstbad.dither import moved
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


def checked(candidate: str, folder: Path, repeats: int = 2, only: tuple[str, ...] = ()) -> dict[str, Check]:
    prepared, options = causal.prepare(SPEC), CaptureOptions(threads=1)
    checks = selfcheck(candidate, prepared, folder, options, repeats=repeats, only=only)
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
        ("kv_late", "steps against prefill", "self_attn"),
        ("state_kept", "a request before", "model.layers.1."),
        ("window_narrow", "the window", "model.layers.0."),
        ("window_wide", "the window", "model.layers.0.self_attn"),
        ("padding_seen", "other ids at padding", "model.layers.0.self_attn"),
        pytest.param("race", "repeated runs", "model.layers.0.", marks=pytest.mark.slow),
        ("future_seen", "a later token changed", "model.layers.1."),
        ("off_by_more", "steps against prefill", "model."),
    ],
)
def test_a_bug_is_found_by_its_check(here: None, tmp_path: Path, bug: str, check: str, value: str) -> None:
    checks = checked(f"torch:{BUGS}:{bug}", tmp_path, repeats=8 if bug == "race" else 2, only=(check,))
    first = checks[check].first
    assert first is not None, {name: c.first for name, c in checks.items()}
    assert value in first.value


def test_an_error_of_the_size_of_rounding_is_none(here: None, tmp_path: Path) -> None:
    checks = checked(f"torch:{BUGS}:off_by_noise", tmp_path, only=("steps against prefill",))
    assert checks["steps against prefill"].first is None
    assert 0 < checks["steps against prefill"].margin < 0.5


def test_experts_of_other_tokens_change_the_last_bits_only(here: None, tmp_path: Path) -> None:
    """Another later token goes to other experts: sums of other shapes, which is no fault."""
    prepared, name = causal.prepare(ModelSpec("mixtral", random_weights=1)), "a later token changed"
    checks = selfcheck("torch:", prepared, tmp_path, CaptureOptions(threads=1), only=(name,))
    assert [c.name for c in checks] == [name]
    assert checks[0].first is None and checks[0].compared > 100


def test_a_neighbour_is_one_step_of_the_dtype_away() -> None:
    random = np.random.Generator(np.random.PCG64(3))
    numbers = random.standard_normal(4000).astype(np.float32)
    all_of_them = moved(numbers, "float32", random)
    assert np.array_equal(np.abs(all_of_them - numbers), np.abs(np.nextafter(numbers, all_of_them) - numbers))
    assert 0.4 < np.mean(np.abs(all_of_them) > np.abs(numbers)) < 0.6
    half = numbers.astype(np.float16).astype(np.float32)
    other = moved(half, "float16", random)
    changed = other != half
    steps = np.abs(other.astype(np.float16).view(np.int16).astype(int) - half.astype(np.float16).view(np.int16))
    assert 0 < changed.sum() < 60
    assert (steps[changed] == 1).all()
    assert np.array_equal(moved(np.zeros(5, np.float32), "float32", random), np.zeros(5))


def test_which_rows_stand_for_the_same_tokens() -> None:
    long = np.arange(2 * 3 * 5 * 5).reshape(2, 3, 5, 5)  # two prompts, three heads, five tokens
    one = Rows(3, 4, 5, batch=1, batches=2)
    assert np.array_equal(one.of(long, (1, 3, 1, 4)), long[1:, :, 3:4, :4]), "a step has the keys so far"
    assert np.array_equal(one.of(long, (1, 3, 1, 2)), long[1:, :, 3:4, 2:4]), "behind a window the newest"
    flat = np.arange(10 * 7).reshape(10, 7)
    assert np.array_equal(Rows(2, 5, 5, 1, 2).of(flat, (3, 7)), flat[7:10]), "a batch in one axis"
    assert one.of(flat, (3, 4)) is None
