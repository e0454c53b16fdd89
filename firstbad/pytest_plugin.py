"""The pytest plug-in: the fixture `firstbad`, for tests of kernels, functions and modules against PyTorch.

    def test_linear(firstbad):
        firstbad.check(my_linear, torch.nn.functional.linear, (x, weight, bias))

`--firstbad-report DIR` keeps traces and a page for every failed check; `--firstbad-accept` writes how large the errors
of each test are now into `firstbad-baselines/` beside the test file, and from then on an error that grows beyond it
fails, as in the gate. Leaves out whole models: that is `firstbad gate`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from firstbad.measured import Site
    from firstbad.result import Result

FOLDER = "firstbad-baselines"
_SESSION = "firstbad-session"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("firstbad")
    group.addoption("--firstbad-report", metavar="DIR", help="traces and a page for every failed firstbad.check")
    group.addoption(
        "--firstbad-accept", action="store_true", help="make how large the errors are now the baseline of each test"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--firstbad-accept") and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise pytest.UsageError("--firstbad-accept does not run in CI: accept where you work, and commit the files")
    config.pluginmanager.register(_Plugin(config), _SESSION)


class Checker:
    """The fixture. One for the session, so that a test may be a property of Hypothesis as well."""

    def __init__(self, report: str | None) -> None:
        self._report = report
        self._test = ""
        self._sites: list[tuple[Site, ...]] = []

    def check(
        self, candidate: Callable[..., Any], reference: Callable[..., Any], inputs: Any, *, budget: float = 5.0
    ) -> Result:
        """`firstbad.check`; fails the test with verdict, cause, worst element and the command that repeats it."""
        from firstbad.checking import MismatchError, compared

        output = None
        if self._report is not None:
            output = Path(self._report) / re.sub(r"[^\w.\[\]-]+", "_", self._test)
        try:
            checked = compared(
                candidate, reference, inputs, output=output, budget=budget, repro=f"pytest {self._test!r}"
            )
        except MismatchError as error:
            error.__traceback__ = None  # our own frames say nothing to whoever wrote the kernel
            raise
        self._sites.append(checked.sites)
        return checked.result

    def _begin(self, test: str) -> None:
        self._test, self._sites = test, []

    def __repr__(self) -> str:
        return "<firstbad>"


@pytest.fixture(scope="session", name="firstbad")
def _fixture(pytestconfig: pytest.Config) -> Checker:
    """Checks of kernels, functions and modules against PyTorch: `firstbad.check(candidate, reference, inputs)`."""
    plugin: _Plugin = pytestconfig.pluginmanager.get_plugin(_SESSION)  # type: ignore[assignment]  # ours, made above
    return plugin.checker


class _Plugin:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.checker = Checker(config.getoption("--firstbad-report"))
        self.written: set[Path] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        """Around the test's own call, so that an error that grew fails it as an assertion would."""
        self.checker._begin(pyfuncitem.nodeid)
        outcome = yield
        if self.checker._sites:
            self._settle(pyfuncitem)
        return outcome

    def _settle(self, item: pytest.Function) -> None:
        """The errors of all checks of one test, against its baseline or into it."""
        from firstbad.drift import compare
        from firstbad.kept_errors import read, write
        from firstbad.measured import pool

        path = item.path.parent / FOLDER / f"{item.path.stem}.jsonl"
        name = item.nodeid.partition("::")[2]
        rows = pool(self.checker._sites)
        if self.config.getoption("--firstbad-accept"):
            write(path, name, rows)
            self.written.add(path)
            return
        known = read(path, name)
        if known is None:
            return
        # Hypothesis draws other inputs in each run: there the floor of this run decides
        drawn = hasattr(item.obj, "is_hypothesis_test")
        grown = [f for f in compare(known, rows, growth=1.25, differs=drawn) if f.kind == "creep"]
        if grown:
            pytest.fail("\n".join(f.message for f in grown), pytrace=False)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for path in sorted(self.written):
            terminalreporter.write_line(f"firstbad: wrote {os.path.relpath(path)}")
