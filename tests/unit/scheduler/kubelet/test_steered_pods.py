"""A steered pod: the model decides as with a plug-in that lists all markers near one NUMA node."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from scheduling import configuration, decoded, kubelet, machine, pod
from topowise import pods
from topowise.steering import RESOURCE
from topowise_scheduler.kubelet import Device, Kubelet, MemoryReservation, cost
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.versions import version_of

POLICIES = ("single-numa-node", "restricted", "best-effort")
SCOPES = ("container", "pod")


def document(name: str, cpus: Sequence[int], *, markers: int = 1) -> dict[str, Any]:
    """Returns a pod with a container, and a marker for it, for each number of CPUs."""
    containers = []
    for at, count in enumerate(cpus):
        amounts = {"cpu": str(count), "memory": "1Gi", **({RESOURCE: str(markers)} if markers else {})}
        containers.append({"name": f"c{at}", "resources": {"requests": amounts, "limits": amounts}})
    return pod(name, containers=containers)


def view(node: Kubelet, name: str, cpus: Sequence[int], steered: int | None = None, *, markers: int = 1) -> PodView:
    pod_view = node.view(f"uid-{name}", pods.needs(decoded(document(name, cpus, markers=markers))))
    return msgspec.structs.replace(pod_view, steered=steered)


def made(zones: int, policy: str, scope: str, memory: str) -> Kubelet:
    reserved = (MemoryReservation(0, {"memory": "1Gi"}),) if memory == "Static" else ()
    config = configuration(
        topologyManagerPolicy=policy, topologyManagerScope=scope, memoryManagerPolicy=memory, reservedMemory=reserved
    )
    return Kubelet(machine(zones, 8), config)


def zones_of(node: Kubelet, uid: str) -> set[int]:
    return {zone for where in allocated_nodes(node, uid).values() for zone in node.ids(where.cpus | where.memory)}


def with_label(node: Kubelet, zone: int) -> Kubelet:
    """Returns a copy of the node whose plug-in lists 512 markers near one NUMA node."""
    labelled = node.fork()
    labelled.report_devices(RESOURCE, [Device(f"marker-{number:03}", (zone,)) for number in range(512)])
    return labelled


@pytest.mark.parametrize("memory", ["None", "Static"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("policy", POLICIES)
class TestSteeredPods:
    def test_the_pod_is_on_the_numa_node_of_the_markers(self, policy: str, scope: str, memory: str) -> None:
        for zone in (3, 1, 0, 2):
            node = made(4, policy, scope, memory)
            assert node.admit_view(view(node, "a", [2, 1, 3], zone)).admitted
            assert zones_of(node, "uid-a") == {zone}

    def test_markers_at_rest_change_nothing(self, policy: str, scope: str, memory: str) -> None:
        node, plain = made(4, policy, scope, memory), made(4, policy, scope, memory)
        for name, cpus in (("a", [2, 1]), ("b", [5]), ("c", [3, 3]), ("d", [12]), ("e", [1])):
            with_markers = node.admit_view(view(node, name, cpus))
            assert with_markers == plain.admit_view(view(plain, name, cpus, markers=0))

    def test_the_model_decides_as_with_such_a_list(self, policy: str, scope: str, memory: str) -> None:
        """Pods come and end at random, and every NUMA node is tried, also if the pod does not fit there."""
        rng = random.Random(f"{policy} {scope} {memory}")
        node, there, refused = made(4, policy, scope, memory), list[str](), 0
        for number in range(40):
            name, zone = f"p{number}", rng.randrange(4)
            cpus = [rng.choice((1, 1, 2, 3)) for _ in range(rng.choice((1, 1, 2, 3)))]
            labelled = with_label(node, zone)
            listed = labelled.admit_view(view(labelled, name, cpus))
            steered = node.expect(view(node, name, cpus, zone))
            assert (steered.admitted, steered.reason) == (listed.admitted, listed.reason)
            if steered.admitted:
                assert zones_of(node, f"uid-{name}") == zones_of(labelled, f"uid-{name}")
                assert policy == "best-effort" or zones_of(node, f"uid-{name}") == {zone}
                there.append(f"uid-{name}")
            else:
                refused += 1
            if len(there) > 6:
                node.remove(there.pop(rng.randrange(len(there))))
        assert there
        assert refused or policy == "best-effort"


def test_a_list_that_was_read_during_a_request_changes_no_hint_of_a_steered_pod() -> None:
    node = with_label(kubelet(), 0)
    assert node.admit_view(view(node, "a", [2], 1)).admitted
    assert zones_of(node, "uid-a") == {1}


def test_a_pod_without_a_marker_is_not_steered() -> None:
    node = kubelet()
    assert node.admit_view(view(node, "a", [2], 1, markers=0)).admitted
    assert zones_of(node, "uid-a") == {0}


def test_a_numa_node_without_room_refuses_the_pod() -> None:
    node = kubelet()
    assert node.admit_view(view(node, "a", [3], 1)).admitted
    admission = node.admit_view(view(node, "b", [2], 1))
    assert (admission.admitted, admission.reason) == (False, "TopologyAffinityError")
    assert node.admit_view(view(node, "c", [2])).admitted


@pytest.mark.parametrize("version", ["v1.33.0", "v1.36.2"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_cost_of_an_admission_on_eight_numa_nodes_includes_the_markers(policy: str, version: str) -> None:
    """The estimate of a steered pod ended the service with a KeyError: reports do not list markers."""
    config = configuration(topologyManagerPolicy=policy)
    node = Kubelet(machine(8, 2), config, version=version_of(version))
    assert not cost.is_quick(node)
    steered = cost.estimate(node, view(node, "a", (1,), steered=3))
    assert steered == cost.estimate(with_label(node, 3), view(node, "a", (1,)))
    assert steered.masks > cost.estimate(node, view(node, "a", (1,))).masks
