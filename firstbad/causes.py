"""The causes of all faults of a run, one after another.

One mistake often stands in many layers: an eps is wrong in every norm. So a cause that was found is tried first at the
faults after it, with the same proof; a whole search begins only where none of those explains the fault, and there are
at most SEARCHES of them. Leaves out the search itself (cause.py) and where faults are (faults.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from firstbad.alignment import Alignment
from firstbad.cause import Case, Cause, Edits, again, case_of, confirmed, explain, second
from firstbad.edits import EDITS
from firstbad.errors import UnstableReferenceError
from firstbad.faults import Fault
from firstbad.graph import Value
from firstbad.local import Judged, Local, giver, kind_of, sequential_of, sums_of
from firstbad.noise import ROUNDOFF, Pool, excesses, floor
from firstbad.region import replay_region
from firstbad.replay import Executor
from firstbad.statement import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.trace import Trace

SEARCHES = 20
"""Whole searches in one run; a fault beyond these is listed with what was measured, and with no cause."""

MANY = 30
"""Ops in a region above which the search is done at the last site, if that has fewer (one step of a scan against
the scan in chunks): each edit is made in less time, and what is wrong stands alone."""

NOT_SEARCHED = "not searched"


def causes(
    faults: Sequence[Fault],
    reference: Trace,
    candidate: Trace,
    alignment: Alignment,
    local: Local,
    executor: Executor,
    *,
    budget: float,
    progress: Callable[[str], None],
) -> list[tuple[Case, Cause]]:
    """A case and a cause of each fault, in their order. `budget`: seconds for each search."""
    given = giver(reference, candidate, alignment)
    made: list[tuple[Case, Cause]] = []
    known: list[tuple[str, Cause]] = []  # (kind of op, cause), the latest first
    searches = 0

    def case_at(site: Judged) -> Case:
        return case_of(site, reference, candidate, alignment, executor, given, local.pools)

    for fault in faults:
        case = case_at(fault.first)
        check_reference(case)
        kind = fault.first.op.kind
        progress(f"explain {fault.name}")
        tried = (again(case, cause, budget=budget) for op, cause in known if op == kind) if budget > 0 else ()
        cause = next((one for one in tried if one is not None), None)
        if cause is None:
            searched = budget > 0 and searches < SEARCHES
            searches += searched
            short = case_at(fault.sites[-1]) if searched and len(fault.sites) > 1 else case
            if len(case.region.ops) > MANY and len(short.region.ops) < len(case.region.ops):
                found = explain(short, EDITS, budget=budget, progress=progress)
                if found.edit is not None:
                    known.extend([(kind, found)] if found.by is not None else [])
                    made.append((case, _elsewhere(found, short.judged.step)))
                    continue
            cause = explain(case, EDITS if searched else (), budget=budget if searched else 0.0, progress=progress)
            if cause.by is not None:
                known.insert(0, (kind, cause))
        if cause.edit is not None and len(fault.sites) > 1:
            other = case_at(second(fault))
            cause = confirmed(other, cause, _makers(cause), budget=budget / 4)
        made.append((case, cause))
    return made


def _elsewhere(cause: Cause, step: str) -> Cause:
    """A cause that was found at another site; its edit is of that site's ops, and no proof for this one."""
    rest = tuple(replace(one, edit=None, by=None) for one in cause.alternatives)
    return replace(cause, detail={**cause.detail, "found_in": step}, edit=None, by=None, alternatives=rest)


def _makers(cause: Cause) -> Edits:
    """What made a cause and those that do as well; all of EDITS where one is of two edits."""
    makers = dict.fromkeys(one.by for one in (cause, *cause.alternatives))
    return EDITS if None in makers else tuple(make for make in makers if make is not None)


def not_searched(explained: Iterable[tuple[Case, Cause]]) -> Iterable[str]:
    """For people: how many faults are without a cause because there were too many."""
    every = list(explained)
    left = [case.judged.name for case, cause in every if cause.detail.get("why") == NOT_SEARCHED]
    if left and len(left) < len(every):
        yield (
            f"causes were searched for {SEARCHES} times, which is the most in one run; {len(left)} faults have none, "
            f"first {left[0]}: mend those that are named, then run again"
        )


def check_reference(case: Case) -> None:
    """No blame without a reference that holds: its own value must follow from its own inputs, by the same judge.

    Raises UnstableReferenceError where replaying the region on the reference's values does not give the reference's.
    """
    reference, value = case.reference, case.judged.pair.reference
    if case.judged.op.attrs.get("followed"):
        return  # it gave back what the candidate chose
    starts = frozenset(case.region.inputs)

    def own(other: Value) -> NDArray[Any] | None:
        return reference.array(other) if other.id in starts or other.kind in ("input", "constant") else None

    executor: Executor = getattr(case.executor, "plain", case.executor)  # what the candidate rounds is no matter here
    replayed = replay_region(reference.graph, case.region, executor, own)
    sums = sums_of(reference.array(value), replayed, value.dtype)
    u = ROUNDOFF.get(value.dtype, ROUNDOFF["float32"])
    order = None if replayed.exact else sequential_of(u, replayed)
    limits = floor(sums, case.pools.get(kind_of(case.judged.op), Pool()), order)
    if any(t.bad for t in excesses(sums, limits, exact=replayed.exact)):
        raise UnstableReferenceError(
            f"the reference does not reproduce itself: `{value.name}` of {value.step} is not what its own inputs give "
            f"(off by {number(sums.local_error)}); check the machine and the PyTorch build, then capture again"
        )
