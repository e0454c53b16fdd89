"""A trace that was cut, spoilt or forged gives one clear line, or what it still holds."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstbad import tables
from firstbad.errors import CompareError
from firstbad.schema import validate
from firstbad.trace import open_trace
from tests.firstbad.traces import edit, one_line, set_cell, small


def test_a_trace_cut_at_any_byte_is_one_line_or_a_trace(tmp_path: Path) -> None:
    data = small(tmp_path / "t.h5").read_bytes()
    cut = tmp_path / "cut.h5"
    for end in [*range(0, 200, 7), *range(200, len(data), 997)]:
        cut.write_bytes(data[:end])
        assert "cut.h5" in one_line(cut)


@settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.floats(0, 1), byte=st.integers(0, 255))
def test_a_spoilt_byte_is_one_line_or_a_trace(tmp_path: Path, where: float, byte: int) -> None:
    source = tmp_path / "t.h5"
    data = bytearray((source if source.exists() else small(source)).read_bytes())
    data[int(where * (len(data) - 1))] = byte
    spoilt = tmp_path / "spoilt.h5"
    spoilt.write_bytes(data)
    try:
        with open_trace(spoilt) as trace:
            for v in trace.graph.values:
                if trace.stored(v):
                    trace.array(v)
    except CompareError as error:
        assert "\n" not in str(error)


def forge_not_hdf5(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 this is a zip")


def forge_empty(path: Path) -> None:
    path.write_bytes(b"")


def forge_other_schema(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


def forge_newer(path: Path) -> None:
    with edit(path) as file:
        file.attrs["version"] = tables.VERSION + 1


def forge_version_text(path: Path) -> None:
    with edit(path) as file:
        file.attrs["version"] = "one"


def forge_no_table(path: Path) -> None:
    with edit(path) as file:
        del file["graph/ops"]


def forge_table_is_group(path: Path) -> None:
    with edit(path) as file:
        del file["graph/reads"]
        file.create_group("graph/reads")


def forge_missing_column(path: Path) -> None:
    with edit(path) as file:
        del file["graph/values"]
        file["graph/values"] = np.zeros(2, [("id", "<i8"), ("op", "<i8")])


def forge_column_type(path: Path) -> None:
    with edit(path) as file:
        rows = file["graph/reads"][:]
        del file["graph/reads"]
        file["graph/reads"] = np.array([(1.5, 0.0)] * len(rows), [("op", "<f8"), ("value", "<f8")])


def forge_endless_table(path: Path) -> None:
    with edit(path) as file:
        file["graph/values"].resize(2**40, axis=0)


def forge_dangling_dataset(path: Path) -> None:
    set_cell(path, "values", 1, "dataset", "/values/encode/nowhere")


def forge_group_as_dataset(path: Path) -> None:
    set_cell(path, "values", 1, "dataset", "/values/encode/m")


def forge_relative_dataset(path: Path) -> None:
    set_cell(path, "values", 1, "dataset", "values/encode/x")


def forge_shape(path: Path) -> None:
    set_cell(path, "values", 1, "shape", "[2,4]")


def forge_negative_shape(path: Path) -> None:
    set_cell(path, "values", 1, "shape", "[-2,-3]")


def forge_shape_text(path: Path) -> None:
    set_cell(path, "values", 1, "shape", "two by three")


def forge_kind(path: Path) -> None:
    set_cell(path, "values", 1, "kind", "thing")


def forge_id(path: Path) -> None:
    set_cell(path, "values", 1, "id", 7)


def forge_op_of_value(path: Path) -> None:
    set_cell(path, "values", 1, "op", 99)


def forge_read(path: Path) -> None:
    set_cell(path, "reads", 0, "value", 99)


def forge_read_below(path: Path) -> None:
    set_cell(path, "reads", 0, "value", -7)


def forge_write(path: Path) -> None:
    set_cell(path, "ops", 0, "writes", "[99]")


def forge_attrs(path: Path) -> None:
    set_cell(path, "ops", 0, "attrs", "{not json")


def forge_deep_attrs(path: Path) -> None:
    set_cell(path, "ops", 0, "attrs", "[" * 100_000)


def forge_circle(path: Path) -> None:
    set_cell(path, "values", 1, "same_as", 2)


def forge_same_as_size(path: Path) -> None:
    set_cell(path, "values", 2, "shape", "[7]")


def forge_meta(path: Path) -> None:
    with edit(path) as file:
        del file["meta"]
        file["meta"] = "[1, 2]"


def forge_read_dataset(path: Path) -> None:
    set_cell(path, "reads", 0, "dataset", "/as_read/0/x")


def replace_array(path: Path, **how: object) -> None:
    with edit(path) as file:
        del file["values/encode/x"]
        file.create_dataset("values/encode/x", **how)


def forge_text_array(path: Path) -> None:
    replace_array(path, data=np.array([b"a", b"b"]))


def forge_object_array(path: Path) -> None:
    replace_array(path, shape=(2, 3), dtype=h5py.string_dtype())


def forge_bomb(path: Path) -> None:
    replace_array(path, shape=(2**20, 2**20), dtype="f4", chunks=(1024, 1024), compression="gzip")


def forge_unallocated(path: Path) -> None:
    replace_array(path, shape=(2**20, 2**20), dtype="f4")


def forge_external_data(path: Path) -> None:
    (path.parent / "secret").write_bytes(b"01234567" * 3)
    replace_array(path, shape=(2, 3), dtype="f4", external=[(str(path.parent / "secret"), 0, 24)])


def forge_external_link(path: Path) -> None:
    other = small(path.parent / "other.h5")
    with edit(path) as file:
        del file["values/encode/x"]
        file["values/encode/x"] = h5py.ExternalLink(str(other), "/values/encode/x")


def forge_virtual(path: Path) -> None:
    other = small(path.parent / "other.h5")
    layout = h5py.VirtualLayout((2, 3), "f4")
    layout[:] = h5py.VirtualSource(other, "values/encode/x", (2, 3))
    with edit(path) as file:
        del file["values/encode/x"]
        file.create_virtual_dataset("values/encode/x", layout)


FORGERIES = {name: forge for name, forge in globals().items() if name.startswith("forge_")}


@pytest.mark.parametrize("forge", FORGERIES)
def test_hostile_files_give_one_line(tmp_path: Path, forge: str) -> None:
    path = small(tmp_path / "t.h5")
    FORGERIES[forge](path)
    assert "t.h5" in one_line(path)
    assert validate(path) != []


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    assert "no trace" in one_line(tmp_path / "none.h5")
    assert "no trace" in one_line(tmp_path)
