"""Words for causes: what was proved, in one sentence without a full stop.

One function a kind, from plain data alone; the numbers that were found stand in the sentence. Words for places and
sizes are in statement.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from firstbad.statement import number, short

Detail = Mapping[str, Any]


def cause_statement(kind: str, op: str, detail: Detail) -> str:
    """What was proved; `op` is the name of the guilty op's value."""
    text = WORDS.get(kind, _other)(op, detail)
    for other in detail.get("and", ()):
        text += ", and " + WORDS.get(other["kind"], _other)(op, other).removeprefix(short(op) + " ")
    if detail.get("found_in"):
        text += f" (found in {detail['found_in']}, where fewer ops make it)"
    if detail.get("holds_there") is True:
        text += f" (the same in {detail['also_at']})"
    elif detail.get("holds_there") is False:
        text += f" (but this alone does not reproduce it in {detail['also_at']})"
    return text


def _wrong_input(op: str, d: Detail) -> str:
    step = f" of step {d['read_step']}" if d.get("read_step") not in (None, d.get("input_step")) else ""
    if "cache" in d:
        return _slots(op, d)
    text = f"{short(op)} reads {d['read']}{step} instead of {d['input']}"
    return text + "".join(f", and {other['read']} instead of {other['input']}" for other in d.get("also", ()))


def _wrong_weight(op: str, d: Detail) -> str:
    if d.get("transposed") or d.get("rows_late"):
        return _other_way(op, d)
    if d.get("terms"):
        how = f"counts {_number(d['number'])} times" if d["number"] else "are zero"
        return f"terms {d['terms']} of {d['terms_of']} of {d['weight']} {how}{_where(d)}"
    if "how" in d:
        return f"{d['weight']} holds other numbers than the model's" + (f": {d['how']}" if d["how"] else "")
    if not d.get("weight"):
        return f"{short(op)} adds {d['read']} where the model has no bias"
    if d.get("slot") == "weight and bias":
        ours, theirs = (str(d[k]).rpartition(".")[0] for k in ("weight", "read"))
        return f"{short(op)} has the weight and bias of {theirs} instead of {ours}"
    return f"{short(op)} has the weight {d['read']} instead of {d['weight']}"


def _other_way(op: str, d: Detail) -> str:
    if d.get("transposed"):
        return f"{short(op)} multiplies by {d['weight']} transposed"
    n = abs(d["rows_late"])
    return f"{short(op)} takes {d['weight']} {n} row{'s' if n > 1 else ''} {'late' if d['rows_late'] > 0 else 'early'}"


def _missing_bias(op: str, d: Detail) -> str:
    return f"{short(op)} does not add its bias {d['weight']}"


def _clobbered(op: str, d: Detail) -> str:
    if "cache" in d:
        return _slots(op, d)
    if d.get("how") == "by its own output":
        return f"{short(op)} writes over its own input {d['input']} while it still reads it"
    writer = d.get("writer", {})
    at = f" ({writer['file']}:{writer['line']})" if writer.get("file") else ""
    return f"{d['input']} was overwritten by {d['overwritten_by']}{at} before {short(op)} read it"


def _stale(op: str, d: Detail) -> str:
    if "cache" in d:
        return _slots(op, d)
    if d.get("value"):
        return f"{short(op)} still holds the value of step {d['holds_step']}"
    if d.get("read") == "zeros":
        return f"{short(op)} reads zeros where {d['input']} of step {d['input_step']} should be"
    if d.get("read_step"):
        return f"{short(op)} reads {d['input']} as step {d['read_step']} left it, not that of {d['input_step']}"
    instead = f" instead of {d['instead_of']}" if d.get("instead_of") else ""
    if d.get("overwritten_by"):
        return f"{short(op)} reads the buffer of {d['input']}{instead}, which by then holds {d['overwritten_by']}"
    return f"{short(op)} reads the buffer of {d['input']}{instead} where nothing had been written yet"


def _slots(op: str, d: Detail) -> str:
    """Rows of a cache that are not where their positions say."""
    at = d["rows_place"]
    held = f"the row{'' if at['hold'].isdigit() else 's'} of {_positions(at['hold'])}" if at["hold"] else "nothing"
    text = f"{short(op)} finds {held} where {_positions(at['positions'])} of {d['cache']} should be"
    store = short(at.get("store", ""))
    by = int(d.get("by", 0))
    slots = f"{abs(by)} slot{'s' if abs(by) > 1 else ''} {'after' if by > 0 else 'before'}"
    if d["how"] == "stored elsewhere":
        over = f", over that of {_positions(at['lost'])}" if at.get("lost") else ""
        return f"{text}: {store} stores a row {slots} its own{over}"
    if d["how"] == "slots shared":
        over, lost = _positions(at["over"]), _positions(at["lost"])
        return f"{text}: {store} stores {over} over {lost}, {by} before, which is still to be read"
    if d["how"] == "not stored":
        return f"{text}: no row was stored for it"
    if d["how"] == "other slots":
        return f"{text}: it reads {slots if by else 'other slots than'} those where they were stored"
    return text


