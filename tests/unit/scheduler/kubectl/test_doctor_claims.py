"""Running pods whose CPUs or memory are apart from their claimed devices, as the doctor finds them."""

from __future__ import annotations

import json

from claim_objects import claim, claiming, device_slice
from scheduling import configuration, decoded, exact, machine, pod
from topowise_scheduler import report
from topowise_scheduler.kubectl.doctor import claims
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.pods.records import Records


def listed(*items: object) -> bytes:
    return json.dumps({"items": items}).encode()


def found(*devices: str, numa: tuple[int | None, ...] = (0, 1), admin: bool = False) -> list[str]:
    """Returns the findings about a pod on NUMA node 0 with these devices."""
    documents = [claiming("p", "2", "a", node="n1", phase="Running"), pod("plain", node="n1", phase="Running")]
    records = [Records().record(decoded(document)) for document in documents]
    node = Kubelet(machine(), configuration())
    for record in records:
        assert node.admit_view(record.view(node)).admitted
    fields = {"adminAccess": True} if admin else {}
    by_key = claims.claims(listed(claim("a", 1, devices, **fields), {"metadata": 7}))
    located = claims.locations(listed(device_slice("n1", numa), {"spec": []}))
    return [
        f"{item.thing}: {item.value}" for item in claims.check(records, [report.read(exact(node))], by_key, located)
    ]


def test_a_pod_apart_from_its_devices_is_found() -> None:
    (text,) = found("gpu-1")
    assert text == "pod default/p: CPUs or memory are on NUMA node 0, its claimed devices on NUMA node 1"


def test_pods_near_their_devices_are_not_found() -> None:
    assert found("gpu-0") == []
    assert found("gpu-0", "gpu-1") == []


def test_devices_without_a_numa_node_are_apart_from_nothing() -> None:
    assert found("gpu-1", numa=(0, None)) == []
    assert found("gpu-7") == []
    assert found("gpu-1", admin=True) == []
