"""Short constructors of NRT objects and pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from topowise import nrt, pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.memory_tables import MemoryTables

Amount = str | int


def topology_of(
    *zones: Mapping[str, tuple[Amount, Amount, Amount]],
    policies: tuple[str, ...] = (),
    ids: tuple[int, ...] | None = None,
    costs: bool = False,
    **named: str,
) -> nrt.NodeResourceTopology:
    """Zones map a resource to (capacity, allocatable, available); `named` are top-level attributes."""
    numbers = ids or tuple(range(len(zones)))
    document = {
        "metadata": {"name": "n1", "resourceVersion": "7"},
        "topologyPolicies": policies,
        "attributes": [{"name": name, "value": value} for name, value in named.items()],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "costs": [{"name": f"node-{target}", "value": 10 + 10 * (number != target)} for target in numbers]
                if costs
                else None,
                "resources": [
                    {"name": name, "capacity": capacity, "allocatable": allocatable, "available": available}
                    for name, (capacity, allocatable, available) in zone.items()
                ],
            }
            for number, zone in zip(numbers, zones, strict=True)
        ],
    }
    return nrt.decode(msgspec.json.encode(document))


def pod_of(uid: str, *limits: Mapping[str, Any], requests: Mapping[str, Any] | None = None) -> pods.Pod:
    """Containers c0, c1, ... with limits equal to requests; `requests` adds a container without limits."""
    containers = [pods.Container(f"c{at}", pods.Resources(limits=dict(amounts))) for at, amounts in enumerate(limits)]
    if requests is not None:
        containers.append(pods.Container("burstable", pods.Resources(requests=dict(requests))))
    return pods.Pod(metadata=pods.Metadata(uid, "default", uid), spec=pods.Spec(containers=tuple(containers)))


def free_cpus(kubelet: Kubelet) -> list[int]:
    """Free CPUs of each NUMA node."""
    assert kubelet.cpu is not None
    available = kubelet.cpu.available
    return [(cpus & available).bit_count() for cpus in kubelet.topology.numa_cpus]


def memory_tables(kubelet: Kubelet) -> MemoryTables:
    """The tables of the memory manager."""
    assert kubelet.memory is not None
    return kubelet.memory.tables
