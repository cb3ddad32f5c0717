"""The part of a KubeletConfiguration that decides where pods go.

Only the fields used are decoded; kubelet's defaults are applied to what the file leaves out, because a consumer must
not mistake "not said" for "not on". Defaults: pkg/kubelet/apis/config/v1beta1/defaults.go.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from topowise import cpuset, quantity
from topowise.errors import ParseError, SourceError


class ReservedMemory(msgspec.Struct, frozen=True, rename="camel"):
    """Memory of one NUMA node that no pod gets."""

    numa_node: int = 0
    limits: dict[str, str | int] = {}


class KubeletConfiguration(msgspec.Struct, frozen=True, rename="camel"):
    """Values as in kubelet.config.k8s.io/v1beta1, kubelet's defaults where absent."""

    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] = {}
    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] = {}
    memory_manager_policy: str = "None"
    reserved_system_cpus: str = msgspec.field(default="", name="reservedSystemCPUs")
    reserved_memory: tuple[ReservedMemory, ...] = ()
    system_reserved: dict[str, str | int] = {}
    kube_reserved: dict[str, str | int] = {}

    @property
    def reserved_cpus(self) -> frozenset[int]:
        """The CPUs named for the system; empty if only an amount is reserved."""
        return cpuset.parse(self.reserved_system_cpus)

    def reserved_on(self, node: int, resource: str) -> int:
        """Bytes of a memory type that are reserved on a NUMA node."""
        return sum(
            quantity.value(entry.limits.get(resource, 0)) for entry in self.reserved_memory if entry.numa_node == node
        )


def load(path: str) -> KubeletConfiguration:
    """The configuration in a kubelet's --config file. Raises SourceError."""
    try:
        return parse(Path(path).read_bytes(), source=path)
    except OSError as exc:
        raise SourceError(path, f"cannot be read: {exc.strerror}") from exc


def parse(text: bytes, *, source: str = "kubelet configuration") -> KubeletConfiguration:
    """As `load`, from the YAML or JSON of a file. Raises SourceError."""
    try:
        # A key without a value is "not set" for the kubelet, and null for YAML.
        document = msgspec.yaml.decode(text) or {}
        if not isinstance(document, dict):
            raise SourceError(source, f"is a {type(document).__name__}, expected the fields of a KubeletConfiguration")
        given = {key: item for key, item in document.items() if item is not None}
        read = msgspec.convert(given, KubeletConfiguration)
        cpuset.parse(read.reserved_system_cpus)
        for entry in read.reserved_memory:
            for amount in entry.limits.values():
                quantity.value(amount)
    except (msgspec.ValidationError, ParseError) as exc:
        raise SourceError(source, str(exc)) from exc
    except msgspec.DecodeError as exc:
        raise SourceError(source, f"is not YAML: {' '.join(str(exc).split())}") from exc
    return read
