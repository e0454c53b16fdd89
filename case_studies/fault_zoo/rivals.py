"""The rules that other tools judge by, and the truth of the zoo; NumPy and h5py only, nothing of firstbad's.

Each rule walks the values of two traces in the order of execution; the first value past it is its answer. The truth:
whether a broken run differs anywhere from the healthy run of the same engine by more than correct rewrites of that
engine differ from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import h5py
import numpy as np

Values = dict[tuple[str, str], np.ndarray]
Rule = Callable[[np.ndarray, np.ndarray], bool]

MASK = 1e30
"""A score of this size is a mask; no rule could be fair about its last digits."""


def values(path: Path) -> Values:
    """(step, name) → array, in the order in which they were made; numbers of floating point only."""
    found: Values = {}
    with h5py.File(path, "r") as file:
        table = file["graph/values"]
        wanted = ("step", "name", "kind", "dataset", "same_as")
        rows = [{k: _text(row[k]) for k in wanted} for row in table[:]]
        for row in rows:
            if row["kind"] in ("value", "input") and (row["dataset"] or row["same_as"] >= 0):
                where = row
                while not where["dataset"]:
                    where = rows[where["same_as"]]
                found[row["step"], row["name"]] = file[where["dataset"]][()]
    return found


def _text(cell: object) -> object:
    return cell.decode() if isinstance(cell, bytes) else cell


def common(a: Values, b: Values) -> Iterator[tuple[tuple[str, str], np.ndarray, np.ndarray]]:
    """Pairs of one name and size, in the order of the first; up to where the tokens that were fed differ."""
    for key, x in a.items():
        y = b.get(key)
        if y is None or x.size != y.size:
            continue
        if key[1] == "decoder_input_ids" and not np.array_equal(x, y):
            return
        yield key, x, y.reshape(x.shape)


def _flat(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = x.astype(np.float64).ravel(), y.astype(np.float64).ravel()
    masked = (x <= -MASK) & (y <= -MASK)
    return x[~masked], y[~masked]


def _allclose(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.allclose(y, x, rtol=1e-5, atol=1e-8, equal_nan=True))


def _cosine(x: np.ndarray, y: np.ndarray) -> bool:
    size = np.linalg.norm(x) * np.linalg.norm(y)
    return bool(size == 0 or x @ y / size >= 0.99)


def _relative(x: np.ndarray, y: np.ndarray) -> bool:
    size = np.linalg.norm(x)
    return bool(np.linalg.norm(y - x) <= 1e-3 * size if size else not y.any())


def _difference(x: np.ndarray, y: np.ndarray) -> bool:
    size = x @ x + y @ y
    return bool(size == 0 or 1 - 2 * (x @ y) / size <= 1e-3)


def _largest(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.abs(y - x).max(initial=0.0) <= 1e-5)


RULES: Mapping[str, Rule] = {
    "allclose": _allclose,  # torch's defaults
    "cosine": _cosine,  # below 0.99
    "relative": _relative,  # L2 above 1e-3
    "difference": _difference,  # 1 - 2<x,y> / (x² + y²) above 1e-3
    "largest": _largest,  # absolute difference above 1e-5: Polygraphy's default
}


def answers(reference: Values, candidate: Values) -> dict[str, str]:
    """Rule → name of the first value past it; "" where none is."""
    left = dict.fromkeys(RULES, "")
    with np.errstate(all="ignore"):
        for (_, name), x, y in common(reference, candidate):
            if not np.issubdtype(x.dtype, np.floating):
                continue
            a, b = _flat(x, y)
            for rule, passes in RULES.items():
                if not left[rule] and not passes(a, b):
                    left[rule] = name
            if all(left.values()):
                break
    return left


Noise = dict[tuple[str, str], tuple[float, float]]
"""(step, name) → relative L2 and largest difference of correct rewrites of the engine."""


def noise(healthy: Values, others: list[Values]) -> Noise:
    """What correct rewrites make of each value, beside one rounding step of its largest number."""
    found: Noise = {}
    for other in others:
        for key, x, y in common(healthy, other):
            l2, largest = _off(x, y)
            before = found.get(key, (0.0, 0.0))
            found[key] = (max(before[0], l2), max(before[1], largest))
    return found


def shows(healthy: Values, broken: Values, known: Noise) -> str:
    """The first value that the fault changes beyond noise: twice what a rewrite makes and four roundings; "": none."""
    u = 2.0**-24
    for key, x, y in common(healthy, broken):
        l2, largest = _off(x, y)
        if not np.issubdtype(x.dtype, np.floating):
            if largest:
                return key[1]
            continue
        allowed_l2, allowed = known.get(key, (0.0, 0.0))
        numbers = np.abs(x[np.isfinite(x) & (np.abs(x) < MASK)])
        if not (l2 <= 2 * allowed_l2 + u and largest <= 2 * allowed + 4 * u * float(numbers.max(initial=0.0))):
            return key[1]
    return ""


def _off(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    a, b = _flat(x, y)
    number = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~number], b[~number], equal_nan=True):
        return np.inf, np.inf
    a, b = a[number], b[number]
    size = float(np.linalg.norm(a))
    l2 = float(np.linalg.norm(b - a)) / size if size else float(np.abs(b).max(initial=0.0))
    return l2, float(np.abs(b - a).max(initial=0.0))
