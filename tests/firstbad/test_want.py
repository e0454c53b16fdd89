"""Patterns that choose values: the same rules as in firstbad.h."""

from __future__ import annotations

import pytest

from firstbad.run import CaptureOptions
from firstbad.want import chosen, patterns_of


@pytest.mark.parametrize(
    ("pattern", "step", "name", "expected"),
    [
        ("fc1", "encode", "fc1", True),
        ("fc1", "encode", "fc11", False),
        ("encode/fc1", "encode", "fc1", True),
        ("encode/fc1", "prefill", "fc1", False),
        ("decode.*/fc1", "decode.12", "fc1", True),
        ("decode.*/fc1", "decode", "fc1", False),
        ("*/fc1", "prefill", "fc1", True),
        ("layers.*.fc1", "encode", "layers.0.fc1", True),
        ("layers.*.fc1", "encode", "layersX0.fc1", False),
        ("a.b", "encode", "axb", False),
        ("*", "encode", "anything", True),
    ],
)
def test_a_pattern_names_a_value(pattern: str, step: str, name: str, expected: bool) -> None:
    assert chosen([pattern])(step, name) is expected


def test_no_list_is_every_value_and_an_empty_list_is_none() -> None:
    assert chosen(None)("encode", "x")
    assert not chosen([])("encode", "x")


def test_steps_become_patterns_and_want_goes_before_them() -> None:
    assert patterns_of(CaptureOptions()) is None
    assert patterns_of(CaptureOptions(want=())) == []
    both = CaptureOptions(steps=("decode",), want=("encode/x",))
    assert patterns_of(both) == ["encode/x"]
    steps = chosen(patterns_of(CaptureOptions(steps=("decode", "prefill"))))
    assert steps("decode.3", "x")
    assert steps("prefill", "x")
    assert not steps("encode", "x")
