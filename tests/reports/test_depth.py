"""The chart: fewer points than pixels, the fault's step wide, errors in place on a log scale."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from firstbad.reports.depth import COLUMNS, FOCUS, LEFT, RIGHT, WIDTH, depth_of, power
from firstbad.reports.rows import Row, Rows


def rows(steps: list[tuple[str, int]], bad: int = -1, times: float = 1.0) -> Rows:
    many = [step for step, count in steps for _ in range(count)]
    clean = Row(0, "", "", "op", (2,), "float32", "clean", 1e-7, 1e-7, times, 1e-7, 6e-6, "whole")
    found = [replace(clean, index=i, step=step, name=f"v{i}") for i, step in enumerate(many)]
    if bad >= 0:
        found[bad] = replace(found[bad], verdict="culprit", times=1e6)
    return Rows(tuple(found), {})


def test_the_step_of_the_fault_is_wide() -> None:
    found = rows([("encode", 60)] + [(f"decode.{i}", 100) for i in range(20)], bad=30)
    chart = depth_of(found, [found.all[30]])
    assert chart is not None
    wide = chart.spans[0]
    assert math.isclose(wide.right - wide.left, FOCUS * (WIDTH - LEFT - RIGHT))
    assert math.isclose(chart.spans[-1].right, WIDTH - RIGHT)
    assert chart.flags[0].text == "v30"
    assert wide.left < chart.flags[0].x < wide.right
    assert chart.flags[0].y < chart.limit


def test_points_are_pooled_by_their_largest() -> None:
    found = rows([("forward", 20_000)], bad=12_345)
    chart = depth_of(found, [found.all[12_345]])
    assert chart is not None
    assert chart.local.count("M") <= COLUMNS + 1
    assert chart.pooled == math.ceil(20_000 / COLUMNS)
    highest = min(float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h0", chart.local))
    assert math.isclose(highest, chart.flags[0].y, abs_tol=0.1)


def test_infinite_errors_stand_at_the_top_and_nothing_breaks() -> None:
    chart = depth_of(rows([("a", 3)], times=math.inf), [])
    assert chart is not None
    assert "nan" not in chart.local
    assert "inf" not in chart.local
    assert depth_of(Rows((), {}), []) is None


def test_powers() -> None:
    assert [power(x) for x in (0.01, 0.1, 1, 10, 1e6)] == ["10⁻²", "10⁻¹", "1", "10", "10⁶"]
