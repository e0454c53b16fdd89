"""The words that faults are written in: an entry, its edits, what a tool should say; the lists of faults use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ENC, DEC = "model.encoder", "model.decoder"
BOTH = ("prefill", "decode")

Fault = dict[str, Any]
Edit = list[Any]


def fault(
    id_: str,
    class_: str,
    operator: str,
    edits: Sequence[Edit],
    *shows: dict[str, Any],
    group: str = "single",
    **more: Any,
) -> Fault:
    return {
        "id": id_,
        "class": class_,
        "operator": operator,
        "group": group,
        "edits": list(edits),
        "shows": shows,
        **more,
    }


def shows(value: str, *causes: dict[str, Any]) -> dict[str, Any]:
    """`value` is wrong given its inputs, for any one of `causes`."""
    return {"value": value, "causes": [list(causes)]}


def cause(kinds: str, *words: str | list[Any] | float) -> dict[str, Any]:
    return {"kinds": kinds.split(), "words": list(words)}


def also(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two bugs in one value: both must be named."""
    return {"value": first["value"], "causes": [*first["causes"], *second["causes"]]}


def layer(stack: str, i: int, rest: str) -> str:
    return f"{stack}.layers.{i}.{rest}"


def steps_of(name: str) -> tuple[str, ...]:
    if name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj")):
        return ("prefill",)  # made once
    return ("encode",) if name.startswith(ENC) else BOTH


def short(name: str) -> str:
    parts = name.split(".")
    stack = "e" if "encoder" in parts[:2] else "d" if "decoder" in parts[:2] else ""
    inner = [p for p in parts if p not in ("model", "encoder", "decoder", "layers")]
    return ".".join([stack, *inner] if stack else inner)


# ---- edits ----


def wire(name: str, port: str, tensor: str, steps: Sequence[str] = (), *, anew: bool = True) -> list[Edit]:
    return [["rewire", step, name, port, tensor, anew] for step in steps or steps_of(name)]


def kernel(name: str, variant: str, steps: Sequence[str] = (), **attrs: Any) -> list[Edit]:
    return [["kernel", step, name, variant, attrs] for step in steps or steps_of(name)]


def attr(name: str, key: str, number: Any, steps: Sequence[str] = ()) -> list[Edit]:
    return [["attr", step, name, key, number] for step in steps or steps_of(name)]


def weight(name: str, port: str, other: str, steps: Sequence[str] = ()) -> list[Edit]:
    return [["weight", step, name, port, other] for step in steps or steps_of(name)]
