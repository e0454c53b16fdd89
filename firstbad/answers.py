"""What both engines answered: the prompt that they read, the tokens that they chose, and how their scores compare.

A token that differs is a near-tie where its two scores are closer than noise on both sides; since the candidate's
tokens drive the reference, what comes after one is compared like the rest. Leaves out sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.tie import Scores, near_tie, scores_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.local import Local
    from firstbad.trace import Trace

TOP = 5
"""Of so many highest scores the agreement is told."""

PROMPTS = ("input_ids", "prompt", "tokens", "decoder_input_ids")


def outputs_of(reference: Trace, candidate: Trace, local: Local) -> dict[str, Any]:
    """`outputs` of a result: both answers, the first token that differs, near-ties, scores, and the prompt."""
    ours, theirs = list(reference.outputs.get("tokens", [])), list(candidate.outputs.get("tokens", []))
    shared = min(len(ours), len(theirs))
    differ = [i for i in range(shared) if ours[i] != theirs[i]]
    first = differ[0] if differ else -1
    if first < 0 and len(ours) != len(theirs) and candidate.complete and "tokens" in candidate.outputs:
        first = shared
    found: dict[str, Any] = {
        "reference": {"text": reference.outputs.get("text", ""), "tokens": ours},
        "candidate": {"text": candidate.outputs.get("text", ""), "tokens": theirs},
        "first_differing_token": first,
        "tokens_equal": first < 0 and candidate.complete,
    }
    scores = scores_of(local, reference, candidate)
    if scores:
        found["logits"] = agreement(scores)
    if differ:
        found["near_ties"] = list(_ties(scores, local, reference, differ, ours, theirs))
        tied = {tie["token"] for tie in found["near_ties"]}
        found["own_choices"] = list(_own(scores, local, candidate, [i for i in differ if i not in tied], ours, theirs))
    prompt = _prompt(reference, candidate)
    return found if prompt is None else {**found, "prompt": prompt}


def only_near_ties(outputs: dict[str, Any]) -> bool:
    """Whether each token that differs is a near-tie or the engine's own choice, and both sides have as many."""
    ours, theirs = (outputs[side]["tokens"] for side in ("reference", "candidate"))
    differ = sum(a != b for a, b in zip(ours, theirs, strict=False))
    excused = len(outputs.get("near_ties", ())) + len(outputs.get("own_choices", ()))
    return 0 < differ == excused and len(ours) == len(theirs)


def _ties(
    scores: dict[str, Scores], local: Local, reference: Trace, differ: list[int], ours: list[int], theirs: list[int]
) -> Iterator[dict[str, Any]]:
    B = next(iter(scores.values())).ours.shape[0] if scores else 1
    for i in differ:
        step = "prefill" if i < B else f"decode.{i // B - 1}"
        if step not in scores:
            continue
        tie = near_tie(scores[step], local, reference, (ours[i], theirs[i]), row=i % B)
        if tie is not None and tie.tied:
            yield {
                "token": i,
                "step": step,
                "reference": ours[i],
                "candidate": theirs[i],
                "gap": tie.gap,
                "noise": tie.width,
            }


def _own(
    scores: dict[str, Scores], local: Local, candidate: Trace, differ: list[int], ours: list[int], theirs: list[int]
) -> Iterator[dict[str, Any]]:
    """Tokens of an engine whose ops round what they multiply (8-bit activations): where every value is what its own
    inputs give with that rounding replayed, its scores differ from the reference's rightly, and so may the largest."""
    rounds = any(op.attrs.get("arithmetic") for op in candidate.graph.ops)
    if not rounds or any(j.bad for j in local.values):
        return
    B = next(iter(scores.values())).ours.shape[0] if scores else 1
    for i in differ:
        step, row = "prefill" if i < B else f"decode.{i // B - 1}", i % B
        if step not in scores:
            continue
        a, b = scores[step].ours[row], scores[step].theirs[row]
        if 0 <= max(ours[i], theirs[i]) < a.size and int(b.argmax()) == theirs[i]:
            yield {
                "token": i,
                "step": step,
                "reference": ours[i],
                "candidate": theirs[i],
                "gap": float(a[ours[i]] - a[theirs[i]]),
                "scores_apart": float(np.sqrt(np.mean((a - b) ** 2))),
            }


@dataclass(frozen=True)
class _Choice:
    step: str
    kl: float
    first: bool
    top: float


def agreement(scores: dict[str, Scores]) -> dict[str, Any]:
    """How alike the distributions over the vocabulary are: KL divergence (nats) of the candidate's from the
    reference's, whether the highest is the same, and the share of the TOP highest that both have."""
    rows = [
        _Choice(step, _kl(a, b), int(a.argmax()) == int(b.argmax()), _shared(a, b))
        for step, both in scores.items()
        for a, b in zip(both.ours, both.theirs, strict=True)
    ]
    worst = max(rows, key=lambda r: r.kl if np.isfinite(r.kl) else np.inf)
    return {
        "choices": len(rows),
        "top1": sum(r.first for r in rows) / len(rows),
        f"top{TOP}": sum(r.top for r in rows) / len(rows),
        "kl_mean": float(np.mean([r.kl for r in rows])),
        "kl_max": worst.kl,
        "kl_max_step": worst.step,
    }


def _kl(a: NDArray[Any], b: NDArray[Any]) -> float:
    p, log_p = _softmax(a)
    _, log_q = _softmax(b)
    on = p > 0
    with np.errstate(invalid="ignore"):
        return max(0.0, float(np.sum(p[on] * (log_p[on] - log_q[on]))))


def _softmax(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(probabilities, their logarithms), in float64."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        moved = np.asarray(x, np.float64) - np.max(x)
        logs = moved - np.log(np.exp(moved).sum())
        return np.exp(logs), logs


def _shared(a: NDArray[Any], b: NDArray[Any]) -> float:
    k = min(TOP, a.size)
    return len(_tops(a, k) & _tops(b, k)) / k


def _tops(x: NDArray[Any], k: int) -> set[int]:
    """Places of the k largest; of equal ones the first. Without an order of all the others, which are a vocabulary."""
    last = np.partition(-x, k - 1)[k - 1]  # a NaN is the last of all
    if np.isnan(last):
        return set(np.argsort(-x, kind="stable")[:k].tolist())
    above = np.flatnonzero(-x < last)
    return {*above.tolist(), *np.flatnonzero(-x == last)[: k - above.size].tolist()}


def _prompt(reference: Trace, candidate: Trace) -> dict[str, Any] | None:
    """The ids that each side read first; None where the candidate does not say. A batch is one row after the other."""
    ours, said = _read(reference), candidate.outputs.get("prompt")
    theirs = [int(i) for i in said] if isinstance(said, list) else _read(candidate)
    if not ours or theirs is None:
        return None
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), -1)
    if first < 0 and len(ours) != len(theirs):
        first = min(len(ours), len(theirs))
    return {"reference": ours, "candidate": theirs, "first_differing": first}


def _read(trace: Trace) -> list[int] | None:
    for value in trace.graph.values:
        if value.kind == "input" and value.name in PROMPTS and "int" in value.dtype and trace.stored(value):
            return [int(i) for i in np.asarray(trace.array(value)).reshape(-1)]
    return None
