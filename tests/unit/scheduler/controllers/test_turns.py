"""Turns of waiting pods, by hand: priority first, then the namespaces in rotation."""

from __future__ import annotations

import pytest

from scheduling import Service, pod
from topowise_scheduler.controllers.controller import in_turn
from topowise_scheduler.ledger.pods.records import PodRecord


def waiting(namespace: str, name: str, since: int, priority: int = 0) -> PodRecord:
    document = pod(name, priority=priority, creationTimestamp=f"2026-01-01T00:00:{since:02}Z")
    document["metadata"] |= {"namespace": namespace, "uid": f"{namespace}/{name}"}
    return Service().put(document)


PODS = [
    *(waiting("noisy", f"p{number}", number) for number in range(4)),
    waiting("quiet", "a", 10),
    waiting("quiet", "b", 9),
    waiting("quiet", "urgent", 11, 5),
]


@pytest.mark.parametrize(
    ("used", "not_before", "expected"),
    [
        ({}, {}, "quiet/urgent noisy/p0 quiet/b noisy/p1 quiet/a noisy/p2 noisy/p3"),
        ({"noisy": 2}, {}, "quiet/urgent quiet/b quiet/a noisy/p0 noisy/p1 noisy/p2 noisy/p3"),
        ({"noisy": 2, "quiet": 2}, {}, "quiet/urgent noisy/p0 quiet/b noisy/p1 quiet/a noisy/p2 noisy/p3"),
        (
            {},
            {"quiet/urgent": 7.0, "noisy/p0": 3.0},
            "quiet/b noisy/p1 quiet/a noisy/p2 noisy/p3 noisy/p0 quiet/urgent",
        ),
    ],
    ids=["rotation", "used by one", "used by both", "paused"],
)
def test_turns(used: dict[str, int], not_before: dict[str, float], expected: str) -> None:
    for order in (PODS, PODS[::-1]):
        assert " ".join(record.uid for record in in_turn(order, used, not_before)) == expected
