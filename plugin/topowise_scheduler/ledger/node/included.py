"""Infers which pods a report accounts for, from used amounts alone.

Invariant: the pods that are returned request no more together than is in use.

Some producers publish no fingerprint: koordlet, whose numbers are totals that include no pod, and RTE and NFD with
fingerprints switched off. The pods are found by addition: the pods on the node without the newest pods, and maybe pods
that ended lately, request what is in use. Of several such sets the smallest set counts: a pod that is booked beside the
numbers can only make the node look fuller than it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Amounts = Mapping[str, int]


def included(in_use: Amounts, there: Sequence[Amounts], ended: Sequence[Amounts]) -> frozenset[int]:
    """Returns the positions in `there`, oldest pod first, of the pods that the numbers include.

    `ended` are pods that ended lately, last end first. Pods without requests are in no number. If no set adds up (RTE
    counts memory of several NUMA nodes on each, pods may be excluded), the oldest pods that fit beside all ended pods
    count.
    """
    rest = Counter({name: amount for name, amount in in_use.items() if amount})
    # Without ended pods first: most reports are younger than every end.
    sets = [_first(Counter(rest), there)]
    for requests in ended:
        if any(requests.values()):
            rest.subtract(requests)
            sets.append(_first(Counter(rest), there) if min(rest.values()) >= 0 else None)
    adding_up = [positions for positions in sets if positions is not None]
    return min(adding_up, key=len) if adding_up else _within(rest, there)


def _first(rest: Counter[str], there: Sequence[Amounts]) -> frozenset[int] | None:
    """Returns the fewest oldest pods that request exactly these amounts, None if there are no such pods."""
    positions = []
    for position, requests in enumerate(there):
        # All amounts are explained. Newer pods came after the report.
        if not any(rest.values()):
            break
        if any(requests.values()):
            rest.subtract(requests)
            if min(rest.values()) < 0:
                # More pods only request more.
                return None
            positions.append(position)
    return None if any(rest.values()) else frozenset(positions)


def _within(rest: Counter[str], there: Sequence[Amounts]) -> frozenset[int]:
    positions = []
    for position, requests in enumerate(there):
        if any(requests.values()) and all(amount <= rest[name] for name, amount in requests.items() if amount):
            rest.subtract(requests)
            positions.append(position)
    return frozenset(positions)
