"""The explanation warns of a slow kubelet, which tries every set of many NUMA nodes."""

from __future__ import annotations

import msgspec
import pytest

from scheduling import configuration, machine, pod
from topowise import pods
from topowise_scheduler.explain import explanation
from topowise_scheduler.explain.text import rough_duration
from topowise_scheduler.kubelet import Kubelet


@pytest.mark.parametrize(
    ("zones", "shown"), [(2, ""), (12, "; its kubelet takes about 5 seconds to decide, as it tries")]
)
def test_a_long_admission_is_announced(zones: int, shown: str) -> None:
    config = configuration(
        topologyManagerPolicy="restricted", topologyManagerPolicyOptions={"max-allowable-numa-nodes": "16"}
    )
    node = Kubelet(machine(zones), config)
    needs = pods.needs(pods.decode(msgspec.json.encode(pod("a", "1"))))
    answer = explanation.explain("n1", node, node.view("a", needs), precision="exact")
    assert answer.verdict == "fits"
    assert ("its kubelet takes" in answer.text) == bool(shown)
    assert shown in answer.text


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        (0.5, "less than a second"),
        (5, "5 seconds"),
        (1300, "22 minutes"),
        (1e4, "3 hours"),
        (1e12, "more than 10,000 days"),
    ],
)
def test_times_are_orders_of_magnitude(about: float, shown: str) -> None:
    assert rough_duration(about) == shown
