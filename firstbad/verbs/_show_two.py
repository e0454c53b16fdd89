"""The parts of `firstbad show` that look at two traces beside each other, and the heat map.

Leaves out the choice of values: show.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firstbad.errors import UsageError
from firstbad.theme import theme_for
from firstbad.verbs.show import grid, plain, title, where

if TYPE_CHECKING:
    from firstbad.beside import Beside
    from firstbad.graph import Value
    from firstbad.trace import Trace


def show_beside(trace: Trace, other: Trace, values: Sequence[Value], args: argparse.Namespace, close: bool) -> None:
    from firstbad.beside import beside

    found = beside(trace, other, values)
    if args.json:
        records = [
            {"step": b.value.step, "name": b.value.name, "relative": plain(b.relative), "largest": plain(b.largest)}
            | {"index": list(b.index), "why": b.why}
            for b in found
        ]
        print(json.dumps({"trace": str(trace.path), "with": str(other.path), "values": records}, allow_nan=False))
        return
    theme = theme_for(sys.stdout)
    for one in (trace, other):
        print(title(one, theme))
    if close:
        _print_close(trace, other, found[0], args)
        return
    width = max((len(b.value.name) for b in found), default=0)
    steps = max((len(b.value.step) for b in found), default=0)
    for b in found:
        text = theme.dim(b.why) if b.why else "equal" if b.largest == 0 else f"differs by {b.relative:.2g}"
        if b.known_by != "array":
            text = _unseen(b)
        elif not b.why and b.largest:
            text += f", at most {b.largest:.4g} at {list(b.index)}"
        name = theme.name(b.value.name) + " " * (width - len(b.value.name))
        print(f"{theme.dim(b.value.step.ljust(steps))}  {name}  {text}")
    print(theme.dim(f"{len(found)} values; which of them are wrong: firstbad compare REFERENCE.h5 CANDIDATE.h5"))


def _unseen(b: Beside) -> str:
    """Of values of which hashes and sketches alone are known."""
    if b.known_by == "hash":
        return "equal, by its hash"
    if b.relative == 0:
        return "of another hash, and the same in all quantiles"
    return f"its quantiles differ by {b.relative:.2g}, at most {b.largest:.4g}"


def _print_close(trace: Trace, other: Trace, found: Beside, args: argparse.Namespace) -> None:
    from firstbad.beside import around
    from firstbad.summary import cut, histogram, summarise

    theme = theme_for(sys.stdout)
    value, partner = found.value, found.other
    print(f"{theme.name(value.name)}  {theme.dim(value.step)}  {list(value.shape)} {value.dtype}")
    if found.known_by != "array":
        print(f"  {_unseen(found)}")
        return
    if partner is None or found.why or 0 in value.shape:
        print(f"  {found.why or 'holds no element'}")
        return
    arrays = [trace.array(value), other.array(partner).reshape(value.shape)]
    for one, array in zip((trace, other), arrays, strict=True):
        s = summarise(array)
        text = f"min {s.min:<11.5g} max {s.max:<11.5g} mean {s.mean:<11.5g} rms {s.rms:<11.5g}"
        print(f"  {theme.dim(one.role.ljust(10))}  {text} {histogram(array, s)}")
    if found.largest == 0:
        print(f"  {theme.good('equal')}, element by element")
    else:
        at = f"at most {found.largest:.6g} at {list(found.index)}"
        print(f"  {theme.dim('difference')}  {found.relative:.3g} of its size, {at}")
    index = args.slice or around(value.shape, found.index)
    for one, array in zip((trace, other), arrays, strict=True):
        part, written = cut(array, index)
        print(f"  {theme.dim(one.role.ljust(10))}  {written}")
        print(grid(part))
    if args.heat:
        end = print_heat(trace, value)
        print_heat(other, partner, end)


def print_heat(trace: Trace, value: Value, top: float | None = None) -> float:
    """Prints one value as a heat map up to `top`, or its own largest; returns the end of the scale."""
    from firstbad.heat import heat

    if not trace.stored(value) or 0 in value.shape:
        raise UsageError(f"--heat: `{value.name}` of {value.step} is {where(trace, value)}")
    theme = theme_for(sys.stdout)
    size = shutil.get_terminal_size((100, 40))
    lines, end = heat(trace.array(value), min(120, size.columns - 4), 24, theme, top)
    print(f"  {theme.dim(trace.role.ljust(10))}  each character the largest of its block, to ±{end:.4g}")
    for line in lines:
        print(f"    {line}".rstrip())
    return end
