"""A kubelet whose gate PodLevelResources is off adds up what containers request, whatever pods say of themselves."""

from __future__ import annotations

from typing import Any

from lives import GPU, machine
from sandbox.exported import exported
from scheduling import Service, configuration, decoded, pod, topology_of
from topowise_scheduler.kubelet import Kubelet


def burstable(name: str, *, node: str = "", **more: str) -> dict[str, Any]:
    """A container that requests 20 GiB, and maybe a GPU."""
    document = pod(name, node=node)
    document["spec"]["containers"][0]["resources"] = {"requests": {"memory": "20Gi", **more}, "limits": more}
    return document


def test_of_a_pod_that_is_reported_too() -> None:
    config = configuration(topologyManagerPolicy="none", featureGates={"PodLevelResources": False})
    kubelet, service = Kubelet(machine(), config), Service()
    service.report(exported(machine(), config, kubelet))
    holder = burstable("a", node="n1", **{GPU: "1"})
    amounts = {"cpu": "1", "memory": "1Gi"}
    holder["spec"]["resources"] = {"requests": amounts, "limits": amounts}
    service.put(holder)
    assert kubelet.admit(decoded(holder)).admitted
    assert not kubelet.fork().admit(decoded(burstable("b"))).admitted
    assert service.fits(burstable("b"), "n1") == []
    service.report(topology_of(machine(), config, kubelet))
    assert service.ledger.node_states.of("n1").is_reported("uid-a")  # type: ignore[union-attr]
    assert service.fits(burstable("b"), "n1") == []
