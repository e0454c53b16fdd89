"""The planted faults (planted.py) as fixtures; the model is recorded once for all tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def planted() -> ModuleType:
    """The module planted.py, loaded where a test wants it: it brings PyTorch."""
    path = Path(__file__).with_name("planted.py")
    spec = importlib.util.spec_from_file_location("planted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planted"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def recorded(planted: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference's trace of the small model."""
    return planted.record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def fault(planted: ModuleType, recorded: Any, tmp_path: Path) -> Callable[..., Any]:
    """(name of a value, how it is computed wrongly) → the one fault that firstbad finds."""

    def planted_at(name: str, wrong: Any, **options: Any) -> Any:
        return planted.one_fault(recorded, name, wrong, tmp_path, **options)

    return planted_at
