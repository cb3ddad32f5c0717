"""Kubelets of every version decide as recorded: all available decisions; `make test` runs a sample."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import recordings
from topowise_scheduler.kubelet import version_of
from topowise_scheduler.kubelet.behaviour import ROWS

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "kubelet-versions.jsonl.xz"
MINORS = [row.minor for row in ROWS]


@pytest.mark.skipif(not RECORDED.exists(), reason="a sample is checked; the decisions are not beside this repository")
def test_all_recorded_decisions() -> None:
    counts: Counter[int] = Counter()
    for decision in recordings.read(RECORDED):
        counts[version_of(decision.version).minor] += 1
        assert recordings.difference(decision) == ""
    assert all(counts[minor] > 2000 for minor in MINORS if minor != 36)
