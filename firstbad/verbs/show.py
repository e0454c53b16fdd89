"""`firstbad show`: look into a trace: its values in the order in which they ran or as a tree, or one of them closely.

With a second trace both stand beside each other. Leaves out any judgement of a difference: that is `firstbad compare`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.theme import Theme, theme_for

if TYPE_CHECKING:
    from firstbad.graph import Value
    from firstbad.summary import Summary
    from firstbad.trace import Trace

HELP = "look into a trace: its values in execution order, or one value's statistics and a slice"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="an HDF5 file that a run wrote")
    parser.add_argument(
        "value", nargs="?", default="", metavar="VALUE", help="a value's name, its end, a pattern with *, or a path"
    )
    parser.add_argument("--step", default="", help="only this step: encode, prefill, decode.0, ...")
    parser.add_argument("--slice", default="", metavar="INDEX", help="which elements of one value: 0,:4,10:20")
    parser.add_argument("--all", action="store_true", help="views and weights too")
    parser.add_argument("--with", dest="other", type=Path, metavar="TRACE", help="another trace, beside this one")
    parser.add_argument("--tree", action="store_true", help="modules as branches, each value with its histogram")
    parser.add_argument("--heat", action="store_true", help="one value as a heat map")
    parser.add_argument("--no-stats", action="store_true", help="do not read the arrays for min, max and rms")
    parser.add_argument(
        "--blocks", type=int, default=1, metavar="N", help="of a GGUF file's tensor: its first N blocks"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from firstbad.gguf_file import is_gguf, lines
    from firstbad.trace import open_trace
    from firstbad.verbs._show_two import print_heat, show_beside

    if is_gguf(args.trace):
        print("\n".join(lines(args.trace, args.value, args.blocks)))
        return 0
    with open_trace(args.trace) as trace:
        chosen = select(trace, args.value, args.step, args.all)
        one = args.value and len(chosen) == 1 and not _is_pattern(args.value)
        if args.slice and not one:
            raise UsageError("--slice needs one value: give its name, and --step where it is in several steps")
        if args.heat and not one:
            raise UsageError("--heat needs one value: give its name, and --step where it is in several steps")
        if args.other is not None:
            with open_trace(args.other) as other:
                show_beside(trace, other, chosen, args, close=bool(one))
        elif one:
            _show_one(trace, chosen[0], args.slice, args.json)
            if args.heat:
                print_heat(trace, chosen[0])
        elif args.tree:
            _show_tree(trace, chosen, args)
        else:
            _show_list(trace, chosen, args)
    return 0


def select(trace: Trace, name: str, step: str, everything: bool) -> list[Value]:
    """The values meant by `name` and `step`; UsageError with a close match where there are none."""
    values: Sequence[Value] = trace.graph.values
    if step:
        steps = {value.step for value in values}
        if step not in steps:
            hint = did_you_mean(step, steps) or f"there are {', '.join(trace.graph.steps)}"
            raise UsageError(f"no step `{step}` in `{trace.path}`: {hint}")
        values = [value for value in values if value.step == step]
    if not name:
        return [value for value in values if everything or value.kind not in ("view", "weight")]
    if _is_pattern(name):
        found = [value for value in values if fnmatchcase(value.name, name)]
    else:
        found = [value for value in values if name in (value.name, value.dataset)]
        found = found or [value for value in values if value.name.endswith(f".{name}")]
    if not found:
        names = {value.name for value in values}
        hint = did_you_mean(name, names) or "patterns take *, as in '*layers.0.*'"
        raise UsageError(f"no value `{name}` in `{trace.path}`{f' in step {step}' if step else ''}: {hint}")
    return found


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _summary(trace: Trace, value: Value) -> Summary | None:
    from firstbad.summary import summarise

    if value.kind == "view" or not trace.stored(value) or 0 in value.shape:
        return None
    return summarise(trace.array(value))


def _show_list(trace: Trace, values: Sequence[Value], args: argparse.Namespace) -> None:
    rows = [(value, None if args.no_stats else _summary(trace, value)) for value in values]
    if args.json:
        document = {**_head(trace), "values": [_record(trace, value, summary) for value, summary in rows]}
        print(json.dumps(document, allow_nan=False))
        return
    theme = theme_for(sys.stdout)
    print(title(trace, theme))
    widths = [
        max((len(text) for text in column), default=0)
        for column in zip(*(_cells(trace, value) for value in values), strict=True)
    ]
    for value, summary in rows:
        step, name, shape, dtype, op = (
            text.ljust(width) for text, width in zip(_cells(trace, value), widths, strict=True)
        )
        line = (
            f"{theme.dim(step)}  {theme.name(name)}  {shape}  {dtype}  {op}  {_numbers(trace, value, summary, theme)}"
        )
        print(line.rstrip())
    hidden = len(trace.graph.values) - len(values)
    if hidden and not (args.value or args.step):
        print(theme.dim(f"{len(values)} values; {hidden} views and weights not shown: --all"))
    else:
        print(theme.dim(f"{len(values)} values"))
    if values:
        print(theme.dim(f"one of them: firstbad show {trace.path} {values[-1].name} --step {values[-1].step}"))


def _show_tree(trace: Trace, values: Sequence[Value], args: argparse.Namespace) -> None:
    from firstbad.summary import histogram
    from firstbad.tree import tree

    theme = theme_for(sys.stdout)
    print(title(trace, theme))
    lines = list(tree(values))
    width = max((len(branch) + len(label) for branch, label, _ in lines), default=0)
    for branch, label, value in lines:
        start = f"{theme.dim(branch)}{theme.name(label) if value else label}"
        if value is None:
            print(start)
            continue
        _, _, shape, dtype, _ = _cells(trace, value)
        summary = None if args.no_stats else _summary(trace, value)
        bars = histogram(trace.array(value), summary, 16) if summary else ""
        facts = f"{shape:>16}  {dtype:9} {bars:16}  {_numbers(trace, value, summary, theme)}"
        print(f"{start}{' ' * (width - len(branch) - len(label))}  {facts}".rstrip())


def _cells(trace: Trace, value: Value) -> tuple[str, ...]:
    shape = "x".join(map(str, value.shape)) or "scalar"
    return value.step, value.name, shape, value.dtype, _kind(trace, value)


def _numbers(trace: Trace, value: Value, summary: Summary | None, theme: Theme) -> str:
    if summary is None:
        return theme.dim(where(trace, value)) if not trace.stored(value) else ""
    text = f"min {summary.min:<10.4g} max {summary.max:<10.4g} rms {summary.rms:<10.4g}"
    if summary.nans or summary.infs:
        text += theme.bad(f" {summary.nans} NaN, {summary.infs} inf")
    return text


def _show_one(trace: Trace, value: Value, wanted: str, as_json: bool) -> None:
    from firstbad.summary import corner, cut, histogram

    stored = trace.stored(value) and value.kind != "view"
    if wanted and not stored:
        raise UsageError(f"--slice {wanted}: `{value.name}` of {value.step} is {where(trace, value)}")
    summary = _summary(trace, value)
    part, index = cut(trace.array(value), wanted or corner(value.shape)) if stored else (None, "")
    if as_json:
        record = _record(trace, value, summary)
        if part is not None:
            record |= {"slice": index, "elements": plain(part.tolist())}
        print(json.dumps({**_head(trace), "value": record}, allow_nan=False))
        return

    theme = theme_for(sys.stdout)
    print(f"{theme.name(value.name)}  {theme.dim(value.step)}")
    facts = {
        "shape": f"{list(value.shape)} {value.dtype}",
        "op": " ".join(filter(None, [_kind(trace, value), _source(trace, value)])),
        "reads": ", ".join(read.name for read in trace.graph.inputs_of(value)),
        "read by": ", ".join(trace.graph.ops[op].name for op in trace.graph.readers.get(value.id, ())),
        "stored": where(trace, value),
    }
    if summary:
        facts |= {
            "min": f"{summary.min:.6g} at {list(summary.argmin)}" if summary.argmin else "no finite element",
            "max": f"{summary.max:.6g} at {list(summary.argmax)}" if summary.argmax else "",
            "mean": f"{summary.mean:.6g}, rms {summary.rms:.6g}" if summary.argmin else "",
            "zeros": f"{summary.zeros} of {summary.size}" if summary.zeros else "",
            "not finite": f"{summary.nans} NaN, {summary.infs} inf" if summary.nans or summary.infs else "",
            "histogram": histogram(trace.array(value), summary),
        }
    for label, text in facts.items():
        if text:
            print(f"  {theme.dim(f'{label:10}')}  {text}")
    if part is not None and part.size:
        print(f"  {theme.dim('slice'.ljust(10))}  {index}{'' if wanted else theme.dim('  (another: --slice INDEX)')}")
        print(grid(part))


def grid(part: Any) -> str:
    import numpy as np

    text = np.array2string(part, precision=5, max_line_width=10_000, threshold=4096, edgeitems=4)
    return "\n".join(f"    {line}" for line in text.splitlines())


def _kind(trace: Trace, value: Value) -> str:
    return trace.graph.ops[value.op].kind if value.op >= 0 else value.kind


def _source(trace: Trace, value: Value) -> str:
    op = trace.graph.ops[value.op] if value.op >= 0 else None
    return f"{op.file}:{op.line}" if op and op.file else ""


def where(trace: Trace, value: Value) -> str:
    if value.same_as >= 0 and not value.dataset:
        return f"same bytes as {trace.graph.values[value.same_as].name}"
    return value.dataset or f"not stored: {value.reason or 'not captured'}"


def title(trace: Trace, theme: Theme) -> str:
    state = theme.good("complete") if trace.complete else theme.bad(f"incomplete: {trace.death or 'the run died'}")
    return f"{trace.path}: {trace.role} {trace.engine}, {len(trace.graph.ops)} ops, {state}"


def _head(trace: Trace) -> dict[str, Any]:
    return {
        "trace": str(trace.path),
        "role": trace.role,
        "engine": trace.engine,
        "complete": trace.complete,
        "death": trace.death,
        "outputs": plain(dict(trace.outputs)),
    }


def _record(trace: Trace, value: Value, summary: Summary | None) -> dict[str, Any]:
    record = {
        "id": value.id,
        "step": value.step,
        "name": value.name,
        "kind": value.kind,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "op": _kind(trace, value),
        "source": _source(trace, value),
        "dataset": value.dataset,
        "same_as": trace.graph.values[value.same_as].name if value.same_as >= 0 else None,
        "reason": value.reason,
    }
    return record | ({name: plain(number) for name, number in asdict(summary).items()} if summary else {})


def plain(data: Any) -> Any:
    """JSON has no NaN and no infinity: they become text."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {key: plain(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [plain(item) for item in data]
    return data if isinstance(data, str | int | float | None) else str(data)
