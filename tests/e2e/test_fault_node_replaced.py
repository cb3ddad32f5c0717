"""A new machine takes the name of a removed node: nothing of the old machine is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons import Start, assert_eventually
from exporter_setup import KUBELET_FILE, MACHINE, FakeKubelet, published
from faults.site import LONG_S, Site, pod, site
from sandbox import machines
from sandbox.apiserver import ApiServer
from sandbox.kubelet.holdings import Block, NodeHoldings
from scheduling import NODE_STATUS
from whole_node import attributes

# Three zones of one core each, with other ids.
OTHER = machines.Machine(
    nodes=tuple(machines.Node(node, 1 << 30, socket=node // 2, cores=1) for node in (1, 2, 3)),
    distances=((10, 20, 20), (20, 10, 20), (20, 20, 10)),
)
ONE_ZONE = machines.Machine(nodes=(machines.Node(0, 1 << 30, cores=3),), distances=((10,),))
NODE = "/api/v1/nodes/n1"


class OtherKubelet(FakeKubelet):
    """Of another machine, all CPUs but the first of which can be given."""

    machine = MACHINE

    def holdings(self) -> NodeHoldings:
        cpus = frozenset(cpu for core in machines.layout(self.machine) for cpu in core.threads)
        memory = tuple(Block("memory", (node.id,), 1 << 29) for node in self.machine.nodes)
        return NodeHoldings(cpus - {0}, memory, frozenset({0}), {}, self.pods)


@pytest.fixture
async def place(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> AsyncIterator[Site]:
    async with site(server, start, config, kubelet, tmp_path, reservations={"ttl": "8s"}) as place:
        yield place


def zones(server: ApiServer) -> dict[str, int]:
    """Zones of the object, and their allocatable CPUs."""
    cpus = {}
    for zone in (published(server) or {"zones": ()})["zones"]:
        for resource in zone.get("resources", ()):
            if resource["name"] == "cpu":
                cpus[zone["name"]] = int(resource["allocatable"])
    return cpus


def node_uid(server: ApiServer) -> str:
    nodes = {node["metadata"]["name"]: node for node in server.store.objects("nodes")}
    return str(nodes["n1"]["metadata"]["uid"])


def policy(server: ApiServer) -> str:
    named = attributes(published(server) or {})
    return f"{named.get('topologyManagerPolicy')}/{named.get('topologyManagerScope')}"


@pytest.mark.parametrize(
    ("machine", "expected", "room"),
    [(OTHER, {"node-1": 1, "node-2": 2, "node-3": 2}, 5), (ONE_ZONE, {"node-0": 5}, 5)],
    ids=["more zones with other ids", "fewer zones"],
)
async def test_another_machine_under_the_same_name(
    machine: machines.Machine,
    expected: dict[str, int],
    room: int,
    place: Site,
    server: ApiServer,
    start: Start,
    config: dict[str, Any],
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    # A running pod, a bound pod that has not started, and a pod with a reservation.
    kubelet.give("runs", 1)
    place.bound("runs", "n1", 1)
    await place.publishes(2)
    place.bound("comes", "n1", 3)
    server.create("pods", pod("expected", 1))
    await place.service.ask("filter", pod("expected", 1), ["n1"], place.session)
    await place.has({"n1": 1})
    before = (published(server) or {})["metadata"]["uid"]
    # The machine is removed: its exporter stops, its Node and its pods are deleted.
    assert await place.exporter.stop() == 0
    await kubelet.stop()
    await place.delete(NODE)
    # The garbage collector has deleted the object with its owner.
    assert published(server) is None
    for name in ("runs", "comes"):
        await place.delete(f"/api/v1/namespaces/default/pods/{name}")
    # A new machine registers.
    sysfs, procfs = machines.write_tree(machine, tmp_path / "other")
    (tmp_path / "kubelet.yaml").write_text(
        KUBELET_FILE + "topologyManagerPolicy: restricted\ntopologyManagerScope: pod\ncpuManagerPolicy: static\n"
        "reservedSystemCPUs: '0'\n"
    )
    successor = OtherKubelet(kubelet.socket)
    successor.machine = machine
    await successor.start()
    server.create("nodes", {"metadata": {"name": "n1"}, "status": NODE_STATUS})
    again = await start(
        "topowise_exporter", "run", config={**config, "sysfsRoot": str(sysfs), "procfsRoot": str(procfs)}
    )
    try:
        await assert_eventually(lambda: zones(server) == expected, within=LONG_S)
        assert policy(server) == "restricted/pod"
        topology = published(server)
        assert topology is not None
        assert topology["metadata"]["uid"] != before
        (owner,) = topology["metadata"]["ownerReferences"]
        assert owner["uid"] == node_uid(server)
        # A reservation expires after its TTL, on every machine.
        await place.has({"n1": room})
        await assert_eventually(lambda: nothing_is_left(place), within=LONG_S)
        assert again.process.returncode is None
    finally:
        await successor.stop()


async def nothing_is_left(place: Site) -> bool:
    now = await place.metrics()
    return (
        now["open_reservations"] == 0 and now["uncertain_pods"] == 0 and now["quarantines"] == 0 and now["nodes"] == 2
    )


async def test_a_node_that_is_gone_for_good_leaves_nothing(
    place: Site, server: ApiServer, kubelet: FakeKubelet
) -> None:
    kubelet.give("p", 1)
    place.bound("p", "n1", 1)
    await place.publishes(2)
    place.exporter.process.kill()
    await place.delete(NODE)
    await place.delete("/api/v1/namespaces/default/pods/p")

    async def is_forgotten() -> bool:
        now = await place.metrics()
        return now["nodes"] == 1 and now["reported_nodes"] == 1 and now["uncertain_pods"] == 0

    await assert_eventually(is_forgotten, within=LONG_S)
    _, _, text = await place.service.post("explain?node=n1", msgspec.json.encode(pod("asked", 1)), place.session)
    assert "without a Node object" in text
