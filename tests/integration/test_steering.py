"""The marker plug-in as a process, between a kubelet's device manager and the node's Lease."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet, published
from faults.clock import Clock
from sandbox.apiserver import ApiServer
from sandbox.kubelet.plugin_sockets import PluginSockets
from topowise import steering
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime import clock
from topowise.steering import Request, Status
from topowise.wire import deviceplugin_pb2 as pb
from topowise_exporter.steering.daemon import DEVICE_PLUGINS
from topowise_scheduler.kubelet import Device
from topowise_scheduler.options.steering.leases import NodeSteering

pytestmark = pytest.mark.own_time

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LEASE = "leases.coordination.k8s.io"
NAME = "topowise-steering-n1"
NO_LABEL = {None}


class DeviceManager(PluginSockets):
    """The device manager of a kubelet that shows the last list in podresources."""

    def __init__(self, directory: Path, kubelet: FakeKubelet) -> None:
        super().__init__(directory, self._show, lambda resource: None)
        self._kubelet = kubelet
        self.lists: list[set[int | None]] = []

    async def start(self) -> None:
        self._kubelet.device_nodes = {}
        await super().start()

    def _show(self, resource: str, devices: list[Device]) -> None:
        self.lists.append({None if device.numa is None else device.numa[0] for device in devices})
        self._kubelet.device_nodes = {(resource, device.id): device.numa for device in devices}

    @property
    def markers(self) -> list[str]:
        return sorted(marker for _, marker in self._kubelet.device_nodes)


@pytest.fixture
async def manager(kubelet: FakeKubelet) -> AsyncIterator[DeviceManager]:
    # The path of a socket has at most 107 bytes, which tmp_path may exceed.
    with tempfile.TemporaryDirectory(prefix="kubelet-") as root:
        directory = Path(root) / DEVICE_PLUGINS.name
        directory.mkdir()
        manager = DeviceManager(directory, kubelet)
        await manager.start()
        yield manager
        await manager.stop()


@pytest.fixture
def steered(config: dict[str, Any], manager: DeviceManager) -> dict[str, Any]:
    return {**config, "steering": {"enabled": True, "markers": 8}, "kubeletRoot": str(manager.directory.parent)}


class Scheduler:
    """Writes requests as topowise-scheduler does, and reads the status."""

    def __init__(self, api: Api, server: ApiServer) -> None:
        self._api, self._server = api, server

    async def ask(self, request: Request | None) -> None:
        text = None if request is None else steering.encode(request)
        body = {"metadata": {"annotations": {steering.REQUEST: text}}}
        await self._api.request("PATCH", f"{LEASES}/{NAME}", body=json.dumps(body).encode(), content_type=MERGE_PATCH)

    def status(self) -> Status | None:
        (lease,) = (item for item in self._server.store.objects(LEASE) if item["metadata"]["name"] == NAME)
        text = (lease["metadata"].get("annotations") or {}).get(steering.STATUS)
        return None if text is None else steering.decode_status(text)

    async def until(self, request_id: str, state: str) -> Status:
        def has_come() -> bool:
            status = self.status()
            return status is not None and (status.id, status.state) == (request_id, state)

        await assert_eventually(has_come)
        status = self.status()
        assert status is not None
        return status


@pytest.fixture
def scheduler(api: Api, server: ApiServer) -> Scheduler:
    server.create(LEASE, {"metadata": {"name": NAME}})
    return Scheduler(api, server)


async def settled(start: Start, manager: DeviceManager, config: dict[str, Any]) -> Any:
    """Starts the plug-in, and ends the first stream: a kubelet that connects again is not a new kubelet, so the plug-in
    takes requests at once afterwards."""
    daemon = await start("topowise_exporter", "steer", config=config)
    await assert_eventually(lambda: manager.lists == [NO_LABEL])
    await asyncio.sleep(10.5)
    return daemon


async def test_a_pod_is_steered_from_the_request_to_the_release(
    start: Start, steered: dict[str, Any], manager: DeviceManager, scheduler: Scheduler
) -> None:
    daemon = await settled(start, manager, steered)
    (registration,) = manager.registrations
    assert (registration.version, registration.resource_name) == ("v1beta1", "topowise.io/numa")
    markers = manager.markers
    assert len(markers) == 8
    await scheduler.ask(Request("a", 4, 2, 20))
    await scheduler.until("a", "labelled")
    assert manager.lists[-1] == {4}
    answer = await manager.allocate(steering.RESOURCE, [["marker-0000"], ["marker-0001"]])
    assert answer == pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()] * 2)
    status = await scheduler.until("a", "released")
    assert status.reason == steering.ALLOCATED
    assert manager.lists == [NO_LABEL, {4}, NO_LABEL]
    assert manager.markers == markers
    assert await daemon.stop() == 0


async def test_a_request_ends_while_the_api_server_is_down(
    start: Start, steered: dict[str, Any], manager: DeviceManager, scheduler: Scheduler, server: ApiServer
) -> None:
    await settled(start, manager, steered)
    await scheduler.ask(Request("a", 4, 1, 2))
    await scheduler.until("a", "labelled")
    server.levers.down()
    await assert_eventually(lambda: manager.lists[-1] == NO_LABEL)
    server.levers.up()
    status = await scheduler.until("a", "released")
    assert status.reason == "the request has expired"


async def test_a_restarted_plug_in_does_not_take_the_request_of_its_predecessor(
    start: Start, steered: dict[str, Any], manager: DeviceManager, scheduler: Scheduler
) -> None:
    """The plug-in is killed between the request and the end of the pod's admission."""
    daemon = await settled(start, manager, steered)
    await scheduler.ask(Request("a", 4, 1, 30))
    await scheduler.until("a", "labelled")
    daemon.process.kill()
    await daemon.process.wait()
    await manager.drop()
    await start("topowise_exporter", "steer", config=steered)
    await scheduler.until("a", "rejected")
    await assert_eventually(lambda: manager.lists == [NO_LABEL, {4}, NO_LABEL])


