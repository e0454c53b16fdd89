"""Strategies for Hypothesis: shapes, dtypes and arrays in every memory layout, that shrink to what shows a bug.

    @given(strategies.arrays((strategies.sizes(), 16), layouts=strategies.ALL))
    def test_kernel(firstbad, x):
        firstbad.check(kernel, torch.relu, x)

The numbers come from one seed, so that what shrinks is the shape and the layout: first to a contiguous array, then to
the smallest one. Needs Hypothesis, which firstbad itself does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    import numpy as np
    from hypothesis.strategies import DrawFn, SearchStrategy

ALL = ("contiguous", "padded", "transposed", "sliced")
"""Layouts: as usual; rows longer than they show; the axes in another order in memory; every second element."""

FLOATS = ("float32", "float16", "bfloat16")


def sizes(most: int = 33, least: int = 1) -> SearchStrategy[int]:
    """A dimension: small ones and those around the widths of vectors, where kernels have their seams."""
    seams = [n for n in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129) if least <= n <= most]
    return st.one_of(st.sampled_from(seams), st.integers(least, most)) if seams else st.integers(least, most)


def shapes(rank: int | tuple[int, int] = (1, 4), most: int = 33) -> SearchStrategy[tuple[int, ...]]:
    """Shapes of `rank` axes, or of a number of axes between two."""
    low, high = (rank, rank) if isinstance(rank, int) else rank
    return st.lists(sizes(most), min_size=low, max_size=high).map(tuple)


def dtypes(names: Sequence[str] = FLOATS) -> SearchStrategy[str]:
    """Names of dtypes; bfloat16 is for `tensors` only."""
    return st.sampled_from(list(names))


@st.composite
def arrays(
    draw: DrawFn,
    shape: Any,
    *,
    dtype: str = "float32",
    layouts: Sequence[str] = ALL,
    scale: float = 1.0,
) -> np.ndarray:
    """A NumPy array of normal numbers. `shape`: a strategy for shapes, or a tuple of sizes and strategies for them."""
    sized = draw(shape) if not isinstance(shape, tuple) else tuple(n if isinstance(n, int) else draw(n) for n in shape)
    layout = draw(st.sampled_from(list(layouts)))
    seed = draw(st.integers(0, 2**16))
    return _laid_out(sized, layout, seed, dtype, scale)


@st.composite
def tensors(
    draw: DrawFn, shape: Any, *, dtype: str = "float32", layouts: Sequence[str] = ALL, scale: float = 1.0
) -> Any:
    """The same as tensors of PyTorch, with the same strides."""
    import torch

    array = draw(arrays(shape, dtype="float32", layouts=layouts, scale=scale))
    tensor = torch.from_numpy(array)
    if dtype == "float32":
        return tensor
    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=getattr(torch, dtype))
    return other.copy_(tensor)


def _laid_out(shape: tuple[int, ...], layout: str, seed: int, dtype: str, scale: float) -> np.ndarray:
    import numpy as np

    numbers = np.random.Generator(np.random.PCG64(seed)).standard_normal(math.prod(shape)) * scale
    content = numbers.reshape(shape).astype(dtype)
    if layout == "contiguous" or not shape:
        return content
    if layout == "transposed":
        return np.ascontiguousarray(content.T).T
    # what lies between is NaN: a kernel that reads it shows it
    if layout == "padded":
        held = np.full((*shape[:-1], shape[-1] + 3), np.nan, dtype)
        view = held[..., : shape[-1]]
    elif layout == "sliced":
        held = np.full(tuple(2 * n for n in shape), np.nan, dtype)
        view = held[tuple(slice(None, None, 2) for _ in shape)]
    else:
        raise ValueError(f"no layout {layout!r}: known are {', '.join(ALL)}")
    view[...] = content
    return view
