"""ONNX Runtime's node dumps in a database, which its debug build writes if their destination is `sqlite`.

A table `Tensors` with the number of the run, the tensor's name and a TensorProto. The first run is the model's first
step, the n-th after it `decode.n-1`. Leaves out the table of nodes: it says where they ran, not what they read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .dump_onnx import tensor
from .dumped import Dumped, cut, files

KNOWN = "ONNX Runtime's databases"
MADE = "select Step, Name, Value from Tensors where TracedProducer != '' order by rowid"  # by a node: no weights


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    for path in files(folder, ".db", without=taken):
        try:
            with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as base:
                rows = base.execute(MADE).fetchall()
        except sqlite3.Error as error:
            raise cut(path, error) from None
        steps = sorted({step for step, _, _ in rows})
        for step, name, data in rows:
            n = steps.index(step)
            yield replace(tensor(path, data, name), step=f"decode.{n - 1}" if n else "")
