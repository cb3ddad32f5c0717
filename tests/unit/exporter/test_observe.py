"""A look finds what changed, even where only a directory tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.config import API_VERSION
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra.slices import Device, Devices
from topowise_exporter.kubelet.model import Allocatable, Claim, PodAllocation
from topowise_exporter.machine.model import Machine
from topowise_exporter.observe import Observer

STATE = b'{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":{"setup":"2-3"}},"checksum":1}'
MACHINE = Machine((), (), (), (), (), (), (), ())


class Kubelet:
    """Both sources of an observer, unchanging."""

    allocated = Allocatable(frozenset({1, 2, 3}))
    listed = (PodAllocation("ns", "p"),)

    async def read(self, version: str | None) -> KubeletConfiguration:
        return KubeletConfiguration(cpuManagerPolicy="static")

    async def allocatable(self) -> Allocatable:
        return self.allocated

    async def pods(self) -> tuple[PodAllocation, ...]:
        return self.listed


def observer(root: Path) -> Observer:
    settings = ExporterConfiguration(apiVersion=API_VERSION, node_name="n", kubelet_root=str(root))
    fake: Any = Kubelet()
    made = Observer(settings, fake, fake, clock=lambda: 1.0)
    made._machine, made._machine_at = MACHINE, 1.0
    return made


async def test_a_pod_whose_directory_comes_after_its_cpus_holds_them(tmp_path: Path) -> None:
    # The kubelet writes the state file at admission, and makes the pod's directory when it starts to run it.
    (tmp_path / "cpu_manager_state").write_bytes(STATE)
    looking = observer(tmp_path)
    assert (await looking.look()).allocations.unlisted == {}
    (tmp_path / "pods" / "u").mkdir(parents=True)
    assert (await looking.look()).allocations.unlisted == {"u": frozenset({2, 3})}


async def test_the_same_facts_are_the_same_object_with_and_without_a_finished_init_container(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_bytes(STATE)
    looking = observer(tmp_path)
    assert await looking.look() is await looking.look()
    (tmp_path / "pods" / "u").mkdir(parents=True)
    assert await looking.look() is await looking.look()


async def test_devices_of_resource_slices_are_taken_as_they_are_known_at_the_look(tmp_path: Path) -> None:
    settings = ExporterConfiguration(apiVersion=API_VERSION, node_name="n", kubelet_root=str(tmp_path))
    fake: Any = Kubelet()
    known: list[Devices] = [{}]
    looking = Observer(settings, fake, fake, clock=lambda: 1.0, devices=lambda: known[-1])
    looking._machine, looking._machine_at = MACHINE, 1.0
    first = await looking.look()
    assert first.devices == {}
    assert await looking.look() is first
    known.append({Claim("gpu.example.com", "n", "gpu-0"): Device(0)})
    second = await looking.look()
    assert second.devices is known[-1]
    assert await looking.look() is second
