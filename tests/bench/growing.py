"""Time and memory of a whole comparison (replay and all) as the traces grow, and its peak on large ones."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from chains import child, make  # the same folder of scripts

SHAPE = (16, 512, 512)  # 16.8 MB a value


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """Slope of log figure on log size: 1 is linear, 0 does not grow."""
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])


def rows(quick: bool = False) -> Iterator[tuple[str, float | None, str, str]]:
    links = (1, 4) if quick else (1, 4, 16, 60)  # 134 MB of traces a link; 60 of them are 8 GB
    bytes_, seconds, memory = [], [], []
    for n in links:
        with tempfile.TemporaryDirectory() as folder:
            needed = 8.5 * n * 4 * math.prod(SHAPE)
            if shutil.disk_usage(folder).free < 2 * needed:
                yield f"traces of {needed / 1e9:.1f} GB: not measured (no room on the disk)", None, "", ""
                break
            taken = child(*make(Path(folder), n, SHAPE))
        bytes_.append(taken["bytes"])
        seconds.append(taken["seconds"])
        memory.append(taken["anonymous"])
        GB = taken["bytes"] / 1e9
        yield f"comparison with replay of {GB:.2f} GB of traces", taken["seconds"], "s", ""
        yield f"its peak memory at {GB:.2f} GB (own pages)", memory[-1] / 1e6, "MB", "<= 517" if n == 60 else ""
        yield f"the same with mapped pages of the files at {GB:.2f} GB", taken["resident"] / 1e6, "MB", ""
    if len(bytes_) > 1:
        yield "exponent of its time", exponent(bytes_, seconds), "", "<= 1.1"
        yield "exponent of its memory", exponent(bytes_, memory), "", "<= 1.1"
