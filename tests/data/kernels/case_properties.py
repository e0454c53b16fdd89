"""Properties over shapes, dtypes and strides: one that holds, and one that a bug with strides breaks."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from kernels import softmax, softmax_adjacent

from firstbad import strategies

ROWS = strategies.arrays((strategies.sizes(), strategies.sizes()), layouts=("contiguous", "padded"), scale=3)
QUICK = settings(max_examples=25, deadline=None, database=None, derandomize=True)


def reference(x):
    return torch.softmax(x, -1)


@QUICK
@given(ROWS)
def test_softmax(firstbad, x):
    firstbad.check(softmax, reference, x)


@QUICK
@given(ROWS)
def test_softmax_adjacent(firstbad, x):
    firstbad.check(softmax_adjacent, reference, x)


@QUICK
@given(strategies.tensors(strategies.shapes((1, 3), 9), dtype="bfloat16"))
def test_bfloat16(firstbad, x):
    firstbad.check(torch.tanh, torch.tanh, x)
