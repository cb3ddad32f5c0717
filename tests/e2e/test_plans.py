"""Random plans, replayed on real processes: the service, an API server, and kubelets with the changed configuration.

The plan sees reports of the nodes before the change. In the replay the kubelets start with the change. Each pod asks
the service about all nodes and is bound where the plan has it: the counts must be equal, and no kubelet may refuse.
`TOPOWISE_PLANS` is the number of plans.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from burst import Bench, Scenario
from sandbox.exported import exported, hardware_of
from sandbox.hollow import Fleet, Pace, Reporting
from sandbox.kubescheduler import Extender
from sandbox.kubescheduler.extender import ExtenderError
from sandbox.kubescheduler.pod import PodInfo, decode
from stillness import until_still
from topowise import nrt
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler import plan, report
from topowise_scheduler.kubelet import Kubelet, Machine
from topowise_scheduler.plan import Change, NodeType
from topowise_scheduler.plan.changes import changed_type

_PLANS: Final = int(os.environ.get("TOPOWISE_PLANS", "100"))
_AT_ONCE: Final = 10
_NODES: Final = 2
_PODS: Final = 10
_TRIES: Final = 10
_GIB: Final = 1 << 30
_GPU: Final = "nvidia.com/gpu"
_POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")


class Drawn(msgspec.Struct):
    """A random plan: its nodes as reported today and as they will be, and where the plan has each pod."""

    names: list[str]
    types: list[NodeType]
    pods: list[plan.Workload]
    placed: dict[str, str]
    change: Change


def draw(seed: int) -> Drawn:
    random = Random(seed)
    names = [f"plan-{seed:03}-{number}" for number in range(_NODES)]
    machine = plan.regular(
        sockets=2, numa=random.choice((2, 4)), cores=random.choice((8, 16)), memory=64 * _GIB, devices={_GPU: 4}
    )
    cores = machine.cpus() // 2
    today = KubeletConfiguration(
        topologyManagerPolicy=random.choice(_POLICIES),
        topologyManagerScope=random.choice(("container", "pod")),
        cpuManagerPolicy="static",
        memoryManagerPolicy="Static",
        reservedSystemCPUs=f"0,{cores}",
        systemReserved={"memory": "2Gi"},
        evictionHard={},
        reservedMemory=(MemoryReservation(0, {"memory": "2Gi"}),),
    )
    change = Change(
        "drawn",
        policy=random.choice(_POLICIES),
        scope=random.choice((None, "container", "pod")),
        cpu_options=random.choice(({}, {"full-pcpus-only": "true"}, {"distribute-cpus-across-numa": "true"})),
        reserved_cpus=random.choice((None, f"0-1,{cores}-{cores + 1}")),
        reserved_memory=random.choice(({}, {0: "2Gi", 1: "2Gi"})),
        numa=random.choice((None, None, 2, 4)),
    )
    reports = [report.read(_reported(name, machine, today)) for name in names]
    inventory = plan.inventory_of(reports)
    pods = [_pod(random, f"{names[0]}-pod-{number}", cores) for number in range(_PODS)]
    result = plan.decide(plan.Scenario(inventory, tuple(pods), change=change))
    assert not result.error, (seed, result.error)
    placed = {result.pod_names[uid]: node for node, kubelet in result.kubelets.items() for uid in kubelet.active}
    assert len(placed) == result.placed
    types = [changed_type(node.type, change) for node in inventory.nodes if node.type is not None]
    return Drawn(names, types, pods, placed, change)


def _reported(name: str, machine: Machine, config: KubeletConfiguration) -> nrt.NodeResourceTopology:
    topology = exported(machine, config, Kubelet(machine, config))
    return msgspec.structs.replace(topology, metadata=msgspec.structs.replace(topology.metadata, name=name))


def _pod(random: Random, name: str, cores: int) -> plan.Workload:
    amounts = {"cpu": str(random.choice((1, 2, 3, 4, 6, cores // 2, cores))), "memory": f"{random.randint(1, 24)}Gi"}
    if random.random() < 0.5:
        amounts[_GPU] = str(random.choice((1, 1, 2, 4)))
    return plan.Workload(name, plan.pod_of(name, amounts))


class _Replay(Bench):
    """The bench with the nodes of plans, and with the decisions of a plan in place of a scheduler."""

    def __init__(self, drawn: list[Drawn], directory: Path) -> None:
        super().__init__(Scenario(), directory)
        self.drawn = drawn

    async def _start_nodes(self) -> None:
        pace, reporting = Pace(start=(0.0, 0.0), stop=(0.0, 0.0)), Reporting(wait=(0.0, 0.01))
        self.fleet = Fleet(self.api, pace=pace, reporting=reporting, refused=self._note_refusal)
        for one in self.drawn:
            for name, of_node in zip(one.names, one.types, strict=True):
                config = of_node.configuration
                assert isinstance(config, KubeletConfiguration)
                self.fleet.add(name, hardware_of(of_node.machine), config, devices=of_node.machine.devices)
        await self.stack.enter_async_context(self.fleet)

    async def replay(self, drawn: Drawn) -> tuple[int, list[str]]:
        """Returns the number of pods that run, and a line for each decision that differs from the plan."""
        extender = Extender(self.session, self.services[0].prefix, timeout=60)
        running, differences = 0, []
        for workload in drawn.pods:
            metadata = workload.pod.metadata
            node = drawn.placed.get(f"{metadata.namespace}/{metadata.name}", "")
            spec = msgspec.structs.replace(workload.pod.spec, schedulerName="replay")
            body = msgspec.json.encode(msgspec.structs.replace(workload.pod, spec=spec))
            raw = await self.api.request("POST", f"/api/v1/namespaces/{metadata.namespace}/pods", body=body)
            info = decode(raw)
            remaining, _ = await extender.filter(info, drawn.names)
            if bool(node) != bool(remaining) or (node and node not in remaining):
                differences.append(f"{drawn.change}: {metadata.name}: planned {node!r}, the service says {remaining}")
                continue
            if node:
                await self._bind(extender, info, drawn.names, node)
                running += 1
                await self._until_reported(drawn)
        return running, differences

    async def _bind(self, extender: Extender, info: PodInfo, names: list[str], node: str) -> None:
        """Binds the pod. As kube-scheduler does, tries again if the API server has not answered in time."""
        for _ in range(_TRIES):
            with contextlib.suppress(ExtenderError):
                await extender.bind(info, node)
                return
            if decode(await self.api.request("GET", info.path)).node == node:
                return
            await asyncio.sleep(1.0)
            await extender.filter(info, names)
        raise AssertionError(f"{info.key} cannot be bound to {node}")

    async def _until_reported(self, drawn: Drawn) -> None:
        """Waits until the reports of the nodes have all pods, and the service has read them."""

        async def written() -> int | None:
            nodes = [self.fleet.nodes[name] for name in drawn.names]
            self.check()
            return sum(node.reporter.written for node in nodes) if all(node.is_quiet for node in nodes) else None

        await until_still(written, seconds=0.3, limit=120, state=lambda: f"nodes {drawn.names}")


async def test_plans_are_sound(tmp_path: Path) -> None:
    counted = 0
    for first in range(0, _PLANS, _AT_ONCE):
        drawn = [draw(seed) for seed in range(first, min(_PLANS, first + _AT_ONCE))]
        directory = tmp_path / str(first)
        directory.mkdir()
        async with _Replay(drawn, directory) as replay:
            results = await asyncio.gather(*(replay.replay(one) for one in drawn))
            refused = [f"{refusal.node}: {refusal.pod.metadata.name}" for refusal in replay.fleet.refusals]
        assert [line for _, differences in results for line in differences] == []
        assert refused == []
        assert [running for running, _ in results] == [len(one.placed) for one in drawn]
        counted += sum(running for running, _ in results)
    # The plans are about something: pods run, and pods are refused.
    assert _PLANS * _PODS * 0.3 < counted < _PLANS * _PODS
