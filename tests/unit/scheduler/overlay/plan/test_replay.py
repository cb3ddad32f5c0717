"""Random plans, replayed: the service decides by reports of the changed kubelets, which admit what the plan has placed.

The plan sees reports of the nodes before the change. In the replay the kubelets have the change from their start. Each
pod asks the service about all nodes and goes where the plan has it: the verdicts must be equal, no kubelet may refuse.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from examples import examples
from scheduling import Service, topology_of
from topowise import pods
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet, Machine
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan import Change, NodeType
from topowise_scheduler.overlay.plan.changes import changed_type

_PLANS: Final = examples(8)
_NAMES: Final = ("n1", "n2")
_PODS: Final = 10
_GIB: Final = 1 << 30
_GPU: Final = "nvidia.com/gpu"
_POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")


class Drawn(msgspec.Struct):
    """A random plan: its nodes as they will be, its pods, and where the plan has each pod, by name."""

    types: list[NodeType]
    pods: list[pods.Pod]
    placed: dict[str, str]


def draw(seed: int) -> Drawn:
    random = Random(seed)
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
    reports = [report.read(topology_of(machine, today, Kubelet(machine, today), name=name)) for name in _NAMES]
    inventory = plan.inventory_of(reports)
    workloads = [_workload(random, number, cores) for number in range(_PODS)]
    result = plan.decide(plan.Scenario(inventory, tuple(workloads), change=change))
    assert not result.error, (seed, result.error)
    placed = {result.pod_names[uid]: node for node, kubelet in result.kubelets.items() for uid in kubelet.active}
    assert len(placed) == result.placed
    types = [changed_type(node.type, change) for node in inventory.nodes if node.type is not None]
    return Drawn(types, [workload.pod for workload in workloads], placed)


def _workload(random: Random, number: int, cores: int) -> plan.Workload:
    amounts = {"cpu": str(random.choice((1, 2, 3, 4, 6, cores // 2, cores))), "memory": f"{random.randint(1, 24)}Gi"}
    if random.random() < 0.5:
        amounts[_GPU] = str(random.choice((1, 1, 2, 4)))
    return plan.Workload(f"pod-{number}", plan.pod_of(f"pod-{number}", amounts))


def replay(drawn: Drawn) -> int:
    """Returns the number of pods that the service and a kubelet admit."""
    service = Service()
    kubelets = {}
    for name, of_node in zip(_NAMES, drawn.types, strict=True):
        assert isinstance(of_node.machine, Machine) and isinstance(of_node.configuration, KubeletConfiguration)
        kubelets[name] = (of_node.machine, of_node.configuration, Kubelet(of_node.machine, of_node.configuration))
        service.report(topology_of(*kubelets[name], name=name))
    for version, planned in enumerate(drawn.pods, start=2):
        name = planned.metadata.name
        node = drawn.placed.get(f"{planned.metadata.namespace}/{name}", "")
        pod = msgspec.structs.replace(planned, metadata=msgspec.structs.replace(planned.metadata, uid=f"uid-{name}"))
        fitting = service.fits(msgspec.to_builtins(pod), *_NAMES)
        assert bool(node) == bool(fitting) and (not node or node in fitting), (name, node, fitting)
        if node:
            assert kubelets[node][2].admit(pod).admitted
            bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, nodeName=node))
            service.put(msgspec.to_builtins(bound))
            service.report(topology_of(*kubelets[node], str(version), node))
    return len(drawn.placed)


def test_plans_are_sound() -> None:
    counted = sum(replay(draw(seed)) for seed in range(_PLANS))
    # The plans are about something: pods run, and pods are refused.
    assert _PLANS * _PODS * 0.3 < counted < _PLANS * _PODS
