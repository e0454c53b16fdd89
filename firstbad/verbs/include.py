"""`firstbad include`: where firstbad.h is, for a compiler's command line: cc -I"$(firstbad include)" engine.c"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from firstbad.errors import CompareError

HELP = "print the folder of firstbad.h, the C header that puts your engine under the probe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Takes none."""


def run(_args: argparse.Namespace) -> int:
    print(folder())
    return 0


def folder() -> Path:
    package = importlib.import_module("firstbad.probes")
    found = Path(package.__path__[0]) / "include"
    if not (found / "firstbad.h").is_file():
        raise CompareError(f"no firstbad.h in {found}: this installation is broken, install firstbad again")
    return found
