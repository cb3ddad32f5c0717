"""The order in which waiting pods get their turn: a tenant with many pods must not block other tenants.

What the pods wait for is bounded (looks of a pass, evictions a minute, nodes an hour), and is used in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from topowise_scheduler.ledger.pods.records import PodRecord


def in_turn(
    waiting: Iterable[PodRecord], used: Mapping[str, int], not_before: Mapping[str, float] | None = None
) -> list[PodRecord]:
    """Returns the pods by `not_before`, then by priority, and of equal priority a pod of each namespace before the
    second of any; of one namespace the oldest first.

    `used`: how much of a budget a namespace has used lately; its first pod comes with the pod after as many of another
    namespace. `not_before`: by UID, the end of the pod's last pause; pods without one come first.
    """
    turns: Counter[tuple[str, int]] = Counter()
    ranks: dict[str, tuple[float, int, int]] = {}
    by_age = sorted(waiting, key=lambda record: (record.status.started, record.uid))
    for record in by_age:
        tenant = record.namespace, record.priority
        pause = (not_before or {}).get(record.uid, 0.0)
        ranks[record.uid] = pause, -record.priority, used.get(record.namespace, 0) + turns[tenant]
        turns[tenant] += 1
    return sorted(by_age, key=lambda record: ranks[record.uid])
