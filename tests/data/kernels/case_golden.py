"""Failing on purpose: what its author sees is the golden file beside it."""

from __future__ import annotations

import numpy as np
import torch
from kernels import add_bias, add_no_bias

x = np.arange(12, dtype=np.float32).reshape(3, 4)
b = np.array([1, 2, 3, 4], np.float32)


def test_right(firstbad):
    firstbad.check(add_bias, torch.add, {"x": x, "b": b})


def test_bias(firstbad):
    firstbad.check(add_no_bias, torch.add, {"x": x, "b": b})


def test_shape(firstbad):
    firstbad.check(lambda x, b: add_bias(x, b)[:2], torch.add, {"x": x, "b": b})
