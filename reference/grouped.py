"""The product of routed experts in any dtype: rows in groups, each group times its own matrix.

PyTorch's own `_grouped_mm` knows no float64. Leaves out its other forms, with groups of columns or of terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from firstbad.errors import CompareError

from .sequential import Sampled, Sampler, total

Tensor = torch.Tensor


def product(rows: Tensor, matrices: Tensor, ends: Tensor | None = None, *rest: Any, **more: Any) -> Tensor:
    """[N, K] times [E, K, F] → [N, F]; rows up to `ends[e]` belong to matrix e."""
    if ends is None or rows.dim() != 2 or matrices.dim() != 3 or any(r is not None for r in (*rest, *more.values())):
        raise CompareError("cannot replay `_grouped_mm`: only rows in groups are known, each times a matrix")
    made = rows.new_zeros(rows.shape[0], matrices.shape[2])
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        made[begin:end] = rows[begin:end] @ matrices[expert]
        begin = end
    return made


def condition(abs_: Callable[[Tensor], Tensor], rows: Tensor, matrices: Tensor, *rest: Any, **more: Any) -> Tensor:
    return product(rows.abs(), abs_(matrices), *rest, **more)


def sequential(pick: Sampler, rows: Tensor, matrices: Tensor, ends: Tensor, *_: Any, **__: Any) -> Sampled:
    """Sampled elements, each a sum taken term by term."""
    F = matrices.shape[2]
    flat = pick.pick(rows.shape[0] * F)
    row, column = np.divmod(flat, F)
    expert = np.searchsorted(np.asarray(ends), row, side="right")
    return flat, total(np.asarray(rows)[row] * np.asarray(matrices)[expert, :, column])
