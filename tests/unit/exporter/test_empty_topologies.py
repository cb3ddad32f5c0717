"""Devices whose plug-in sends a topology without NUMA nodes: the kubelet allocates them, and does not list them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from exporter_setup import KUBELET_FILE
from sandbox import machines
from sandbox.kubelet import podresources
from sandbox.kubelet.holdings import ContainerHoldings, NodeHoldings, PodHoldings
from sandbox.kubelet.state_files import StateFiles
from topowise import pods
from topowise.attributes import devices
from topowise.runtime.config import API_VERSION
from topowise_exporter.__main__ import _observe
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import Allocatable, Device
from topowise_exporter.kubelet.device_checkpoint import EmptyTopologies
from topowise_exporter.kubelet.settings.sources import Kubelet as KubeletSection
from topowise_exporter.publish.topology import Observation, Publishing, build
from topowise_scheduler import kubelet as model
from topowise_scheduler import report

GPU = "a.example.org/gpu"
GIB = machines.GIB
NEAR, FAR, BARE = Device(GPU, "near", (0,)), Device(GPU, "far", (1,)), Device(GPU, "bare", ())
ALL = {GPU: frozenset({"near", "far", "bare"})}


def allocatable(*listed: Device) -> Allocatable:
    return Allocatable(devices=listed)


def test_a_device_that_only_the_checkpoint_names_has_an_empty_topology() -> None:
    assert EmptyTopologies().read(ALL, allocatable(NEAR, FAR), is_complete=False) == (BARE,)
    assert EmptyTopologies().read(ALL, allocatable(NEAR, FAR, BARE), is_complete=True) == ()
    assert EmptyTopologies().read({}, allocatable(NEAR), is_complete=True) == ()


def test_a_checkpoint_that_is_newer_than_the_answer_proves_nothing() -> None:
    compared = EmptyTopologies()
    assert compared.read({GPU: frozenset({"near"})}, allocatable(NEAR), is_complete=True) == ()
    assert compared.is_new(ALL)
    assert compared.read(ALL, allocatable(NEAR), is_complete=True) == ()
    assert not compared.is_new(ALL)
    assert compared.read(ALL, allocatable(NEAR, FAR), is_complete=True) == (BARE,)


def test_the_devices_of_a_plug_in_that_is_away_have_no_empty_topology() -> None:
    compared = EmptyTopologies()
    compared.read(ALL, allocatable(NEAR, FAR), is_complete=True)
    assert compared.read(ALL, allocatable(), is_complete=True) == ()
    remembered = EmptyTopologies()
    remembered.remember((NEAR,))
    assert remembered.read(ALL, allocatable(), is_complete=True) == ()
    # The kubelet has forgotten the resource, and another plug-in comes.
    compared.read({}, allocatable(), is_complete=True)
    compared.read({GPU: frozenset({"bare"})}, allocatable(), is_complete=True)
    assert compared.read({GPU: frozenset({"bare"})}, allocatable(), is_complete=True) == (BARE,)


def test_a_resource_with_empty_topologies_alone_is_shown_once_all_plug_ins_have_had_the_time_to_register() -> None:
    compared = EmptyTopologies()
    assert compared.read({GPU: frozenset({"bare"})}, allocatable(), is_complete=False) == ()
    assert compared.read({GPU: frozenset({"bare"})}, allocatable(), is_complete=True) == (BARE,)


MACHINE = machines.Machine(
    nodes=tuple(machines.Node(number, 8 * GIB, socket=number, cores=4) for number in range(2)),
    distances=((10, 20), (20, 10)),
    threads_per_core=1,
)
SHARED = KUBELET_FILE + "topologyManagerPolicy: {policy}\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"


async def observed(root: Path, policy: str, nodes: tuple[tuple[int, ...], ...], holder: tuple[str, ...]) -> Observation:
    """A reading of a node with a device for each of `nodes`; a pod holds the devices `holder`."""
    pod = PodHoldings("u", "default", "h", (ContainerHoldings("c", "app", frozenset(), (), {GPU: holder}),))
    device_nodes = {(GPU, f"d{number}"): near for number, near in enumerate(nodes)}
    allocatable_cpus = frozenset(range(1, 8))
    holdings = NodeHoldings(allocatable_cpus, (), frozenset(range(8)), device_nodes, (pod,) if holder else ())
    sysfs, procfs = machines.write_tree(MACHINE, root)
    StateFiles(root / "kubelet").write(holdings, cpu_policy="static", memory_policy="None", admitted=True)
    (root / "kubelet/pods/u").mkdir(parents=True)
    config = root / "config.yaml"
    config.write_text(SHARED.format(policy=policy))
    settings = ExporterConfiguration(
        apiVersion=API_VERSION,
        node_name="n1",
        sysfs_root=str(sysfs),
        procfs_root=str(procfs),
        kubelet_root=str(root / "kubelet"),
        podresources_socket=str(root / "kubelet/pod-resources/kubelet.sock"),
        kubelet=KubeletSection(config_file=str(config)),
    )
    server = await podresources.start(Path(settings.podresources_socket), lambda: holdings)
    # The kubelet has run for an hour: all plug-ins have registered.
    os.utime(settings.podresources_socket, (time.time() - 3600,) * 2)
    try:
        return await _observe(settings)
    finally:
        await server.stop(None)


def decided(kubelet: model.Kubelet, number: int) -> tuple[bool, object]:
    """Whether a pod of two CPUs and so many devices is admitted, and where."""
    requests = {"cpu": "2", "memory": "64Mi", GPU: str(number)}
    container = pods.Container("c", pods.Resources(limits=requests, requests=requests))
    admission = kubelet.admit(pods.Pod(pods.Metadata("q", "default", "q"), pods.Spec((container,))))
    return admission.admitted, admission.placements


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize(
    ("nodes", "holder"),
    [
        (((0,), (0,), (), ()), ()),
        (((0,), (1,), (), ()), ()),
        (((1,), (), (), (), ()), ("d1",)),
        (((), (), (), ()), ()),
        (((), (), (), ()), ("d0", "d1")),
    ],
)
async def test_a_report_decides_as_the_kubelet_with_such_devices(
    tmp_path_factory: pytest.TempPathFactory, policy: str, nodes: tuple[tuple[int, ...], ...], holder: tuple[str, ...]
) -> None:
    # The path of a socket has at most 107 bytes, and tmp_path has the name of the test.
    seen = await observed(tmp_path_factory.mktemp("node"), policy, nodes, holder)
    topology = build("n1", seen, Publishing(), Exclusions()).topology
    named = {attribute.name: attribute.value for attribute in topology.attributes or ()}
    listed = {device.id: device.nodes for device in devices.read(named["topowise.io/devices"])}
    assert listed == {f"d{number}": near for number, near in enumerate(nodes)}

    plugin = model.DevicePlugin(GPU, tuple(model.Device(f"d{number}", near) for number, near in enumerate(nodes)))
    cores = [[model.Core(number, (4 * number + at,)) for at in range(4)] for number in range(2)]
    numa = tuple(model.NumaNode(at, 8 * GIB, tuple(cores[at]), {}, ((10, 20), (20, 10))[at]) for at in range(2))
    real = model.Kubelet(model.Machine(numa=numa, devices=(plugin,)), seen.kubelet)
    if holder:
        real.hold("u", {}, {"c": model.Placement("app", None, False, None, (), {GPU: holder})})
    predicted = report.kubelet_of(report.read(topology), lambda _: None)
    for number in range(1, len(nodes) + 2):
        assert decided(predicted.fork(), number) == decided(real.fork(), number), number
