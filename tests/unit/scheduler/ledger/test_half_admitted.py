"""A kubelet allocates container by container, and an exporter may report in between: a complete pod is confirmed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, container, counts, decoded, exact, kubelet, pod
from stories import table, tell
from topowise import nrt
from topowise_scheduler.kubelet import Kubelet, Placement

TWO = {"cpu": "2", "memory": "1Gi"}


def wide(name: str, containers: int = 2, *, node: str = "", **fields: Any) -> dict[str, Any]:
    """A Guaranteed pod of containers c0, c1, … with 2 CPUs and 1Gi each."""
    document = pod(name, node=node, **fields)
    document["spec"]["containers"] = [container(TWO, f"c{number}") for number in range(containers)]
    return document


def half(before: Kubelet, document: dict[str, Any], *, containers: tuple[str, ...], memory: bool = True) -> Kubelet:
    """The node when only these containers of the pod have been allocated, with or without their memory."""
    whole = before.fork()
    admission = whole.admit(decoded(document))
    assert admission.admitted
    node = before.fork()
    parts: dict[str, Placement] = {
        name: admission.placements[name] if memory else msgspec.structs.replace(admission.placements[name], memory=())
        for name in containers
    }
    node.hold(document["metadata"]["uid"], {}, parts)
    return node


@pytest.fixture
def service() -> Service:
    started = Service()
    started.report(exact(kubelet(), "1"))
    return started


class TestAnExactReport:
    def test_the_rest_of_a_half_admitted_pod_stays_booked(self, service: Service) -> None:
        service.put(wide("a", node="n1"))
        assert service.free("n1") == [1, 2]
        service.report(exact(half(kubelet(), wide("a"), containers=("c0",)), "2"))
        assert service.free("n1") == [1, 2]
        assert service.fits(pod("b", "3"), "n1") == []

    def test_so_does_the_memory_of_a_container_whose_cpus_are_listed_already(self) -> None:
        service = Service()
        service.report(exact(kubelet(), "1"))
        large = pod("a", "2", "12Gi", node="n1")
        service.put(large)
        service.report(exact(half(kubelet(), large, containers=("c",), memory=False), "2"))
        assert service.fits(pod("b", "1", "10Gi"), "n1") == ["n1"]
        service.put(pod("b", "1", "10Gi", node="n1"))
        assert service.fits(pod("c", "1", "10Gi"), "n1") == []

    def test_the_rest_is_predicted_from_the_actual_placement_of_the_parts(self, service: Service) -> None:
        """Another pod came first on the real node, so the first container is placed elsewhere than predicted."""
        truth = kubelet()
        assert truth.admit(decoded(pod("unseen", "2"))).admitted
        service.put(wide("a", node="n1"))
        service.report(exact(half(truth, wide("a"), containers=("c0",)), "2"))
        assert truth.admit(decoded(wide("a"))).admitted
        service.report(exact(truth, "3"))
        free_when_whole = service.free("n1")
        assert free_when_whole == [1, 0]
        assert service.ledger.events["prediction_missed"] == 1
        assert service.ledger.events["prediction_ids"] == 0

    def test_an_ended_pod_that_was_half_admitted_is_what_a_report_lists_later(self, service: Service) -> None:
        """Another pod came before the end, and had to take the second NUMA node."""
        service.put(wide("a", node="n1"))
        service.report(exact(half(kubelet(), wide("a"), containers=("c0",)), "2"))
        service.put(pod("b", "2", node="n1"))
        service.ledger.drop_pod("uid-a")
        truth = kubelet()
        assert truth.admit(decoded(wide("a"))).admitted
        service.report(exact(truth, "3"))
        assert service.free("n1") == [3, 2]

    def test_a_prediction_is_counted_once_and_when_the_pod_is_whole(self, service: Service) -> None:
        service.put(wide("a", node="n1"))
        truth = kubelet()
        for version, containers in (("2", ("c0",)), ("3", ("c0", "c1"))):
            service.report(exact(half(truth, wide("a"), containers=containers, memory=version == "3"), version))
        assert truth.admit(decoded(wide("a"))).admitted
        service.report(exact(truth, "4"))
        service.report(exact(kubelet(), "5"))
        service.report(exact(truth, "6"))
        assert (service.ledger.events["prediction_ids"], service.ledger.events["prediction_missed"]) == (1, 0)

    def test_a_pod_admitted_long_ago_has_what_is_listed(self, service: Service) -> None:
        service.put(wide("a", node="n1"))
        service.put(wide("a", node="n1", startTime="2026-01-01T00:00:00Z", phase="Running"))
        service.clock.now += 130
        service.report(exact(half(kubelet(), wide("a"), containers=("c0",)), "2"))
        assert service.free("n1") == [1, 4]


AGAIN = "running a 3 news=no; exact a:3; later 60; end a; later 0.1; running a 3 uid=second"
"""A StatefulSet makes its pod anew under the same name, often on the same node. The first pod has been reported and has
ended; the second pod is bound and admitted by its kubelet."""


@table("""
its listing is doubted while it may be the first pod
    AGAIN; exact a:3; fits 4 not n1
once the first has left the reports the next listing is the second
    AGAIN; exact; exact a:3; fits 4 n1
so it is if other CPUs are listed
    AGAIN; exact unseen:2 a:3 -unseen; free 3 1; fits 3 n1
# A kubelet lists active pods only, so a pod leaves List before the API server deletes it.
so it is if the first has left the reports before the service hears of its end
    running a 3 news=no; exact a:3; later 60; exact; end a; later 0.1; running a 3 uid=second; exact a:3; fits 4 n1
""")
def test_a_name_that_is_used_again(story: str) -> None:
    tell(story.replace("AGAIN", AGAIN))


def test_numbers_that_have_only_a_part_of_the_newest_pod_do_not_include_it() -> None:
    service = Service()
    service.report(counts("n1", ("8", "8"), included=()))
    service.put(wide("a", 4, node="n1"))
    assert sum(service.free("n1")) == 8
    service.report(counts("n1", ("6", "8"), included=["a"]))
    assert sum(service.free("n1")) <= 8
    service.report(counts("n1", ("4", "4"), included=["a"]))
    assert sum(service.free("n1")) == 8


class TestWhatAnEndedPodLeaves:
    """The managers' files list a pod until the next admission, and List does not: a report names the pod by its UID, as
    a pod that is being admitted. A service that starts later knows the pod only by its status."""

    @pytest.fixture
    def left(self) -> nrt.NodeResourceTopology:
        node = kubelet()
        assert node.admit(decoded(pod("a", "3"))).admitted
        return exact(node, "1", name_of=lambda uid: ("", uid))

    def test_it_is_free_if_the_status_comes_after_the_report(self, left: nrt.NodeResourceTopology) -> None:
        service = Service()
        service.report(left)
        assert sum(service.free("n1")) == 4
        service.put(pod("a", "3", node="n1", phase="Succeeded"), is_news=False)
        assert sum(service.free("n1")) == 7

    def test_so_it_is_if_the_status_comes_before(self, left: nrt.NodeResourceTopology) -> None:
        service = Service()
        service.put(pod("a", "3", node="n1", phase="Succeeded"), is_news=False)
        service.report(left)
        assert sum(service.free("n1")) == 7

    def test_a_pod_in_admission_keeps_what_it_has(self, left: nrt.NodeResourceTopology) -> None:
        service = Service()
        service.put(pod("b", "1", node="n1", phase="Succeeded"), is_news=False)
        service.report(left)
        assert sum(service.free("n1")) == 4
