"""The answer in a terminal: both outputs, a verdict line that stands alone, its evidence, coverage, what to do next.

Rendered from the Result alone. Off a terminal every line is whole and there are no colours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from firstbad.edit import alike
from firstbad.result import FaultResult, Result
from firstbad.statement import number, times
from firstbad.theme import PLAIN, Theme

from . import evidence

_LISTED = 8
QUIET = 1e-9  # a KL divergence that nobody needs to be told of
_LABEL = 11
_OF_A_SITE = ("also_at", "holds_there")
_PART = "a part of "


def render(result: Result, theme: Theme = PLAIN) -> str:
    """The whole text, without a closing newline."""
    return "\n".join(_lines(result, theme))


def _lines(result: Result, theme: Theme) -> Iterator[str]:
    answers = list(_outputs(result, theme))
    yield from [*answers, ""] if answers else []
    yield _verdict(result, theme)
    for fault in result.faults[:1]:
        yield from _evidence(fault, theme)
    yield from _also(result, theme)
    yield from _damage(result, theme)
    for label, text in evidence.lines(result.extra):
        yield _line(label, theme.warn(text) if label == "lint" and not result.faults else text, theme)
    if not result.faults:
        yield from _margin(result, theme)
    yield ""
    yield from _coverage(result, theme)
    for note in result.notes:
        yield _line("note", note, theme)
    if result.timings:
        spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.timings.items())
        yield _line("time", spent, theme)
    yield _line("files", ", ".join(result.files.values()), theme)
    if result.command:
        yield _line("again", result.command, theme)
    yield _line("next", _next(result), theme)


def _line(label: str, text: str, theme: Theme) -> str:
    return f"{theme.dim(label.ljust(_LABEL))}{text}"


def _outputs(result: Result, theme: Theme) -> Iterator[str]:
    outputs = result.outputs
    if not any(outputs[side][kind] for side in ("reference", "candidate") for kind in ("text", "tokens")):
        return  # a model that chooses nothing
    yield _line("reference", f"“{outputs['reference']['text']}”", theme)
    yield _line("candidate", f"“{outputs['candidate']['text']}”", theme)
    count = len(outputs["candidate"]["tokens"])
    first = outputs["first_differing_token"]
    if result.death:
        yield _line("tokens", f"{count} until the candidate ended", theme)
    elif first < 0:
        yield _line("tokens", f"{count}, all equal" if count else "none from the candidate", theme)
    else:
        ours, theirs = outputs["reference"]["tokens"], outputs["candidate"]["tokens"]
        pair = [str(t[first]) if first < len(t) else "none" for t in (ours, theirs)]
        tie = next((t for t in outputs.get("near_ties", ()) if t["token"] == first), None)
        why = f": a near-tie, {number(tie['gap'])} apart where noise is {number(tie['noise'])}" if tie else ""
        yield _line("tokens", f"token {first} differs: reference {pair[0]}, candidate {pair[1]}{why}", theme)
    yield from _scores(outputs, theme)


def _scores(outputs: Mapping[str, Any], theme: Theme) -> Iterator[str]:
    """Where the prompt was read otherwise, and how far the scores of the tokens are apart."""
    prompt, logits = outputs.get("prompt"), outputs.get("logits")
    if prompt and prompt["first_differing"] >= 0:
        at, sides = prompt["first_differing"], (prompt["reference"], prompt["candidate"])
        ids = [f"{side[at] if at < len(side) else 'none'} of {len(side)}" for side in sides]
        yield _line("prompt", theme.bad(f"token {at} differs: reference {ids[0]}, candidate {ids[1]}"), theme)
    if logits and (logits["top1"] < 1 or not logits["kl_max"] <= QUIET):
        yield _line(
            "logits",
            f"KL divergence at most {number(logits['kl_max'])} ({logits['kl_max_step']}), highest score alike in "
            f"{logits['top1']:.0%} of {logits['choices']} choices, the five highest in {logits['top5']:.0%}",
            theme,
        )


def _verdict(result: Result, theme: Theme) -> str:
    if result.first_bad is not None:
        line = f"{theme.bad('✗ diverged')}  first bad: {_headline(result.first_bad, theme)}"
        return f"{line}; then the candidate {result.death}" if result.death else line
    if result.verdict == "incomplete":
        if not result.death:
            return f"{theme.warn('? incomplete')}  nothing was compared"
        return f"{theme.warn('? incomplete')}  no fault in what was compared; the candidate {result.death}"
    if result.stage == "tokens":
        return f"{theme.bad('✗ diverged')}  the prompt was read as other tokens: compare the tokenizers"
    if result.verdict == "diverged":
        return f"{theme.bad('✗ diverged')}  the tokens differ although every value is right given its own inputs"
    compared = sum(result.coverage.compared.values())
    return f"{theme.good('✓ match')}  all {compared} values are right given their own inputs"


def _also(result: Result, theme: Theme) -> Iterator[str]:
    """The other faults; those of one cause, such as an eps that is wrong in every norm, in one line."""
    groups: list[list[FaultResult]] = []
    for fault in result.faults:
        group = next((g for g in groups if _same_cause(g[0], fault)), None)
        if group is None:
            groups.append([fault])
        else:
            group.append(fault)
    for group in groups[:1]:
        if len(group) > 1:
            yield _line("also", f"the same cause in {_many(group[1:])}", theme)
    for group in groups[1:_LISTED]:
        more = f"; the same cause in {_many(group[1:])}" if len(group) > 1 else ""
        yield _line("also", f"{_headline(group[0], theme)}; {group[0].cause.statement}{more}", theme)
    left = sum(map(len, groups[_LISTED:]))
    if left:
        yield _line("also", f"{left} more faults: see faults[] in result.json", theme)


def _many(faults: Sequence[FaultResult]) -> str:
    """A few of many names, and how large the largest of them is."""
    names = ", ".join(f.value for f in faults[:2]) + (f" ... {faults[-1].value}" if len(faults) > 2 else "")
    most = max((f.local_error for f in faults), key=lambda x: x if math.isfinite(x) else math.inf)
    return f"{len(faults)} further value{'s' * (len(faults) > 1)}: {names} (local error at most {number(most)})"


def _same_cause(a: FaultResult, b: FaultResult) -> bool:
    """Whether what is said of one is true of the other, but for its name."""
    proved = a.cause.reproduces_to is not None and b.cause.reproduces_to is not None
    details = [{k: v for k, v in f.cause.detail.items() if k not in _OF_A_SITE} for f in (a, b)]
    return proved and (a.op, a.cause.kind) == (b.op, b.cause.kind) and alike(*details)


def _headline(fault: FaultResult, theme: Theme) -> str:
    """The line that stands alone: value, op, source line, local error, times the noise floor."""
    source = f", {fault.source}" if fault.source.file else ""
    where = f" in {fault.where}" if fault.where else ""
    return (
        f"{theme.name(fault.value)} ({fault.step}), op {fault.op}{source}: "
        f"local error {number(fault.local_error)}{where}, {theme.number(times(fault.times_noise))}"
    )


def _evidence(fault: FaultResult, theme: Theme) -> Iterator[str]:
    cause = f"{theme.bad(fault.cause.kind)}: {fault.cause.statement}"
    yield _line("cause", cause, theme)
    if fault.cause.reproduces_to is not None:
        left = number(fault.cause.reproduces_to)
        floor = number(fault.noise_floor)
        yield _line(
            "proof", f"replayed with that edit, the candidate's values come out to {left} (noise {floor})", theme
        )
    for place in ("input_place", "read_place"):
        where = fault.cause.detail.get(place)
        if where and where.get("address"):
            name = f"{where['name']} ({where['step']})"
            yield _line("buffer", f"{name} at {where['address']:#x}, {where['bytes']:,} bytes", theme)
    for one in fault.inputs:
        mark = theme.good("✓ right") if one.ok else theme.warn("✗ already off")
        yield _line("input", f"{mark}  {one.name} ({one.step}), cumulative error {number(one.cumulative_error)}", theme)
    if fault.worst is not None:
        w = fault.worst
        yield _line(
            "worst",
            f"element {list(w.index)}: candidate {w.candidate:.9g}, expected {w.expected:.9g} "
            f"({w.ulp:,.0f} ulp), reference {w.reference:.9g}",
            theme,
        )
    steps = [s.step for s in fault.sites]
    shown = ", ".join(steps) if len(steps) <= 3 else f"{steps[0]}, {steps[1]} ... {steps[-1]}"
    yield _line("sites", f"{len(steps)}: {shown}", theme)


def _damage(result: Result, theme: Theme) -> Iterator[str]:
    if result.faults:
        yield _line("damage", f"{len(result.damage)} values are off only because of it", theme)


def _margin(result: Result, theme: Theme) -> Iterator[str]:
    """How close a matching run came: the value with the least room."""
    values = result.values
    finite = [(x, i) for i, x in enumerate(values["times_noise"]) if math.isfinite(x)]
    if finite:
        x, i = max(finite)
        yield _line(
            "margin",
            f"the weakest value, {values['name'][i]} ({values['step'][i]}), is at {x:.2f} of 3 noise floors",
            theme,
        )


def _coverage(result: Result, theme: Theme) -> Iterator[str]:
    c = result.coverage
    groups = ", ".join(f"{group} {n}" for group, n in c.compared.items()) or "none"
    yield _line("compared", f"{sum(c.compared.values())} values: {groups}", theme)
    inputs = f"{c.inputs_equal} inputs equal"
    if c.inputs_differ:
        inputs += f", {theme.bad(f'{len(c.inputs_differ)} differ')}: {', '.join('/'.join(k) for k in c.inputs_differ)}"
    weights = f"{c.weights_compared} weights equal" if not c.weights_differ else _differ(c.weights_differ, theme)
    edges = f"{c.edges_checked} reads checked" + (f", {c.edges_changed} changed" if c.edges_changed else "")
    yield _line("", f"{inputs}; {weights}; {edges}", theme)
    yield from _left_out("candidate", c.only_candidate, c.candidate_values, theme)
    yield from _left_out("reference", c.only_reference, c.reference_values, theme)


def _differ(names: Sequence[str], theme: Theme) -> str:
    shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    return theme.bad(f"{len(names)} weights differ: {shown}")


def _left_out(side: str, alone: Sequence[tuple[str, str, str]], total: int, theme: Theme) -> Iterator[str]:
    if not alone:
        yield _line("not", f"of the {side}'s {total} values none was left out", theme)
        return
    reasons = Counter(f"{_PART}another" if r.startswith(_PART) else r.partition(":")[0] for _, _, r in alone)
    why = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
    yield _line("not", f"{len(alone)} of the {side}'s {total} values: {why}", theme)
    if side == "candidate":
        listed = [one for one in alone if not one[2].startswith(_PART)][:_LISTED]
        for step, name, reason in listed:
            yield _line("", f"{name} ({step}): {reason}", theme)
        if len(alone) > len(listed):
            more = f"{len(alone) - len(listed)} more" if listed else "all of them"
            yield _line("", f"{more}: coverage.only_candidate in result.json", theme)


def _next(result: Result) -> str:
    first = result.first_bad
    if first is not None:
        return f"firstbad show {result.files['candidate']} {first.value} --step {first.step}"
    return f"firstbad show {result.files['candidate']}"
