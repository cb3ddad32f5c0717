"""A removed or added PCI function changes the object within a second of the kernel's event."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemons import assert_eventually
from exporter_setup import MACHINE, FakeKubelet, published
from sandbox import machines
from sandbox.apiserver import ApiServer
from topowise import attributes
from topowise.attributes import pci_devices
from topowise.kube.api import Api
from topowise.runtime import config as configurations
from topowise_exporter import daemon, observe
from topowise_exporter.conditions import Conditions
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.daemon import Exporter
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import Observer
from topowise_exporter.publisher import Publisher
from topowise_exporter.triggers import Trigger

pytestmark = pytest.mark.own_time

VFS = [f"0000:98:00.{number}" for number in range(1, 4)]
SPEC = machines.Machine(
    nodes=MACHINE.nodes,
    distances=MACHINE.distances,
    pci=machines.nic("0000:98:00.0", 4, "0000:97:00.0", virtual_functions=3),
)


@pytest.fixture
async def trigger(
    config: dict[str, Any], kubelet: FakeKubelet, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Trigger]:
    """The events of an exporter without a timed sync for an hour."""
    monkeypatch.setattr(daemon, "_INTERVAL_S", 3600.0)
    monkeypatch.setattr(observe, "_SCAN_INTERVAL_S", 3600.0)
    sysfs, procfs = machines.write_tree(SPEC, tmp_path / "with-nic")
    kubelet.device_nodes = {("intel.com/vf", address): (4,) for address in VFS}
    own = {**config, "sysfsRoot": str(sysfs), "procfsRoot": str(procfs)}
    settings = configurations.parse(ExporterConfiguration, msgspec.json.encode(own))
    metrics, conditions, trigger = Metrics(), Conditions(), Trigger()
    async with PodResources(settings.podresources_socket) as podresources:
        source = Source(settings.kubelet)
        observer = Observer(settings, podresources, source)
        publisher = Publisher(settings, api)
        task = asyncio.create_task(Exporter(settings, observer, publisher, source, metrics, conditions, trigger).run())
        yield trigger
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def placed(server: ApiServer) -> list[str]:
    topology = published(server) or {"attributes": []}
    values = {row["name"]: row["value"] for row in topology["attributes"]}
    return list(pci_devices.read(values.get(attributes.PCI, "[]")))


async def test_the_object_follows_an_event_of_the_kernel(server: ApiServer, trigger: Trigger, tmp_path: Path) -> None:
    await assert_eventually(lambda: placed(server) == VFS)
    devices = tmp_path / "with-nic/sys/bus/pci/devices"
    function = devices / VFS[1]
    place, link = function.resolve(), function.readlink()
    shutil.copytree(place, tmp_path / "unplugged", symlinks=True)

    # As the kernel does: it removes the link before the event and the directory after it.
    function.unlink()
    trigger.notify(f"uevent: remove {VFS[1]}")
    shutil.rmtree(place)
    await assert_eventually(lambda: placed(server) == [VFS[0], VFS[2]])

    shutil.copytree(tmp_path / "unplugged", place, symlinks=True)
    function.symlink_to(link)
    trigger.notify(f"uevent: add {VFS[1]}")
    await assert_eventually(lambda: placed(server) == VFS)


async def test_an_event_that_changes_nothing_writes_nothing(server: ApiServer, trigger: Trigger) -> None:
    await assert_eventually(lambda: placed(server) == VFS)
    before = published(server)
    for number in range(3):
        trigger.notify(f"uevent: change 0000:98:00.{number}")
        await asyncio.sleep(0.1)
    assert published(server) == before