async def test_a_restarted_kubelet_gets_markers_without_a_label(
    start: Start, steered: dict[str, Any], manager: DeviceManager, scheduler: Scheduler
) -> None:
    daemon = await settled(start, manager, steered)
    await scheduler.ask(Request("a", 4, 1, 30))
    await scheduler.until("a", "labelled")
    await manager.stop()
    status = await scheduler.until("a", "released")
    assert status.reason == "the kubelet has disconnected"
    await manager.start()
    await assert_eventually(lambda: len(manager.registrations) == 2)
    await assert_eventually(lambda: manager.lists == [NO_LABEL, {4}, NO_LABEL])
    await scheduler.ask(Request("b", 4, 1, 30))
    status = await scheduler.until("b", "rejected")
    assert status.reason.startswith("the kubelet has just started; try again in")
    assert daemon.process.returncode is None


async def test_a_slow_kubelet_gets_a_single_registration(
    start: Start, steered: dict[str, Any], manager: DeviceManager, scheduler: Scheduler
) -> None:
    """It is a new kubelet also if its socket changes before it connects."""
    manager.connects.clear()
    await start("topowise_exporter", "steer", config=steered)
    await assert_eventually(lambda: len(manager.registrations) == 1)
    (manager.directory / "kubelet.sock").chmod(0o700)
    await asyncio.sleep(1.5)
    assert len(manager.registrations) == 1
    manager.connects.set()
    await assert_eventually(lambda: manager.lists == [NO_LABEL])
    await scheduler.ask(Request("a", 4, 1, 30))
    await scheduler.until("a", "rejected")


async def test_a_plug_in_whose_socket_is_gone_ends_to_be_started_again(
    start: Start, steered: dict[str, Any], manager: DeviceManager
) -> None:
    """Otherwise the next kubelet could not connect, and would refuse pods with markers."""
    daemon = await start("topowise_exporter", "steer", config=steered)
    await assert_eventually(lambda: manager.lists == [NO_LABEL])
    (manager.directory / "topowise.io/numa.sock").unlink()
    assert await daemon.process.wait() != 0
    assert "the socket of the plug-in is gone" in daemon.log
    await start("topowise_exporter", "steer", config=steered)
    await assert_eventually(lambda: manager.lists == [NO_LABEL, NO_LABEL])


