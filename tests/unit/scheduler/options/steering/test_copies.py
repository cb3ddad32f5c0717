"""How many pods that require a NUMA node fit: on that NUMA node, not on the node."""

from __future__ import annotations

import msgspec

from scheduling import Service, exact, kubelet
from steering_pods import marked, requiring
from topowise_scheduler.overlay.fit_together import GroupPlacer
from topowise_scheduler.verdicts.kube_scheduler import Pod


def made(policy: str = "single-numa-node") -> Service:
    """Returns a service whose node has three free CPUs on NUMA node 0 and four on NUMA node 1."""
    service = Service()
    service.put_node("n1", allocatable={"cpu": "8", "memory": "64Gi", "pods": "110", "topowise.io/numa": "64"})
    service.report(exact(kubelet(topologyManagerPolicy=policy), topologyManagerPolicy=policy))
    return service


def decoded(document: dict[str, object]) -> Pod:
    return msgspec.convert(document, Pod)


def copies(document: dict[str, object], policy: str = "single-numa-node") -> int:
    (room,) = made(policy).view.rooms(decoded(document), ["n1"])
    return room.count


def test_copies_are_counted_on_the_required_numa_node() -> None:
    assert copies(marked("a", "1")) == 7
    assert copies(requiring("a", 0, "1")) == 3
    assert copies(requiring("a", 1, "2")) == 2


def test_a_kubelet_that_admits_pods_anywhere_has_no_more_room_on_the_required_numa_node() -> None:
    assert copies(marked("a", "1"), "best-effort") == 7
    assert copies(requiring("a", 0, "1"), "best-effort") == 3
    assert placed(made("best-effort"), 0, 0) == [("n1", 0)]


def placed(service: Service, *numa_nodes: int) -> list[tuple[str, int | None]]:
    """Returns the nodes, and NUMA nodes, of pods of two CPUs that fit together."""
    pods = [decoded(requiring(f"p{at}", numa, "2")) for at, numa in enumerate(numa_nodes)]
    placer = GroupPlacer(service.trial, pods, ["n1"])
    for _ in placer.steps():
        pass
    return [(placement.node, placement.record.steered) for placement in placer.placement.placements]


def test_pods_fit_together_on_the_numa_nodes_that_they_require() -> None:
    assert placed(made(), 1, 0, 1) == [("n1", 1), ("n1", 0), ("n1", 1)]
    assert placed(made(), 0, 0) == [("n1", 0)]
