"""argparse in our manner: what is wrong, where, what to do, and the nearest name for a misspelt one.

Errors are raised as UsageError, so that `main` is the one place that prints them.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from firstbad.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations: a command in a script must not change its meaning when an option is added."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        self._refuse_unknown(argv)
        args, extra = self.parse_known_args(argv)
        if extra:
            raise UsageError(f"unexpected `{extra[0]}`: {self._see_help()}")
        return args

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{_restyle(message)}: {self._see_help()}")

    def _refuse_unknown(self, argv: Sequence[str]) -> None:
        """Before argparse has its say: a misspelt option is the cause of the missing one that it would complain of."""
        known = self._option_string_actions
        for word in argv:
            if word == "--":
                return
            name = word.partition("=")[0]
            # argparse takes a word with a space in it for a value
            if name.startswith("--") and " " not in word and name not in known:
                hint = did_you_mean(name, known) or self._see_help()
                raise UsageError(f"unknown option `{name}`: {hint}")

    def _see_help(self) -> str:
        return f"see `{self.prog} --help`"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "did you mean `x`?", or "" where nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def _restyle(message: str) -> str:
    """argparse's own messages, brought into our form."""
    if required := re.fullmatch(r"the following arguments are required: (.*)", message):
        return "missing " + ", ".join(f"`{name}`" for name in required[1].split(", "))
    message = re.sub(r"^argument (\S+): ", r"`\1`: ", message)
    if choice := re.fullmatch(r"(.*invalid choice: '(.*)') \(choose from (.*)\)", message):
        known = [name.strip("' ") for name in choice[3].split(",")]
        return f"{choice[1]}, {did_you_mean(choice[2], known) or 'known: ' + ', '.join(known)}"
    return message
