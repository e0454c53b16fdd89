"""The errors of firstbad, one small tree; each class carries the exit code that `main` returns for it.

    FirstbadError              3
    ├── UsageError             2   a wrong command line, name, file or input: the user can mend it
    ├── CompareError           3   the comparison could not be made: engine crashed, trace unreadable, value missing
    └── UnstableReferenceError 4   the reference does not reproduce itself

A message is one line in the compiler's manner: what, where, what to do; lower case, no full stop.
"""

from __future__ import annotations

EXIT_MATCH = 0
EXIT_DIVERGED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_REFERENCE = 4


class FirstbadError(Exception):
    """Base of every error that a user of firstbad is meant to see."""

    exit_code = EXIT_INCOMPLETE


class UsageError(FirstbadError):
    """A wrong command line, name, file or input: the user can mend it."""

    exit_code = EXIT_USAGE


class CompareError(FirstbadError):
    """The comparison could not be made: the engine crashed, a trace is unreadable, a value is missing."""

    exit_code = EXIT_INCOMPLETE


class UnstableReferenceError(FirstbadError):
    """The reference does not reproduce itself."""

    exit_code = EXIT_REFERENCE
