"""Which alignment is believed after the first measurement: by faults in a small trace, and at its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad import realign
from firstbad.graph import Value
from firstbad.mapfile import load_map
from firstbad.result import Result
from firstbad.trace import open_trace
from tests.firstbad.planted import Recorded, plant, run
from tests.rewritten import Rename, liar, rewritten

K, V = "layers.0.attn.k_proj", "layers.0.attn.v_proj"
EXCHANGED = {K: V, V: K}
FC2 = "layers.0.fc2"


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many values were doubted, for each time that all names were."""
    seen: list[int] = []

    def unnamed(was: Any, aligned: Any) -> Any:
        seen.append(len(was))
        return made(was, aligned)

    made = realign.unnamed
    monkeypatch.setattr(realign, "unnamed", unnamed)
    yield seen


def far_off(named: Any, _weights: Any) -> np.ndarray:
    """The other values of the layer in its place: far off, and so is all that follows."""
    return np.asarray(named["layers.0.attn_norm"][..., ::-1] * 3)


def result(recorded: Recorded, folder: Path, rename: Rename | str, *, fault: bool = False, **options: Any) -> Result:
    planted = plant(recorded, {FC2: far_off} if fault else {}, folder / "planted.h5")
    with open_trace(recorded.path) as ours, open_trace(planted) as made:
        names = liar(made) if rename == "liar" else rename
        assert callable(names)
        with rewritten(made, folder / "candidate.h5", rename=names) as theirs:
            return run(ours, theirs, recorded, budget=0, **options)


def as_it_is(value: Value) -> str:
    return value.name


def exchanged(value: Value) -> str:
    return EXCHANGED.get(value.name, value.name)


def test_where_names_are_right_none_is_doubted(recorded: Recorded, tmp_path: Path, whole: list[int]) -> None:
    assert result(recorded, tmp_path, as_it_is).verdict == "match"
    assert whole == []


def test_what_one_fault_changed_is_not_aligned_anew(recorded: Recorded, tmp_path: Path, whole: list[int]) -> None:
    found = result(recorded, tmp_path, as_it_is, fault=True)
    assert [f.value for f in found.faults] == [FC2]
    assert len(found.damage) > 10
    assert whole == []


def test_where_all_names_lie_they_say_nothing(recorded: Recorded, tmp_path: Path, whole: list[int]) -> None:
    found = result(recorded, tmp_path, "liar")
    assert (found.verdict, found.faults) == ("match", ())
    assert len(whole) == 1
    assert whole[0] > 20


def test_a_wrong_mask_shows_in_its_readers_where_all_names_lie(recorded: Recorded, tmp_path: Path) -> None:
    """A mask has no content by which it could be found; what is added to the scores tells it."""
    planted = plant(recorded, {"triu": lambda named, _: np.triu(named["full"], 2)}, tmp_path / "planted.h5")
    with (
        open_trace(recorded.path) as ours,
        open_trace(planted) as made,
        rewritten(made, tmp_path / "candidate.h5", rename=liar(made)) as theirs,
    ):
        found = run(ours, theirs, recorded)
    assert [f.value for f in found.faults] == ["layers.0.attn.add", "layers.1.attn.add"]
    assert found.faults[0].cause.kind == "mask"


def test_two_names_exchanged_beside_a_fault_are_moved_alone(
    recorded: Recorded, tmp_path: Path, whole: list[int]
) -> None:
    """Two names of some thirty suspicious values: all others are suspicious because of the fault."""
    found = result(recorded, tmp_path, exchanged, fault=True)
    assert [f.value for f in found.faults] == [FC2]
    moved = [
        n for n, verdict in zip(found.values["name"], found.values["verdict"], strict=True) if verdict == "misaligned"
    ]
    assert sorted(moved) == [K, V]
    assert whole == []


def test_what_the_user_mapped_is_not_doubted_as_a_whole(recorded: Recorded, tmp_path: Path, whole: list[int]) -> None:
    (tmp_path / "map.json").write_text('{"map": 1, "pairs": []}', "utf-8")
    found = result(recorded, tmp_path, "liar", mapped=load_map(tmp_path / "map.json"))
    assert whole == []
    assert found.verdict == "diverged", "moved one by one, not all of them can be found"


@pytest.mark.parametrize(("doubted", "tried"), [(8, True), (9, False)])
def test_one_name_in_eight_is_many(doubted: int, tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value is another one than its name says; the alignment that doubts all is taken if it leaves fewer faults."""
    pairs = [SimpleNamespace(candidate=SimpleNamespace(id=i), name=str(i)) for i in range(doubted)]
    was = SimpleNamespace(pairs=pairs)
    moved = SimpleNamespace(
        pairs=[*pairs[:-1], SimpleNamespace(candidate=SimpleNamespace(id=doubted - 1), name="other")]
    )
    anew = SimpleNamespace(pairs=[])
    blamed = {id(was): 2, id(moved): 1, id(anew): 0}

    def measured(alignment: Any) -> Any:
        values = [SimpleNamespace(name=str(n), bad=True) for n in range(blamed[id(alignment)])]
        return realign.Measured(alignment, None, None, SimpleNamespace(values=values))  # type: ignore[arg-type]  # stand-ins

    first = replace(measured(was))
    monkeypatch.setattr(realign, "relabelled", lambda *_: moved)
    monkeypatch.setattr(realign, "suspects", lambda *_: dict.fromkeys(range(doubted)))
    monkeypatch.setattr(realign, "unnamed", lambda _suspects, _aligned: anew)
    monkeypatch.setattr(realign, "believed", lambda *_: True)
    monkeypatch.setattr(realign, "unproved", lambda *_: set())
    monkeypatch.setattr(realign, "_relaid", lambda found, *_: found)
    monkeypatch.setattr(realign, "without_misplaced", lambda *_: None)
    reference: Any = SimpleNamespace(graph=None)
    found = realign.realigned(first, reference, measured, lambda _: anew, mapped=False)  # type: ignore[arg-type,return-value]
    assert found.alignment is (anew if tried else moved)
    assert found.blamed == (0 if tried else 1)
