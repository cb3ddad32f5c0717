"""Numatopology (`nodeinfo.volcano.sh/v1alpha1`), which Volcano's numa-aware plugin reads instead of an NRT.

The structs fit the object of Volcano's resource-exporter: Go's `omitempty` drops zeros, so CPU 0 of core 0 on socket 0
and node 0 is `{}`. `numares.cpu.allocatable` names the *free* CPUs of all nodes; `cpuDetail` has the node of each CPU.
Schema: volcano.sh/apis pkg/apis/nodeinfo/v1alpha1; reader: volcano pkg/scheduler/plugins/numaaware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from topowise import cpuset, nrt, quantity
from topowise.errors import ParseError

GROUP: Final = "nodeinfo.volcano.sh"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "Numatopology"
PLURAL: Final = "numatopologies"
PATH: Final = f"/apis/{API_VERSION}/{PLURAL}"

CPU_MANAGER_POLICY: Final = "CPUManagerPolicy"
TOPOLOGY_MANAGER_POLICY: Final = "TopologyManagerPolicy"
CPU: Final = "cpu"
TIMESTAMP_ANNOTATION: Final = "timestamp"
"""Unix seconds of the last change, as text."""


class ResourceInfo(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """For `cpu`: the cpulist of free CPUs, and the number of online CPUs."""

    allocatable: str = ""
    capacity: int = 0


class CpuInfo(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    numa: int = 0
    socket: int = 0
    core: int = 0


class ContainerAllocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resource name -> allocation of the container: a cpulist for `cpu`, else a quantity."""

    name: str = ""
    allocations: dict[str, str] | None = None


class PodAllocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """`uid` is set for a pod from the kubelet's state file, namespace and name for a pod from podresources, never all
    three."""

    uid: str = ""
    name: str = ""
    namespace: str = ""
    containerAllocations: tuple[ContainerAllocation, ...] | None = ()


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    policies: dict[str, str] | None = None
    resReserved: dict[str, str] | None = None
    numares: dict[str, ResourceInfo] | None = None
    cpuDetail: dict[str, CpuInfo] | None = None
    podAllocations: tuple[PodAllocation, ...] | None = ()


class Numatopology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    apiVersion: str = ""
    kind: str = ""
    metadata: nrt.Metadata
    spec: Spec = Spec()


decode = msgspec.json.Decoder(Numatopology).decode


def new(
    name: str,
    *,
    policies: Mapping[str, str],
    reserved: Mapping[str, str],
    resources: Mapping[str, ResourceInfo],
    cpus: Mapping[int, CpuInfo],
    pods: Iterable[PodAllocation] = (),
    owner: nrt.OwnerReference | None = None,
) -> Numatopology:
    """Returns an object to write, with every list and map in order."""
    return Numatopology(
        apiVersion=API_VERSION,
        kind=KIND,
        metadata=nrt.Metadata(name=name, ownerReferences=(owner,) if owner else None),
        spec=Spec(
            policies=dict(sorted(policies.items())),
            resReserved=dict(sorted(reserved.items())),
            numares=dict(sorted(resources.items())),
            cpuDetail={str(cpu): info for cpu, info in sorted(cpus.items())},
            podAllocations=tuple(sorted(map(_sorted_containers, pods), key=_pod_key)),
        ),
    )


def stamped(topology: Numatopology, seconds: int) -> Numatopology:
    """Returns the object with the time of its change, which resource-exporter sets at every update."""
    annotations = {**(topology.metadata.annotations or {}), TIMESTAMP_ANNOTATION: str(seconds)}
    metadata = msgspec.structs.replace(topology.metadata, annotations=dict(sorted(annotations.items())))
    return msgspec.structs.replace(topology, metadata=metadata)


def same_content(a: Numatopology, b: Numatopology) -> bool:
    """Whether two objects have the same content, whatever their timestamps, the order of lists and the format of
    values."""
    return _content(a.spec) == _content(b.spec)


def _pod_key(pod: PodAllocation) -> tuple[str, str, str]:
    return pod.uid, pod.namespace, pod.name


def _sorted_containers(pod: PodAllocation) -> PodAllocation:
    containers = sorted(pod.containerAllocations or (), key=lambda container: container.name)
    return msgspec.structs.replace(pod, containerAllocations=tuple(containers))


def _content(spec: Spec) -> object:
    return (
        spec.policies or {},
        {name: _quantity(amount) for name, amount in (spec.resReserved or {}).items()},
        {name: (_value(name, info.allocatable), info.capacity) for name, info in (spec.numares or {}).items()},
        spec.cpuDetail or {},
        [
            (
                _pod_key(pod),
                [
                    (container.name, {name: _value(name, text) for name, text in (container.allocations or {}).items()})
                    for container in _sorted_containers(pod).containerAllocations or ()
                ],
            )
            for pod in sorted(spec.podAllocations or (), key=_pod_key)
        ],
    )


def _value(resource: str, text: str) -> object:
    """Returns the set of CPUs or the number; other text stays text, because other clients write these objects too."""
    if resource != CPU:
        return _quantity(text)
    try:
        return cpuset.mask(text)
    except ParseError:
        return text


def _quantity(text: str) -> object:
    try:
        return quantity.milli_value(text)
    except ParseError:
        return text
