"""Whom the numbers of a report can include, if nothing tells but the amounts in use.

Invariant: the pods that are found hold no more together than is in use.

So it is with producers that publish no fingerprint: koordlet, whose numbers are totals and include nobody, and RTE and
NFD with it switched off. Which pods they include is found by adding up: the pods there, without the newest few of them,
and maybe those that have ended lately, together hold what is in use. Where several such sets add up the one with the
fewest pods counts, as a pod that is booked beside the numbers can only make the node look fuller than it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Amounts = Mapping[str, int]


def included(in_use: Amounts, there: Sequence[Amounts], ended: Sequence[Amounts]) -> frozenset[int]:
    """Positions of the pods there, first assigned first, that the numbers include; `ended` are the last first.

    Pods that hold nothing are in no number. Where nothing adds up (memory over several NUMA nodes is counted on each of
    them by RTE, pods may be excluded) these are the first that there is room for, beside all that have ended.
    """
    rest = Counter({name: amount for name, amount in in_use.items() if amount})
    sets = [_first(Counter(rest), there)]
    for asked in ended:
        if any(asked.values()):
            rest.subtract(asked)
            sets.append(_first(Counter(rest), there) if min(rest.values()) >= 0 else None)
    adding_up = [one for one in sets if one is not None]
    return min(adding_up, key=len) if adding_up else _within(rest, there)


def _first(rest: Counter[str], there: Sequence[Amounts]) -> frozenset[int] | None:
    """The shortest beginning of these that holds just this."""
    found = []
    for position, asked in enumerate(there):
        if not any(rest.values()):
            break
        if any(asked.values()):
            rest.subtract(asked)
            if min(rest.values()) < 0:
                # Nobody gives anything back.
                return None
            found.append(position)
    return None if any(rest.values()) else frozenset(found)


def _within(rest: Counter[str], there: Sequence[Amounts]) -> frozenset[int]:
    found = []
    for position, asked in enumerate(there):
        if any(asked.values()) and all(amount <= rest[name] for name, amount in asked.items() if amount):
            rest.subtract(asked)
            found.append(position)
    return frozenset(found)
