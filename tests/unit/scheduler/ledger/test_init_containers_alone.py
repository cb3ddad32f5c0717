"""A pod of which only init containers have exclusive resources: List omits the pod, and reports name its UID alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lives import GPU, machine
from scheduling import Service, configuration, container, decoded, pod, topology_of
from topowise_scheduler.kubelet import Kubelet


def with_init(name: str, *, node: str = "", **amounts: str) -> dict[str, Any]:
    """Burstable, of an init container that asks for this, and a container that asks for a little CPU."""
    app = {"name": "c", "resources": {"requests": {"cpu": "100m"}}}
    return pod(name, node=node, initContainers=[container(amounts, "i")], containers=[app])


class Node:
    """Its device plugin allocates its last devices first, which the model cannot predict."""

    def __init__(self) -> None:
        plugins = tuple(msgspec.structs.replace(plugin, preferred="last") for plugin in machine().devices)
        self.machine = msgspec.structs.replace(machine(), devices=plugins)
        self.config = configuration(topologyManagerPolicy="none")
        self.kubelet = Kubelet(self.machine, self.config)
        self.service = Service()
        self._version = 0
        self.report()

    def report(self) -> None:
        self._version += 1
        self.service.report(topology_of(self.machine, self.config, self.kubelet, str(self._version)))

    def believed(self) -> set[str]:
        """Returns the GPUs that are free in the service's state."""
        state = self.service.state()
        devices = state.kubelet.devices
        table = devices.tables[GPU]
        return set(table.names(table.healthy & ~devices.allocated[GPU]))


@pytest.mark.parametrize("runs", [False, True])
def test_the_rest_of_init_containers_is_placed_as_reported(runs: bool) -> None:
    node = Node()
    document = with_init("a", node="n1", **{GPU: "1"})
    node.service.put(document)
    assert node.kubelet.admit(decoded(document)).admitted
    if runs:
        node.kubelet.start("uid-a")
        node.service.put({**document, "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}})
    assert node.believed() == {"gpu01", "gpu10", "gpu11"}
    node.report()
    assert node.believed() == {"gpu00", "gpu01", "gpu10"}


def test_a_part_of_it_is_not_all_of_it() -> None:
    """The kubelet goes on with the second init container."""
    node = Node()
    document = with_init("a", node="n1", **{GPU: "1"})
    document["spec"]["initContainers"].append(container({GPU: "2"}, "j"))
    node.service.put(document)
    node.kubelet.admit(decoded(with_init("a", **{GPU: "1"})))
    node.report()
    assert len(node.believed()) <= 2


def test_it_is_gone_with_its_end() -> None:
    node = Node()
    document = with_init("a", node="n1", **{GPU: "1"})
    node.service.put(document)
    node.kubelet.admit(decoded(document))
    node.report()
    node.kubelet.remove("uid-a")
    node.service.ledger.drop_pod("uid-a")
    assert len(node.believed()) == 4
    node.report()
    assert len(node.believed()) == 4
