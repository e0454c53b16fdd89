"""Names as a tree: chains of single modules on one line, values as leaves."""

from __future__ import annotations

from firstbad.graph import Value
from firstbad.tree import tree


def value(name: str, step: str = "encode") -> Value:
    return Value(0, step, name, "value", (1,), "float32")


def test_chains_branches_and_leaves() -> None:
    lines = list(tree([value("m.a.x"), value("m.a.y"), value("m.b.c.z"), value("x", "prefill")]))
    assert [f"{before}{label}{'*' if v else ''}" for before, label, v in lines] == [
        "encode",
        "└─ m",
        "   ├─ a",
        "   │  ├─ x*",
        "   │  └─ y*",
        "   └─ b.c.z*",
        "prefill",
        "└─ x*",
    ]


def test_a_module_may_be_a_value_too() -> None:
    lines = [(label, v is not None) for _, label, v in tree([value("fc"), value("fc.bias")])]
    assert lines == [("encode", False), ("fc", True), ("bias", True)]
