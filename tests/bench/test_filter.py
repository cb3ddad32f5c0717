"""filter and prioritize without the network: request bytes in, answer bytes out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topowise import nrt
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.engine import fit
from topowise_scheduler.extender.verbs import Verbs


def topology(name: str, number: int) -> nrt.NodeResourceTopology:
    zones = [
        {
            "name": f"node-{zone}",
            "type": "Node",
            "resources": [
                {"name": resource, "capacity": whole, "allocatable": whole, "available": free}
                for resource, whole, free in (
                    ("cpu", "32", str((number * 7 + zone * 3) % 33)),
                    ("memory", "64Gi", f"{(number * 5 + zone) % 65}Gi"),
                    ("nvidia.com/gpu", "2", str((number + zone) % 3)),
                )
            ],
        }
        for zone in range(8)
    ]
    policy = {"name": "topologyManagerPolicy", "value": "single-numa-node"}
    return nrt.decode(msgspec.json.encode({"metadata": {"name": name}, "attributes": [policy], "zones": zones}))


@pytest.fixture(scope="module")
def verbs() -> Verbs:
    ledger = Ledger(fit.judge)
    for number in range(5000):
        ledger.put_topology(topology(f"node-{number:05}", number))
    return Verbs(Answers(ledger, {"cpu": 1, "memory": 1}), lambda: None)


def request(count: int) -> bytes:
    amounts = {"cpu": "12", "memory": "24Gi"}
    pod: dict[str, Any] = {
        # Without a uid nothing is remembered between two rounds.
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]},
    }
    names = [f"node-{number:05}" for number in range(count)]
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})


@pytest.mark.parametrize("count", [500, 5000])
def test_filter(benchmark: Any, verbs: Verbs, count: int) -> None:
    answer = benchmark(verbs.filter, request(count))
    assert msgspec.json.decode(answer)["Error"] == ""


@pytest.mark.parametrize("count", [500, 5000])
def test_prioritize(benchmark: Any, verbs: Verbs, count: int) -> None:
    answer = benchmark(verbs.prioritize, request(count))
    assert len(msgspec.json.decode(answer)) == count
