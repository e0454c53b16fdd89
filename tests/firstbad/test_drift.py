"""A case against its baseline: what is red, what is told, and that a NaN is never green."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from firstbad.baseline import Baseline
from firstbad.drift import compare
from firstbad.measured import Row

from .test_baseline import baseline, row

QUIET = ("a", "b", "c", "d")


def rows(**changes: float) -> list[Row]:
    return [row(name, error=changes.get(name, 0.5)) for name in QUIET]


def found(base: Baseline, now: list[Row], **options: object) -> list[tuple[str, str]]:
    return [(f.kind, f.value) for f in compare(base, now, **{"growth": 1.25, **options})]  # type: ignore[arg-type]


BASE = baseline(*rows())


def test_the_same_says_nothing() -> None:
    assert found(BASE, rows()) == []


@pytest.mark.parametrize("error", [0.63, 1.0, math.nan, math.inf])
def test_an_error_that_grew(error: float) -> None:
    assert found(BASE, rows(b=error)) == [("creep", "b")]


def test_growth_within_what_clean_runs_vary() -> None:
    varied = replace(BASE, highest={**BASE.highest, ("encode", "b"): (0.9,) * 6})
    assert found(varied, rows(b=1.1)) == []
    assert found(varied, rows(b=1.2)) == [("creep", "b")]


def test_one_row_that_grew_is_seen_although_the_whole_did_not() -> None:
    now = rows()
    now[2] = replace(now[2], error=(0.5, 0.5, 2.6, 0.5, 0.5, 0.5))
    (finding,) = compare(BASE, now, growth=1.25)
    assert (finding.kind, finding.value) == ("creep", "c")
    assert "in its worst row: 2.60 noise floors, 0.50 in the baseline" in finding.message
    now[2] = replace(now[2], error=(0.5, 0.5, 2.4, 0.5, 0.5, 2.4))  # the worst of many is drawn anew by any change
    assert found(BASE, now) == []


def test_on_another_machine_the_floor_is_measured_anew() -> None:
    # the floor is 1.0 in every row: 1.4 of it may be another order of summation, twice it is a fault that grows
    assert found(BASE, rows(b=1.4), differs=True) == []
    assert found(BASE, rows(b=2.0), differs=True) == [("creep", "b")]


def test_few_rows_may_be_drawn_anew() -> None:
    few = baseline(row("a", error=0.58, samples=4))
    assert found(few, [row("a", error=1.06, samples=4)]) == []
    assert found(few, [row("a", error=1.6, samples=4)]) == [("creep", "a")]  # more than a clean engine ever has
    assert found(baseline(row("a", samples=100)), [row("a", error=0.63, samples=100)]) == [("creep", "a")]
    assert found(baseline(row("a", samples=99)), [row("a", error=0.63, samples=100)]) == []


def test_after_other_tokens_the_floor_is_measured_anew() -> None:
    base = baseline(row("a", "decode"), row("b", "encode"))
    now = [row("a", "decode", error=1.4), row("b", "encode", error=1.4)]
    assert found(base, now, others=frozenset({"decode"})) == [("creep", "b")]


def test_a_tolerance_for_some() -> None:
    assert found(BASE, rows(b=0.9, c=0.9), tolerances=[("b", 2.0)]) == [("creep", "c")]


def test_a_smaller_error_is_told() -> None:
    assert found(BASE, rows(b=0.3)) == [("improved", "b")]


def test_errors_of_a_few_roundings_do_not_count() -> None:
    small = baseline(row("a", error=0.001))
    assert found(small, [row("a", error=0.04)]) == []


def test_a_fault_is_not_said_twice() -> None:
    assert found(BASE, rows(b=1e6), skipped=frozenset({("encode", "b")})) == []


def test_vanished_and_new() -> None:
    now = [r for r in rows() if r.name != "b"] + [row("e")]
    assert found(BASE, now) == [("vanished", "b"), ("new", "e")]


def test_a_step_that_nothing_was_compared_in() -> None:
    base = baseline(*rows(), row("p", "prefill"))
    assert found(base, rows()) == [("coverage", "")]
    assert found(base, rows(), partial=True) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"shape": (1, "n", 32)}, "shape"),
        ({"shape": (1, 64)}, "shape"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"axes": ()}, "layout"),
    ],
)
def test_another_form(change: dict[str, object], kind: str) -> None:
    now = rows()
    now[1] = replace(now[1], **change)
    assert (kind, "b") in found(BASE, now)


def test_a_size_that_varies_fits_any() -> None:
    assert found(baseline(row("a")), [replace(row("a"), shape=(1, 7, 64))]) == []


def test_order_names_as_few_as_explain_it() -> None:
    a, b, c, d = rows()
    assert found(BASE, [b, c, d, a]) == [("order", "a")]
    assert found(BASE, [a, c, b, d]) in ([("order", "b")], [("order", "c")])


def test_order_of_many() -> None:
    names = [f"v{n}" for n in range(200)]
    base = baseline(*(row(name) for name in names))
    for seed in range(20):
        moved = random.Random(seed).choice(names)
        others = [name for name in names if name != moved]
        at = random.Random(seed + 99).randrange(len(others))
        now = [row(name) for name in [*others[:at], moved, *others[at:]]]
        assert len(found(base, now)) <= 1