@pytest.mark.parametrize("jump", ["+1d", "-1d"])
async def test_clocks_need_not_agree(
    jump: str,
    start: Start,
    steered: dict[str, Any],
    manager: DeviceManager,
    scheduler: Scheduler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wall clock of the node is wrong by a day, and is set right while a label is in force."""
    clock = Clock(tmp_path / "clock")
    clock.jump(jump)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    await settled(start, manager, steered)
    await scheduler.ask(Request("a", 4, 1, 20))
    await scheduler.until("a", "labelled")
    clock.jump("+0")
    await asyncio.sleep(1)
    assert manager.lists[-1] == {4}
    await manager.allocate(steering.RESOURCE, [["marker-0000"]])
    status = await scheduler.until("a", "released")
    assert status.reason == steering.ALLOCATED
    await scheduler.ask(Request("b", 0, 1, 2))
    await scheduler.until("b", "labelled")
    clock.jump(jump)
    status = await scheduler.until("b", "released")
    assert status.reason == "the request has expired"


async def test_two_schedulers_share_the_markers_of_a_node(
    start: Start, steered: dict[str, Any], manager: DeviceManager, server: ApiServer, api: Api
) -> None:
    """Both steer pods at the same time, with the product's code. No pod is admitted with the label of another pod."""
    server.create("nodes", {"metadata": {"name": "n1"}})
    await settled(start, manager, steered)
    waiting = dict[str, set[str]](one=set(), two=set())
    lost: list[str] = []
    outcomes: Counter[str] = Counter()
    schedulers = {
        name: NodeSteering(
            api,
            "default",
            wait=2.0,
            expiry=30.0,
            lost=lambda uid, node: lost.append(uid),
            unadmitted=waiting[name].copy,
            clock=clock.monotonic,
        )
        for name in waiting
    }
    admission = asyncio.Lock()

    async def steer(name: str, uid: str, numa: int) -> None:
        """Binds a pod as the service does; its kubelet admits it at once."""
        scheduler = schedulers[name]
        while True:
            problem = await scheduler.rest("n1") or await scheduler.request("n1", uid, numa, 1)
            if not problem:
                break
            outcomes["tried again"] += 1
            await scheduler.withdraw("n1", uid)
        async with admission:
            assert manager.lists[-1] == {numa}
            await manager.allocate(steering.RESOURCE, [["marker-0000"]])
        outcomes["on its NUMA node"] += 1

    watches = [asyncio.create_task(scheduler.source.run()) for scheduler in schedulers.values()]
    await assert_eventually(lambda: all(scheduler.source.synced for scheduler in schedulers.values()))
    draw = random.Random(1)

    async def steer_all(name: str) -> None:
        for number in range(8):
            await steer(name, f"{name}-{number}", draw.choice([0, 4]))

    async with asyncio.timeout(120):
        await asyncio.gather(*map(steer_all, schedulers))
    assert outcomes["on its NUMA node"] == 16
    assert not lost
    for watch in watches:
        watch.cancel()


async def test_a_closed_stream_is_registered_again(
    start: Start, steered: dict[str, Any], manager: DeviceManager, scheduler: Scheduler
) -> None:
    await settled(start, manager, steered)
    await manager.drop()
    await assert_eventually(lambda: len(manager.registrations) == 2 and manager.lists == [NO_LABEL, NO_LABEL])
    await scheduler.ask(Request("a", 0, 1, 30))
    await scheduler.until("a", "labelled")


async def test_markers_are_not_in_the_node_s_object(
    start: Start, steered: dict[str, Any], manager: DeviceManager, server: ApiServer, kubelet: FakeKubelet
) -> None:
    """A label changes with each pod. The object would change with it, in all watches of the cluster."""
    kubelet.device_nodes = {
        (steering.RESOURCE, "marker-0000"): (4,),
        ("example.com/nic", "nic-0"): (4,),
    }
    await start("topowise_exporter", "run", config=steered)
    await assert_eventually(lambda: published(server))
    topology = json.dumps(published(server))
    assert "example.com/nic" in topology
    assert steering.RESOURCE not in topology


async def test_steering_that_is_switched_off_does_not_start(start: Start, config: dict[str, Any]) -> None:
    daemon = await start("topowise_exporter", "steer", config=config)
    assert await daemon.process.wait() != 0
    assert "steering.enabled" in daemon.log