def _positions(words: str) -> str:
    return f"position{'' if words.isdigit() else 's'} {words}"


def _missing_op(op: str, d: Detail) -> str:
    if d.get("holds"):
        where = ", which its buffer held before" if d.get("where") else ""
        return f"{short(op)} was never computed: it holds {d['holds']} of step {d['holds_step']}{where}"
    if d.get("drops"):
        return f"{short(op)} leaves out {d['drops']}: it is {d['keeps']} alone"
    what = " and ".join(d["ops"]) if d.get("ops") else d["op"]
    return f"{short(op)} leaves out {what}: it gives {d['keeps']} as it is"


def _missing_value(op: str, d: Detail) -> str:
    made = " and ".join(short(name) for name in d["values"])
    return f"{made} is never made, as elsewhere in the run it is: {short(op)} has {d['keeps']} in its place"


def _shape(op: str, d: Detail) -> str:
    return f"{short(op)} takes {d['value']} in the shape {d['shape']}, the model's is {d['model']}: {d['how']}"


def _extra_op(op: str, d: Detail) -> str:
    if d.get("op") == "bias":
        return f"{short(op)} adds its bias {d['weight']} twice"
    if d.get("adds"):
        return f"{short(op)} adds {d['adds']} twice"
    if d.get("adds_slice"):
        axis, by = str(d["adds_slice"]).split()
        return f"{short(op)} adds {_number(d['number'])} times the {axis.removesuffix('s')} {by} to itself{_where(d)}"
    if d.get("times") == 2:
        return f"{short(op)} does {d['op']} twice"
    if "number" in d:
        return f"{short(op)} has a {d['op']} of {_number(d['number'])} that the model has not"
    place = "to its output" if d.get("where") == "after" else f"to its input {d.get('input', '')}"
    return f"{short(op)} also applies {d.get('of', d['op'])} {place}"


def _order(op: str, d: Detail) -> str:
    if d.get("runs"):
        return f"{short(op)} runs {d['of']} in the place of its own {d['op']}"
    return f"{short(op)} does {d['op']} before {d['before']} ({d['of']}), not after it"


def _wrong_variant(op: str, d: Detail) -> str:
    if d.get("input"):
        return f"{short(op)} {d['variant']} {d['input']}"
    instead = f" instead of {d['model']}" if d.get("model") else ""
    return f"{short(op)} computes {d['variant']}{instead}"


def _wrong_constant(op: str, d: Detail) -> str:
    found, model = _number(d.get("number")), _number(d.get("model"))
    if d.get("terms"):
        return f"{short(op)} counts terms {d['terms']} of {d['terms_of']} of its sums {found} times{_where(d)}"
    if d.get("what") in ("gain", "offset"):
        word = "is multiplied by" if d["what"] == "gain" else "is off by"
        return f"{short(op)} {word} {found}{_where(d)}"
    if d.get("input"):
        return f"{short(op)} takes {d['input']} times {found}"
    return f"the {d.get('what')} of {short(op)} is {found} where the model has {model}"


def _layout(op: str, d: Detail) -> str:
    what = d.get("input") or d.get("weight") or {"output": "its output"}.get(d.get("what", ""), f"its {d.get('what')}")
    how = d.get("how", "")
    if d.get("of"):
        return f"{short(op)} has {d['of']} {how}"
    by = f" by {d['by']}" if d.get("by") else ""
    return f"{short(op)} has {what} {how}{by}"


def _partial_write(op: str, d: Detail) -> str:
    if d.get("terms"):
        where = _where(d)
        return f"{short(op)} leaves terms {d['terms']} of {d['terms_of']} out of its sums{where}"
    where = _where(d).removeprefix(" in ") or d.get("elements") or "all"
    verb = "are" if " to " in where or " and " in where or "every" in where else "is"
    holds = {
        "zero": "zero",
        "NaN": "NaN",
        "one number": _number(d.get("number")),
        "what the buffer held before": f"what the buffer held before: {d.get('left_by')}",
        "the same value of an earlier step": f"that of step {d.get('left_step')}",
        "another value": str(d.get("left_by")),
    }.get(d["holds"], d["holds"])
    verb2 = "hold" if verb == "are" else "holds"
    return f"{where} of {short(op)} {verb} not written and {verb2} {holds}"


def _nonfinite(op: str, d: Detail) -> str:
    count = d.get("count")
    if count:
        return f"{count} of {d['of']} elements of {short(op)} are {d['holds']} where numbers should be"
    return f"{_where(d).removeprefix(' in ') or 'all'} of {short(op)} is {d.get('holds', 'no number')}"


