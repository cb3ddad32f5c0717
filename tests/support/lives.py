"""A node with its kubelet and a producer, and the service that watches it: what happens there, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import msgspec

import producers
from scheduling import GIB, Service, configuration, decoded
from topowise import nrt
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode

GPU = "example.com/gpu"
Json = dict[str, Any]
Write = Callable[[producers.Node, "Random"], Json]
WRITERS: dict[str, Write] = {
    "rte": producers.rte,
    "rte-all": partial(producers.rte, method="all"),
    "rte-without-fingerprint": partial(producers.rte, method=None),
    "nfd": producers.nfd,
    "nfd-without-fingerprint": partial(producers.nfd, with_fingerprint=False),
    "koordlet": lambda node, _: producers.koordlet(node, cpu_manager={"policy": "static", "reservedCPUs": "0"}),
}
"""The producers, each with the options that change what its report says."""


def machine() -> Machine:
    """Returns two NUMA nodes, each with eight CPUs, 16 GiB of memory, 1 GiB of it in hugepages, and two GPUs."""
    return Machine(
        numa=tuple(
            NumaNode(
                id=zone,
                memory=16 * GIB,
                cores=tuple(Core(socket=zone, threads=(8 * zone + core,)) for core in range(8)),
                hugepages={2048: 512},
                distances=tuple(10 if neighbour == zone else 21 for neighbour in range(2)),
            )
            for zone in range(2)
        ),
        devices=(DevicePlugin(GPU, tuple(Device(f"gpu{zone}{n}", (zone,)) for zone in range(2) for n in range(2))),),
    )


NO_MANAGERS = {
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "topologyManagerPolicy": "none",
    "reservedSystemCPUs": "",
    "reservedMemory": (),
    "systemReserved": {"cpu": "1", "memory": "1Gi"},
}


def guaranteed(name: str, cpu: str = "2", memory: str = "1Gi", gpus: int = 0, *, node: str = "", **more: str) -> Json:
    """Returns a Guaranteed pod with a container that requests CPU, memory, GPUs and the resources of `more`."""
    amounts: Mapping[str, str] = {"cpu": cpu, "memory": memory, **({GPU: str(gpus)} if gpus else {}), **more}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}],
        },
        "status": {"phase": "Pending"},
    }


class Life:
    """The node n1. `write` is its producer; what it writes comes to the service by `deliver`."""

    def __init__(self, write: Write, seed: int = 0, **changed: Any) -> None:
        self.machine = machine()
        self.kubelet = Kubelet(self.machine, configuration(**changed))
        self.service = Service()
        self.random = Random(seed)
        self._write = write
        self._version = 0

    def seen(self) -> Json:
        """What the producer writes of the node as it is now."""
        self._version += 1
        node = producers.Node(self.machine, self.kubelet, lambda uid: ("default", uid.removeprefix("uid-")))
        document = self._write(node, self.random)
        document["metadata"] = {**document["metadata"], "resourceVersion": str(self._version)}
        return document

    def deliver(self, document: Json) -> None:
        """The service's watch brings it."""
        self.service.report(nrt.decode(msgspec.json.encode(document)))

    def report(self) -> None:
        """The producer looks, writes, and the service sees it."""
        self.deliver(self.seen())

    def bind(self, document: Json, **options: Any) -> None:
        """The API server shows a pod on the node; its kubelet has not seen it yet."""
        self.service.put({**document, "spec": {**document["spec"], "nodeName": "n1"}}, **options)

    def admit(self, document: Json) -> None:
        """The kubelet takes it."""
        admission = self.kubelet.admit(decoded(document))
        assert admission.admitted, admission.message

    def release(self, name: str) -> None:
        """The kubelet is done with it."""
        assert self.kubelet.remove(f"uid-{name}")

    def end(self, name: str) -> None:
        """The API server shows it no more."""
        self.service.ledger.drop_pod(f"uid-{name}")

    def wait(self, seconds: float) -> None:
        self.service.clock.now += seconds
        self.service.ledger.tick()

    @property
    def free(self) -> list[int]:
        """Free CPUs of each NUMA node as the service believes."""
        return self.service.free("n1")

    @property
    def truly_free(self) -> list[int]:
        """Free CPUs of each NUMA node as the kubelet has it."""
        assert self.kubelet.cpu is not None
        available = self.kubelet.cpu.available
        return [(cpus & available).bit_count() for cpus in self.kubelet.topology.numa_cpus]

    def fits(self, document: Json) -> bool:
        """Returns whether the service would send this pod to the node."""
        return self.service.fits(document, "n1") == ["n1"]
