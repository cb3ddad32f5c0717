"""When a pod of a series is decided, and what fails a series."""

from __future__ import annotations

import pytest

from lab.cluster import is_decided
from lab.placing import ADMITTED, REFUSED, SENT, Tally


@pytest.mark.parametrize(
    "status, expected",
    [
        ({}, False),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}, False),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}, True),
        ({"phase": "Pending", "conditions": [{"type": "Initialized", "status": "False"}]}, True),
        ({"phase": "Failed"}, True),
    ],
)
def test_a_pod_is_decided_once_it_is_bound_or_refused(status: dict[str, object], expected: bool) -> None:
    assert is_decided({"status": status}) is expected


def test_a_refusal_after_fits_fails_a_series_and_a_miss_of_ids_does_not() -> None:
    tally = Tally()
    tally.counts.update({SENT: 2, ADMITTED: 2})
    tally.wrong("placed otherwise", "a: CPUs")
    assert tally.part("Series: x").passed
    tally.wrong(REFUSED, "b")
    part = tally.part("Series: x")
    assert not part.passed
    assert part.problems == ("placed otherwise: a: CPUs", "refused after fits: b")
