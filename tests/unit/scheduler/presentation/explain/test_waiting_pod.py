"""Pods in the way of a waiting pod have resources on its nearest NUMA node, reported or predicted."""

from __future__ import annotations

import msgspec

from scheduling import Service, exact, kubelet, pod
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.presentation.explain.waiting_pod import Obstacle, obstacle


def wait(service: Service, cpu: str) -> Obstacle | None:
    return obstacle(service.ledger, service.answers, service.put(pod("waits", cpu)), ["n1"])


def admitted(node: Kubelet, *names: str) -> Kubelet:
    for name in names:
        node.admit(pods.decode(msgspec.json.encode(pod(name))))
    return node


def test_pods_in_the_way_are_named_before_and_after_their_report() -> None:
    """The first NUMA node has three allocatable CPUs, the second four; each pod has two CPUs."""
    names = ("a", "b")
    service = Service("TightFit")
    service.report(exact(kubelet()))
    for name in names:
        service.put(pod(name, node="n1"))
    before = wait(service, "4")
    service.report(exact(admitted(kubelet(), *names), version="2"))
    after = wait(service, "4")
    assert before is not None
    assert before.in_the_way == ("default/b",)
    assert after == before
