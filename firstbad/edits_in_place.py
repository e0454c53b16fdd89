"""Edits of kind `clobbered` where an op overwrites its own input while it still reads it.

Only where the probe recorded addresses and the output's memory overlaps an input's. The op is run on a copy of that
memory, a block of rows and columns at a time, each block written before the next is read; the size of the blocks is
what is sought. What is written is the candidate's own, so that its roundings are those that were read. Leaves out ops
that are no linear layer: what they leave behind halfway is the kernel's own business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.case import Case
from firstbad.edit import FITTED, Edit
from firstbad.edits_variant import word_of
from firstbad.wiring import in_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = (32, 16, 8, 64, 4, 128, 1)
MOST = 2048
"""Blocks of one try."""


def in_place(case: Case) -> Iterator[Edit]:
    """The linear layer run over its own input, in blocks."""
    op, made = case.ops[-1], case.op
    if word_of(op) != "linear" or len(case.ops) != 1 or made is None:
        return
    own, args = case.judged.pair.candidate, op.attrs["args"]
    weight = case.preview_value(args[1]["v"])
    bias = case.preview_value(args[2]["v"]) if isinstance(args[2], dict) else None
    for read in made.reads:
        value = case.candidate.graph.values[read.value] if read.value >= 0 else own
        apart = own.address - value.address
        overlaps = own.address and value.address and -own.extent < apart < value.extent and apart % 4 == 0
        if not overlaps or value.kind == "weight" or value.dtype != "float32" or weight is None or value.id == own.id:
            continue
        x = in_memory(value, case.candidate.array(value))
        inner, count = weight.shape[1], math.prod(own.shape)
        if x.size != count // weight.shape[0] * inner or own.extent != 4 * count:
            continue
        rows = x.size // inner
        mine = in_memory(own, case.candidate.array(own)).reshape(rows, -1)
        for block in dict.fromkeys((rows, (rows + 1) // 2, 8, 1)):
            for columns in COLUMNS:
                if columns < weight.shape[0] and -(-rows // block) * -(-weight.shape[0] // columns) <= MOST:
                    output, scale = _run(x, weight, bias, apart // 4, block, columns, mine)
                    detail = {
                        "input": value.name,
                        "overwritten_by": own.name,
                        "block_rows": block,
                        "block_columns": columns,
                    }
                    more = {"input_step": value.step, "how": "by its own output"}
                    output = output.reshape(case.own().shape)
                    yield Edit("clobbered", detail | more, output=output, scale=scale, cost=FITTED)


def _run(
    x: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    apart: int,
    block: int,
    columns: int,
    own: NDArray[Any],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The output and its condition, `apart` elements after the start of `x` in one memory, a block at a time."""
    N, inner = weight.shape
    rows = x.size // inner
    before = max(0, -apart)
    memory = np.zeros(before + max(x.size, apart + rows * N), np.float32)
    source = memory[before : before + x.size].reshape(rows, inner)
    source[:] = x.reshape(rows, inner)
    target = memory[before + apart : before + apart + rows * N].reshape(rows, N)
    made, scale = np.zeros((rows, N)), np.zeros((rows, N))
    for r in range(0, rows, block):
        for c in range(0, N, columns):
            read, w = source[r : r + block].astype(np.float64), weight[c : c + columns].T.astype(np.float64)
            more = 0.0 if bias is None else bias[c : c + columns]
            made[r : r + block, c : c + columns] = read @ w + more
            scale[r : r + block, c : c + columns] = np.abs(read) @ np.abs(w) + np.abs(more)
            target[r : r + block, c : c + columns] = own[r : r + block, c : c + columns]
    return made, scale
