"""Noise turns no gate red, and an error of twice the noise floor always does: tests/bench/gate_noise.py, which writes a
page of more, in small."""

from __future__ import annotations

import pytest

from firstbad.config import Config
from tests.bench.gate_noise import accepted, clean, creeping


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
            patch.delenv(name, raising=False)
        return accepted(tmp_path_factory.mktemp("creep"))


def reds(config: Config, count: int, seed: int) -> list[object]:
    return [one for one in clean(config, count, seed) if one.red]


def missed(config: Config, count: int, seed: int) -> list[object]:
    return [one for one in creeping(config, count, seed) if not one.said]


def test_some_clean_variations_and_some_creeping_errors(config: Config) -> None:
    assert reds(config, 2, seed=1) == []
    assert missed(config, 2, seed=2) == []


@pytest.mark.slow
def test_a_hundred_clean_variations(config: Config) -> None:
    assert reds(config, 100, seed=3) == []


@pytest.mark.slow
def test_thirty_creeping_errors(config: Config) -> None:
    assert missed(config, 30, seed=4) == []
