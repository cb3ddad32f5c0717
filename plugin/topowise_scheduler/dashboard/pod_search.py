"""Pods by a part of their name, among all pods that the ledger knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from topowise_scheduler.ledger.ledger import Ledger

MOST_MATCHES: Final = 50


def matching(ledger: Ledger, text: str) -> Iterator[str | None]:
    """Yields "namespace/name" of waiting, refused and assigned pods whose name contains `text`; None between steps.

    A pod with exactly this name is the only result, so that a full name opens the pod itself.
    """
    wanted = text.strip().lower()
    names = dict.fromkeys(
        f"{record.namespace}/{record.name}" for record in (*ledger.unscheduled.values(), *ledger.refused.values())
    )
    for node in [name for name, _ in ledger.node_states.items()]:
        names.update(dict.fromkeys(f"{record.namespace}/{record.name}" for record in ledger.pods_on(node)))
        yield None
    exact = [name for name in names if wanted in (name.lower(), name.lower().partition("/")[2])]
    yield from exact if len(exact) == 1 else sorted(name for name in names if wanted in name.lower())
