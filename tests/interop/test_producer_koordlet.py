"""Lives of a node that koordlet reports: totals, which do not depend on pods."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import producers
from lives import NO_MANAGERS, WRITERS, Json, Life, Write, guaranteed

STATIC = {"policy": "static", "reservedCPUs": "0"}


def koordlet(cpu_manager: Mapping[str, Any] | None = STATIC, **options: Any) -> Write:
    def write(node: producers.Node, rng: Random) -> Json:
        return producers.koordlet(node, cpu_manager=cpu_manager, **options)

    return write


def test_pods_that_were_there_before_the_service_are_booked_on_the_totals() -> None:
    life = Life(koordlet())
    life.bind(guaranteed("a", "7"), is_news=False)
    life.report()
    assert life.free == [0, 8]
    # A list after a lost watch adds another pod.
    life.bind(guaranteed("b", "8"), is_news=False)
    assert life.free == [0, 0]
    assert not life.fits(guaranteed("x", "1"))


def test_reserved_cpus_are_not_promised() -> None:
    life = Life(koordlet({"policy": "static", "reservedCPUs": "0-1,8"}), reservedSystemCPUs="0-1,8")
    life.report()
    assert life.free == life.truly_free == [6, 7]
    assert not life.fits(guaranteed("x", "8"))


def test_with_the_numa_reservation_the_smaller_number_counts() -> None:
    life = Life(koordlet())
    document = life.seen()
    for zone in document["zones"]:
        cpu = next(resource for resource in zone["resources"] if resource["name"] == "cpu")
        cpu.update(allocatable="6500m", available="6500m")
    life.deliver(document)
    assert life.free == [6, 6]


def test_where_koordlet_binds_cpus_the_kubelet_predicts_nothing() -> None:
    life = Life(koordlet({"policy": "none"}), **NO_MANAGERS)
    life.report()
    node_state = life.service.ledger.node_states.of("n1")
    assert node_state is not None
    assert node_state.kubelet is not None
    assert (node_state.kubelet.cpu, node_state.kubelet.memory) == (None, None)
    # Larger than any NUMA node, and with hugepages, which koordlet does not report with the gate off.
    assert life.fits(guaranteed("x", "12", "20Gi", **{"hugepages-2Mi": "1Gi"}))
    assert not life.fits(guaranteed("x", "17", "20Gi"))
    life.bind(guaranteed("a", "10", "4Gi"))
    life.report()
    assert not life.fits(guaranteed("x", "7", "4Gi"))
    assert life.fits(guaranteed("x", "6", "4Gi"))


def test_hugepages_are_checked_where_koordlet_reports_them() -> None:
    life = Life(koordlet({"policy": "none"}, hugepages=True), **NO_MANAGERS)
    life.report()
    assert life.fits(guaranteed("x", "2", "1Gi", **{"hugepages-2Mi": "2Gi"}))
    assert not life.fits(guaranteed("x", "2", "1Gi", **{"hugepages-2Mi": "3Gi"}))


def test_a_kubelet_that_koordlet_does_not_query_is_taken_to_align() -> None:
    """DisableQueryKubeletConfig: the policy is None for want of knowing, and so is the manager."""
    life = Life(koordlet(None))
    life.report()
    assert life.free == [8, 8]
    life.bind(guaranteed("a", "6"))
    life.report()
    assert sum(life.free) == 10


def test_beside_rte_pods_count_once_after_either_writer() -> None:
    """koordlet reads and writes v1alpha1: RTE's attributes are gone then, its annotations are not."""
    life = Life(WRITERS["rte"])
    for name, cpu in (("a", "4"), ("b", "6")):
        life.bind(guaranteed(name, cpu))
        life.admit(guaranteed(name, cpu))
    rte_report = life.seen()
    life.deliver(rte_report)
    assert life.free == [3, 2]
    life._write = lambda node, rng: producers.koordlet(node, rte_report, cpu_manager=STATIC)
    life.report()
    assert life.free == [3, 2]
    life._write = WRITERS["rte"]
    life.report()
    assert life.free == [3, 2]
    life.release("a")
    life.end("a")
    life.report()
    assert life.free == [7, 2]


def test_annotations_that_cannot_be_read_are_named() -> None:
    life = Life(koordlet())
    document = life.seen()
    document["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"] = '{"detail": 7}'
    life.deliver(document)
    node_state = life.service.ledger.node_states.of("n1")
    assert node_state is not None
    assert node_state.report is not None
    (problem,) = node_state.report.problems
    assert "node.koordinator.sh/cpu-topology" in problem
    assert problem.endswith("no CPU counts as reserved")
    assert life.free == [8, 8]
