"""After the first measurement: other alignments that leave fewer faults, because a name lied or a guess was wrong.

Each is measured as the first was. What relabel.py finds is what may be tried; here is decided what is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from firstbad.alignment import Alignment
from firstbad.local import Local
from firstbad.matching import Matcher
from firstbad.relabel import believed, misread, relabelled, suspects, unnamed, unproved, without_misplaced
from firstbad.relaid import relay
from firstbad.replay import Executor

if TYPE_CHECKING:
    from firstbad.trace import Trace


RELAID = 8
"""Values that are given another layout, at most: what is wrong in one layer may be so in each."""


MANY = 8
"""Names lie on a large scale where at least one in so many suspicious values holds another value. Else all of them are
what one fault has changed, and to align them anew would look in vain for the content of each."""


@dataclass(frozen=True)
class Measured:
    """An alignment and what was measured under it."""

    alignment: Alignment
    candidate: Trace  # with what is put together
    executor: Executor  # that rounds as the candidate does
    local: Local

    @property
    def blamed(self) -> int:
        """How many values of the model are wrong, whatever the steps."""
        return len({judged.name for judged in self.local.values if judged.bad})


def realigned(
    first: Measured,
    reference: Trace,
    measured: Callable[[Alignment], Measured],
    aligned: Callable[[Container[int]], Alignment],
    mapped: bool,
) -> Measured:
    """The measurement that is believed. `aligned`: anew, without the names of these candidate values; what is `mapped`
    by the user is not doubted as a whole."""
    found = first
    again = relabelled(first.alignment, first.local, reference, first.candidate) if first.blamed else None
    if again is not None:
        doubted = suspects(first.alignment, first.local)
        many = not mapped and MANY * _changed(first.alignment, again) >= len(doubted)
        whole = measured(unnamed(doubted, aligned)) if many else None
        if (
            whole is not None
            and whole.blamed < first.blamed
            and believed(whole.alignment, whole.local, first.alignment, reference)
        ):
            found = whole
        else:
            found = _moved(first, again, reference, measured)
    if found.blamed:
        found = _relaid(found, reference, measured)
    rest = without_misplaced(found.alignment, found.local, reference.graph) if found.blamed else None
    if rest is not None:
        other = measured(rest)
        found = other if other.blamed < found.blamed else found
    return found


def _changed(was: Alignment, now: Alignment) -> int:
    """How many of the candidate's values are another value now, or in another order."""
    before = {pair.candidate.id: pair for pair in was.pairs}
    return sum(before.get(pair.candidate.id) != pair for pair in now.pairs)


def _moved(first: Measured, again: Alignment, reference: Trace, measured: Callable[[Alignment], Measured]) -> Measured:
    """With single values moved; what makes its readers wrong stays where its name says."""
    other = measured(again)
    doubted = unproved(again, other.local, reference.graph)
    if doubted:
        without = relabelled(first.alignment, first.local, reference, first.candidate, doubted)
        if without is None:
            return first
        other = measured(without)
    return other if other.blamed < first.blamed else first


def _relaid(found: Measured, reference: Trace, measured: Callable[[Alignment], Measured]) -> Measured:
    """With values in the layout that what reads them wrongly makes right: then it is they that are wrong."""
    alignment, own = found.alignment, found.candidate
    doubted = misread(alignment, found.local, reference.graph)
    taken = {pair.candidate.id for pair in alignment.pairs}
    matcher = Matcher(
        reference.graph, own.graph, reference.array, own.array, dict(alignment.by_reference), taken, alignment.joins
    )
    done = 0
    while doubted and done < RELAID and relay(matcher, found.executor, doubted):
        done += 1
    if not done:
        return found
    pairs = tuple(matcher.pairs[i] for i in sorted(matcher.pairs))
    other = measured(replace(alignment, pairs=pairs, joins=tuple(matcher.joins.values())))
    return other if other.blamed <= found.blamed else found
