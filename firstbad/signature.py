"""What a difference looks like, before any hypothesis: which elements are wrong, and the cheap invariants of them.

The value is seen as [G, R, C]: groups (heads), rows, columns. Every figure is made on demand and once. These order and
prune the search of cause.py; none of them proves anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.judge import MASKED

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Signature:
    own: NDArray[Any]  # [G, R, C] the candidate's
    expected: NDArray[Any]  # [G, R, C]
    difference: NDArray[np.float64]  # [G, R, C] own - expected, 0 where either is no number
    wrong: NDArray[np.bool_]  # [G, R, C] beyond what rounding explains

    @staticmethod
    def of(own: NDArray[Any], expected: NDArray[Any], scale: NDArray[np.float32], allowed: float) -> Signature:
        """`allowed` x scale is the largest error of a correct engine."""
        shape = folded(own.shape)
        expected = np.asarray(expected).reshape(own.shape)
        if not np.issubdtype(expected.dtype, np.floating):
            wrong = np.asarray(own) != expected
            difference = np.asarray(own, np.float64) - expected
        else:
            c = np.asarray(own, np.float64)
            kinds = [np.where(np.isnan(x), 3, np.where(x <= MASKED, 1, np.isinf(x) * 2)) for x in (c, expected)]
            number = (kinds[0] == 0) & (kinds[1] == 0)
            with np.errstate(invalid="ignore", over="ignore"):
                difference = np.where(number, c - expected, 0.0)
            limit = np.broadcast_to(scale, own.shape) if scale.size > 1 else scale
            wrong = (kinds[0] != kinds[1]) | (np.abs(difference) > allowed * limit)
        return Signature(own.reshape(shape), expected.reshape(shape), difference.reshape(shape), wrong.reshape(shape))

    @property
    def shape(self) -> tuple[int, int, int]:
        G, R, C = self.wrong.shape
        return G, R, C

    @cached_property
    def share_wrong(self) -> float:
        return float(self.wrong.mean()) if self.wrong.size else 0.0

    @cached_property
    def total(self) -> float:
        """|difference|²"""
        d = self.difference.ravel()
        return float(d @ d)

    @cached_property
    def groups(self) -> NDArray[np.bool_]:
        """[G] groups with a wrong element."""
        return np.asarray(self.wrong.any((1, 2)))

    @cached_property
    def rows(self) -> NDArray[np.bool_]:
        """[R] rows with a wrong element in any group."""
        return np.asarray(self.wrong.any((0, 2)))

    @cached_property
    def columns(self) -> NDArray[np.bool_]:
        """[C] columns with a wrong element in any group."""
        return np.asarray(self.wrong.any((0, 1)))

    @cached_property
    def same_in_rows(self) -> float:
        """Share of the difference that is one vector [C], equal in every row (a bias)."""
        return self._share(np.broadcast_to(self.difference.mean((0, 1), keepdims=True), self.shape))

    @cached_property
    def gain(self) -> float:
        """The global ratio own / expected by least squares."""
        return float(self.gains((0, 1, 2)).item())

    def gains(self, axes: tuple[int, ...]) -> NDArray[np.float64]:
        """Ratios own / expected by least squares over `axes`, which stay as 1."""
        y = self._numbers
        weight = (y * y).sum(axes, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = 1 + (self.difference * y).sum(axes, keepdims=True) / weight
        return np.where(weight > 0, ratio, 1.0)

    def share_of_gain(self, axes: tuple[int, ...]) -> float:
        """Share of the difference that is one factor for each slice along `axes`."""
        return self._share((self.gains(axes) - 1) * self._numbers)

    @cached_property
    def sorted_equal(self) -> bool:
        """The same numbers in another order (to within rounding)."""
        a, b = np.sort(self.own, axis=None), np.sort(self.expected, axis=None)
        with np.errstate(invalid="ignore"):
            off, size = np.abs(a - b), np.abs(b)
            return bool(np.nanmax(off, initial=0.0) <= 1e-4 * (np.nanmax(size, initial=0.0) + 1e-30))

    @cached_property
    def _numbers(self) -> NDArray[np.float64]:
        y = np.asarray(self.expected, np.float64)
        return np.where(np.isfinite(y) & (y > MASKED), y, 0.0)

    def _share(self, model: NDArray[Any]) -> float:
        left = (self.difference - model).ravel()
        return 1 - float(left @ left) / self.total if self.total > 0 else 0.0


def folded(shape: Sequence[int]) -> tuple[int, int, int]:
    """Any shape as [G, R, C]."""
    C = shape[-1] if len(shape) else 1
    R = shape[-2] if len(shape) > 1 else 1
    return max(1, math.prod(shape[:-2])), R, C


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The stretches of True as (first, last)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