def _precision(op: str, d: Detail) -> str:
    by = f", judged by {d['by']}" if d.get("by") else ""
    what = d.get("what", "")
    if what == "output":
        return f"{short(op)} is stored in {d['dtype']}"
    if what in ("sum", "arithmetic") or d.get("op"):
        return f"{short(op)} keeps its {what} in {d['dtype']}{by}"
    return f"{short(op)} reads {d.get('input') or what} rounded to {d['dtype']}"


def _overflow(op: str, d: Detail) -> str:
    what = "is" if d.get("what") == "output" else f"has {d.get('input')}"
    of = f" ({d['dtype']})" if d.get("dtype") else ""
    return f"{short(op)} {what} {d['how']} beyond {_number(d['limit'])}{of}"


def _mask(op: str, d: Detail) -> str:
    if d.get("padding"):
        return (
            f"{short(op)} also attends to {d['padding']} positions of padding beyond the {d['keys']} that there are: "
            "nothing masks them, and each counts as a score of 0"
        )
    if d.get("model") == "none":
        return f"{short(op)} masks what the model does not ({d['how']})"
    if d["how"] in ("missing", "none"):
        return f"the mask of {short(op)} is missing ({d['model']})"
    return f"the mask of {short(op)} is {d['how']} where the model's is {d['model']}"


def _heads(op: str, d: Detail) -> str:
    by = f" by {d['by']}" if d.get("by") else ""
    if d.get("weight") or d.get("input"):
        return f"{short(op)} has the heads of {d.get('weight') or d.get('input')} {d['how']}{by}"
    if d.get("model"):
        return f"{short(op)} maps heads to groups by {d['how']}, the model by {d['model']}"
    return f"the heads of {short(op)} are {d['how']}{by}"


def _position(op: str, d: Detail) -> str:
    if d.get("variant"):
        return f"{short(op)} has {d['variant']}, the model {d['model']}"
    if d.get("what") == "positions":
        how = d.get("how") or f"off by {d['by']}"
        return f"{short(op)} takes positions ({d['input']}) {how}"
    if d.get("rows") is not None:
        beyond = f", {d['beyond']} of them beyond its end" if d.get("beyond") else ""
        return f"{short(op)} takes rows {d['rows'][:6]} of {d['weight']} instead of {d['model'][:6]}{beyond}"
    what = d.get("input") or f"its {d.get('what')}"
    edge = f", {d['edge']} at the edge" if d.get("edge") else ""
    return f"{short(op)} has {what} moved by {d.get('by', '?')}{edge}"


def _unknown(op: str, d: Detail) -> str:
    text = f"no edit of {short(op)} that was tried reproduces its values ({d['why']})"
    if d.get("closest"):
        closest = WORDS.get(d["closest"], _other)(op, d.get("closest_detail", {}))
        text += f"; the closest, {d['closest']} ({closest}), leaves {number(d['closest_left'])}"
    return text


def _nondeterministic(op: str, d: Detail) -> str:
    return f"{short(op)} differs between runs of the candidate ({d['distinct']} results in {d['runs']} runs)"


def _other(op: str, d: Detail) -> str:
    return str(d.get("statement", f"{short(op)}: {dict(d)}"))


def _where(d: Detail) -> str:
    """ " in columns 128 to 159 of head 3" """
    words = [f"{name} {d[key]}" for key, name in (("rows", "rows"), ("columns", "columns")) if d.get(key) is not None]
    words = [w.replace("rows ", "row ", 1).replace("columns ", "column ", 1) if _single(w) else w for w in words]
    text = " and ".join(words)
    if d.get("groups") is not None:
        head = f"head {d['groups']}" if _single(f"x {d['groups']}") else f"heads {d['groups']}"
        text = f"{text} of {head}" if text else head
    return f" in {text}" if text else ""


def _single(words: str) -> bool:
    return words.partition(" ")[2].isdigit()


def _number(x: Any) -> str:
    return f"{x:.9g}" if isinstance(x, float) else str(x)


WORDS: Mapping[str, Callable[[str, Detail], str]] = {
    "wrong_input": _wrong_input,
    "wrong_weight": _wrong_weight,
    "missing_bias": _missing_bias,
    "clobbered": _clobbered,
    "stale": _stale,
    "missing_op": _missing_op,
    "missing_value": _missing_value,
    "shape": _shape,
    "extra_op": _extra_op,
    "order": _order,
    "wrong_variant": _wrong_variant,
    "wrong_constant": _wrong_constant,
    "layout": _layout,
    "partial_write": _partial_write,
    "nonfinite": _nonfinite,
    "precision": _precision,
    "overflow": _overflow,
    "mask": _mask,
    "heads": _heads,
    "position": _position,
    "nondeterministic": _nondeterministic,
    "unknown": _unknown,
}
