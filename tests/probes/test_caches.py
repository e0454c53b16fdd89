"""Caches whose rows lie in slots: a ring that is written round, and pages that a table puts in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from firstbad.cause import Cause
from firstbad.errors import UsageError
from firstbad.faults import Fault
from firstbad.probes import c, edits
from firstbad.probes.plan import Plan, save
from firstbad.probes.plan_check import load
from firstbad.run import CaptureOptions
from firstbad.session import diff, prepare

from .test_language import OPTIONS, PROMPT, spec

WINDOW = "mistral with a window"  # of 4 positions, so a ring has 4 slots and the prompt of 9 goes round it twice
K, V = "model.layers.1.self_attn.k_cache", "model.layers.1.self_attn.cat_3"


@pytest.mark.parametrize("layout", ["ring", "paged"])
@pytest.mark.parametrize("family", [WINDOW, pytest.param("gemma2", marks=pytest.mark.slow)])
def test_a_cache_in_slots_matches_past_its_end(family: str, layout: str, tmp_path: Path) -> None:
    options = CaptureOptions(max_tokens=6, threads=1)  # five steps: the ring goes round once more
    result = diff(spec(family, tmp_path), f"c:cache={layout}", tmp_path / "out", options, budget=0).result
    assert result.verdict == "match"
    assert {reason for _, _, reason in result.coverage.only_candidate} == {
        f"a part of model.layers.{i}.self_attn.{made}" for i in range(2) for made in ("add_1", "v_proj")
    }
    _, prepared = prepare(spec(family, tmp_path))
    assert c.lint(f"cache={layout}", prepared) == ()


def planned(layout: str, folder: Path) -> Plan:
    _, prepared = prepare(spec(WINDOW, folder))
    return c.plan_for(f"cache={layout}", prepared)


def faults_of(plan: Plan, folder: Path) -> tuple[Fault, ...]:
    save(plan, folder / "plan.json")
    assert load(folder / "plan.json") == plan
    return diff(spec(WINDOW, folder), f"c:{folder / 'plan.json'}", folder / "out", OPTIONS, budget=20).result.faults


def one(faults: tuple[Fault, ...], value: str) -> Cause:
    (fault,) = faults
    assert fault.value == f"model.layers.1.self_attn.{value}"
    assert {site.step for site in fault.sites} == {"decode.0", "decode.1"}
    assert fault.cause is not None
    return fault.cause


def test_a_row_that_is_stored_one_slot_late_is_named_with_the_row_that_it_destroys(tmp_path: Path) -> None:
    plan = edits.set_attr(planned("ring", tmp_path), "decode", K, "shift", 1)
    cause = one(faults_of(plan, tmp_path), "cat_2")
    assert (cause.kind, cause.detail["how"], cause.detail["by"]) == ("clobbered", "stored elsewhere", 1)
    # the 10th token (position 9) belongs in slot 9 mod 4 = 1 and lies in slot 2, which was position 6's
    assert cause.detail["rows_place"] == {
        "positions": "6 and 9",
        "hold": "5 and 9",
        "over": "9",
        "lost": "6",
        "store": K,
    }


def test_a_ring_that_goes_round_too_early_is_named_by_the_rows_that_share_a_slot(tmp_path: Path) -> None:
    plan = planned("ring", tmp_path)
    for step, op in (("prefill", K), ("decode", K), ("decode", K.replace("k_cache", "cat_2"))):
        plan = edits.set_attr(plan, step, op, "wrap", 3)
    cause = one(faults_of(plan, tmp_path), "cat_2")
    assert (cause.kind, cause.detail["how"], cause.detail["by"]) == ("clobbered", "slots shared", 3)
    assert cause.detail["overwritten_by"] == K


def test_a_slot_that_nobody_wrote_is_named_with_where_its_row_went(tmp_path: Path) -> None:
    plan = edits.set_attr(planned("paged", tmp_path), "decode", K, "shift", 1)
    cause = one(faults_of(plan, tmp_path), "cat_2")
    assert (cause.kind, cause.detail["how"], cause.detail["by"]) == ("stale", "stored elsewhere", 1)
    assert cause.detail["rows_place"] == {"positions": "9", "hold": "", "store": K}


def test_a_reader_that_is_one_slot_late_is_blamed_and_not_the_store(tmp_path: Path) -> None:
    plan = edits.set_attr(planned("ring", tmp_path), "decode", V, "shift", 1)
    cause = one(faults_of(plan, tmp_path), "cat_3")
    assert (cause.kind, cause.detail["how"], cause.detail["by"]) == ("wrong_input", "other slots", 1)


def test_exchanged_pages_are_named_in_every_layer(tmp_path: Path) -> None:
    plan = planned("paged", tmp_path)
    decode = plan.steps["decode"]
    first, second, *rest = decode.pages
    faults = faults_of(plan.with_step(replace(decode, pages=(second, first, *rest))), tmp_path)
    assert [f.value for f in faults] == [
        f"model.layers.{i}.self_attn.{n}" for i in range(2) for n in ("cat_2", "cat_3")
    ]
    for fault in faults:
        assert fault.cause is not None and fault.cause.kind == "wrong_input"
        # a window of 4 sees positions 6 to 9; the pages of 0 to 3 and 4 to 7 are exchanged
        assert fault.cause.detail["rows_place"] == {
            "positions": "6 to 7",
            "hold": "2 to 3",
            "store": fault.cause.detail["rows_place"]["store"],
        }
        assert abs(fault.cause.detail["by"]) == 4


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    _, prepared = prepare(spec("llama with llama3 scaling", tmp_path))
    with pytest.raises(UsageError, match="this one has none"):
        c.plan_for("cache=ring", prepared)
    with pytest.raises(UsageError, match="c:cache=ring or c:cache=paged"):
        c.plan_for("cache=heap", prepared)
    plan = c.plan_for("cache=paged", prepared)
    save(plan.with_step(replace(plan.steps["decode"], pages=(0, 1, len(PROMPT) * 9))), tmp_path / "plan.json")
    with pytest.raises(UsageError, match="no place for each of"):
        load(tmp_path / "plan.json")
