"""The map: layers down, ops across, what lies around them apart; wires in the gaps; a field of many."""

from __future__ import annotations

import re
from dataclasses import replace

from firstbad.reports.map import FIELD_HEIGHT, MOST_CELLS, maps_of
from firstbad.reports.rows import Row, Rows

from .made import LAYER, names_of


def rows(names: list[str], step: str = "encode", fault: str = "", start: int = 0) -> list[Row]:
    clean = Row(0, step, "", "op", (2,), "float32", "clean", 1e-7, 1e-7, 1, 1e-7, 6e-6, "whole")
    return [
        replace(clean, index=start + i, name=name, verdict="culprit" if name == fault else "clean")
        for i, name in enumerate(names)
    ]


def test_layers_down_and_ops_across() -> None:
    (found,) = maps_of(Rows(tuple(rows(names_of(3, "m"))), {}), [])
    assert [label.text for label in found.labels] == ["before", "m 0", "m 1", "m 2", "after"]
    assert [label.title for label in found.columns] == list(LAYER)
    assert [bracket.text for bracket in found.brackets] == ["attn"]
    inner = [cell for cell in found.cells if ".layers." in cell.row.name]
    assert len({cell.y for cell in inner}) == 3
    assert len({cell.x for cell in inner}) == len(LAYER)
    by_op = {cell.row.name.split(".")[-1]: cell.x for cell in inner if ".layers.0." in cell.row.name}
    assert all(cell.x == by_op[cell.row.name.split(".")[-1]] for cell in inner)
    assert [cell.text for cell in found.cells if cell.text] == ["embed", "head"]


def test_steps_of_the_same_names_share_a_map() -> None:
    names = names_of(2)
    many = rows(names, "encode") + [
        row for i in range(4) for row in rows(names[:-1], f"decode.{i}", start=len(names) + i * (len(names) - 1))
    ]
    first, second = maps_of(Rows(tuple(many), {}), [])
    assert (first.title, second.title) == ("encode", "decode.0 to decode.3")
    assert second.steps == ("decode.0", "decode.1", "decode.2", "decode.3")


def test_the_step_of_the_fault_is_shown() -> None:
    names = names_of(2)
    many = [row for i in range(3) for row in rows(names, f"decode.{i}", names[4] if i == 1 else "", i * len(names))]
    (found,) = maps_of(Rows(tuple(many), {}), [row for row in many if row.fault])
    assert found.step == "decode.1"


def test_wires_end_at_the_guilty_cell_and_miss_the_others() -> None:
    names = names_of(4)
    many = rows(names, fault="model.layers.2.attn.v_proj")
    guilty = next(row for row in many if row.fault)
    wires = [("is", "model.layers.0.add"), ("should", "model.layers.2.norm"), ("is", "not.there")]
    (found,) = maps_of(Rows(tuple(many), {}), [guilty], wires)
    assert [wire.kind for wire in found.wires] == ["is", "should"]
    cells = {cell.row.name: cell for cell in found.cells}
    target = cells[guilty.name]
    for wire, source in zip(found.wires, ("model.layers.0.add", "model.layers.2.norm"), strict=True):
        points = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", wire.path)]
        assert cells[source].x < points[0][0] < cells[source].x + cells[source].width
        assert target.x < points[-1][0] < target.x + target.width
        assert target.y - 8 < points[-1][1] < target.y
        for x, y in points[1:-1]:
            inside = [c for c in found.cells if c.x < x < c.x + c.width and c.y < y < c.y + 32]
            assert not inside


def test_names_without_layers_and_odd_ones() -> None:
    for names in (["a", "b", "c"], ["x.0", "x.1"], ["0", "1"], ["", "."], ["a.0.b", "a.0.b.1.c", "é.3.π"]):
        (found,) = maps_of(Rows(tuple(rows(names)), {}), [])
        assert len(found.cells) == len(names)
    assert maps_of(Rows((), {}), []) == ()


def test_many_values_are_a_field() -> None:
    for count in (MOST_CELLS + 1, 20_000):
        names = [f"op{i}" for i in range(count)]
        many = rows(names, fault=names[123])
        (found,) = maps_of(Rows(tuple(many), {}), [many[123]])
        assert not found.cells
        assert found.height <= FIELD_HEIGHT + found.pitch
        assert sum(path.count("M") for _, path in found.field) == count
        assert found.rings == ((123 % found.across * found.pitch, 123 // found.across * found.pitch),)
