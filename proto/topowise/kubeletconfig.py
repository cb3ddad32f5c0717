"""The part of a KubeletConfiguration that decides where pods go, as file, kubelet and our attribute know it.

A kubelet's configuration is what was written plus defaults that are not all where one looks for them: most come from
SetDefaults (pkg/kubelet/apis/config/v1beta1/defaults.go), the hard eviction thresholds only while the main file is
loaded (cmd/kubelet/app/server.go, loadConfigFile), and there as a whole: naming one threshold drops the others, unless
mergeDefaultEvictionSettings (1.33, kubernetes#127577) asks for them. As memory.available is kept from pods, this moves
what fits. So nothing is defaulted in silence: `parse` reads what is written, `with_defaults` makes of it what the
kubelet uses, and `evictionHard` stays None until somebody has decided what it is.

For Go an empty string and a zero are "not set", and so they are here. Null and missing are the same.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from topowise import cpuset, documents, quantity
from topowise.errors import ParseError, SourceError
from topowise.pods import Quantity, amount_of

API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
KIND: Final = "KubeletConfiguration"

_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "topologyManagerPolicy": ("none", "best-effort", "restricted", "single-numa-node"),
    "topologyManagerScope": ("container", "pod"),
    "cpuManagerPolicy": ("none", "static"),
    "memoryManagerPolicy": ("None", "Static"),
}

# pkg/kubelet/eviction/defaults_linux.go; imagefs.inodesFree since 1.30 (kubernetes#121834).
_EVICTION_HARD: Final[Mapping[str, str]] = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
_INODES_OF_IMAGES_SINCE: Final = (1, 30)
_MERGED_EVICTION_SINCE: Final = (1, 33)

# Only these signals are kept from pods (cm/helpers.go, hardEvictionReservation).
_RESERVING_SIGNALS: Final = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?!\d)", re.ASCII)
_SHARE = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FIELD = re.compile(r"`\$\.(\w+)")


class MemoryReservation(msgspec.Struct, frozen=True, gc=False):
    """Memory of one NUMA node that no pod gets."""

    numaNode: int
    limits: dict[str, Quantity] = {}


class KubeletConfiguration(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Fields and spelling of kubelet.config.k8s.io/v1beta1. A map that is None was not written; an empty one was."""

    topologyManagerPolicy: str = "none"
    topologyManagerScope: str = "container"
    topologyManagerPolicyOptions: dict[str, str] | None = None
    cpuManagerPolicy: str = "none"
    cpuManagerPolicyOptions: dict[str, str] | None = None
    memoryManagerPolicy: str = "None"
    reservedSystemCPUs: str = ""
    systemReserved: dict[str, Quantity] | None = None
    kubeReserved: dict[str, Quantity] | None = None
    evictionHard: dict[str, str] | None = None
    mergeDefaultEvictionSettings: bool | None = None
    reservedMemory: tuple[MemoryReservation, ...] | None = None
    maxPods: int = 110
    featureGates: dict[str, bool] | None = None

    def gate(self, name: str, default: bool) -> bool:
        """Whether a feature gate is on."""
        return (self.featureGates or {}).get(name, default)

    @property
    def reserved_cpus(self) -> frozenset[int]:
        """The CPUs named for the system; empty if only an amount is reserved."""
        return cpuset.parse(self.reservedSystemCPUs)

    def reserved_on(self, node: int, resource: str) -> int:
        """Bytes of a memory type (`memory`, `hugepages-2Mi`) that `reservedMemory` keeps on a NUMA node."""
        kept = (entry.limits.get(resource) for entry in self.reservedMemory or () if entry.numaNode == node)
        return sum(amount_of(resource, given) for given in kept)

    def reserved(self, capacities: Mapping[str, int]) -> dict[str, int]:
        """What is kept from pods on the whole machine, per resource: system + kube + hard eviction.

        `capacities` (bytes) is what percentages are of; milli-CPU for cpu. A set of reserved CPUs replaces both
        amounts of cpu (cmd/kubelet/app/server.go, run). Source: cm.GetNodeAllocatableReservation.
        """
        kept: dict[str, int] = {}
        for listed in (self.systemReserved, self.kubeReserved):
            for name, given in (listed or {}).items():
                kept[name] = kept.get(name, 0) + amount_of(name, given)
        if self.reservedSystemCPUs:
            kept["cpu"] = 1000 * len(self.reserved_cpus)
        for signal, name in _RESERVING_SIGNALS.items():
            threshold = (self.evictionHard or {}).get(signal)
            if threshold is not None:
                kept[name] = kept.get(name, 0) + eviction_threshold(threshold, capacities.get(name, 0))
        return kept


FIELDS: Final = frozenset(KubeletConfiguration.__struct_fields__)


def eviction_threshold(text: str, capacity: int) -> int:
    """An eviction threshold in units of its capacity. Raises ParseError.

    The share is a float32 and the product is truncated, so 5% of 1 TiB is 820 bytes more than a twentieth; the memory
    manager compares such sums for equality. Source: eviction/helpers.go parsePercentage, eviction/api
    GetThresholdQuantity. "0%" and "100%" turn a threshold off (parseThresholdStatement).
    """
    if not text.endswith("%"):
        amount = quantity.value(text)
        if amount <= 0:
            raise ParseError("eviction threshold", text, "a quantity above 0")
        return amount
    if text in ("0%", "100%"):
        return 0
    number = text.rstrip("%")
    share = _float32(_float32(float(number)) / 100) if _SHARE.fullmatch(number) and len(number) < 20 else -1.0
    if not 0 <= share <= 1:
        raise ParseError("eviction threshold", text, 'a quantity or a share from "0%" to "100%"')
    return int(capacity * share)


def _float32(number: float) -> float:
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return float("inf")
    return float(rounded)


def parse(text: bytes, *, source: str = "kubelet configuration") -> KubeletConfiguration:
    """What is written, in YAML or JSON, checked but without defaults. Raises SourceError naming field and value."""
    return check(convert(document(text, source=source), source=source), source=source)


def document(text: bytes, *, source: str) -> dict[str, Any]:
    """The fields in a text, nulls included. Raises SourceError unless it is a mapping of the right kind, or empty."""
    try:
        read = documents.load(text)
    except documents.DocumentError as exc:
        raise SourceError(source, f"is not YAML: {exc}") from exc
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise SourceError(source, f"is a {type(read).__name__}, expected the fields of a {KIND}")
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if read.get(field) not in (None, expected):
            raise SourceError(source, f"{field} is {read[field]!r}, expected {expected!r}")
    return read


def convert(given: Mapping[str, Any], *, source: str) -> KubeletConfiguration:
    """The fields of a document with the right types; what Go takes for "not set" is absent. Raises SourceError."""
    try:
        written = {
            name: item for name, item in _without_nulls(given).items() if item != "" and (name, item) != ("maxPods", 0)
        }
        return msgspec.convert(written, KubeletConfiguration)
    except RecursionError as exc:
        raise SourceError(source, "is nested too deep for the fields of a kubelet") from exc
    except msgspec.ValidationError as exc:
        named = _FIELD.search(str(exc))
        value = f", it says {written.get(named[1])!r:.80}" if named else ""
        raise SourceError(source, f"{exc}{value}") from exc


def _without_nulls(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _without_nulls(value) for key, value in item.items() if value is not None}
    if isinstance(item, list):
        return [_without_nulls(value) for value in item]
    return item


def check(config: KubeletConfiguration, *, source: str) -> KubeletConfiguration:
    """The configuration itself. Raises SourceError if a kubelet would not start with one of its values."""
    for problem in _problems(config):
        raise SourceError(source, problem)
    return config


def _problems(config: KubeletConfiguration) -> Iterator[str]:
    for field, values in _VALUES.items():
        given = getattr(config, field)
        if given and given not in values:
            yield f"{field} {given!r}: expected one of {', '.join(values)}"
    if config.maxPods < 0:
        yield f"maxPods {config.maxPods}: expected a number of pods"
    try:
        cpuset.parse(config.reservedSystemCPUs)
    except ParseError as exc:
        yield f"reservedSystemCPUs: {exc}"
    yield from _bad_amounts("systemReserved", (config.systemReserved or {}).items())
    yield from _bad_amounts("kubeReserved", (config.kubeReserved or {}).items())
    for position, entry in enumerate(config.reservedMemory or ()):
        if entry.numaNode < 0:
            yield f"reservedMemory[{position}].numaNode {entry.numaNode}: expected the id of a NUMA node"
        yield from _bad_amounts(f"reservedMemory[{position}].limits", entry.limits.items())
    for signal, threshold in (config.evictionHard or {}).items():
        try:
            eviction_threshold(threshold, 0)
        except ParseError as exc:
            yield f"evictionHard[{signal}]: {exc}"


def _bad_amounts(field: str, amounts: Iterable[tuple[str, Quantity]]) -> Iterator[str]:
    for name, given in amounts:
        try:
            if amount_of(name, given) < 0:
                yield f"{field}[{name}] {given!r}: expected a quantity that is not negative"
        except ParseError as exc:
            yield f"{field}[{name}]: {exc}"


def with_defaults(config: KubeletConfiguration, kubelet_version: str | None = None) -> KubeletConfiguration:
    """The configuration as a kubelet sees that read it from its main file; twice is the same as once.

    `kubelet_version` is the Node's ("v1.33.2"); None or odd: the newest. mergeDefaultEvictionSettings is absent
    afterwards, because it has been done.
    """
    return msgspec.structs.replace(
        config,
        topologyManagerPolicy=config.topologyManagerPolicy or "none",
        topologyManagerScope=config.topologyManagerScope or "container",
        cpuManagerPolicy=config.cpuManagerPolicy or "none",
        memoryManagerPolicy=config.memoryManagerPolicy or "None",
        maxPods=config.maxPods or 110,
        evictionHard=_eviction_hard(config, release_of(kubelet_version)),
        mergeDefaultEvictionSettings=None,
    )


def without_eviction_defaults(config: KubeletConfiguration) -> KubeletConfiguration:
    """For a configuration in which the kubelet has decided on thresholds already: what is not there, is not."""
    return msgspec.structs.replace(config, evictionHard=config.evictionHard or {}, mergeDefaultEvictionSettings=None)


def _eviction_hard(config: KubeletConfiguration, version: tuple[int, int]) -> dict[str, str]:
    defaults = dict(_EVICTION_HARD)
    if version < _INODES_OF_IMAGES_SINCE:
        del defaults["imagefs.inodesFree"]
    if config.evictionHard is None:
        return defaults
    # An older kubelet does not know the field, and ignores it.
    if config.mergeDefaultEvictionSettings and version >= _MERGED_EVICTION_SINCE:
        return defaults | config.evictionHard
    return config.evictionHard


def release_of(version: str | None) -> tuple[int, int]:
    """Major and minor of a kubelet's version, above all others if it names none."""
    found = _VERSION.match(version or "")
    return (int(found[1]), int(found[2])) if found else (1 << 30, 0)


_decode = msgspec.json.Decoder(KubeletConfiguration).decode


def encode(config: KubeletConfiguration) -> str:
    """Compact JSON, keys sorted at every level, without what is absent or as if absent: the attribute's text."""
    return msgspec.json.encode(config, order="sorted").decode()


def decode(text: str) -> KubeletConfiguration:
    """The inverse of `encode`. Raises ParseError."""
    try:
        config = _decode(text)
    except documents.UNREADABLE as exc:
        raise ParseError("kubelet configuration", text, f"a {KIND} in JSON ({exc})") from exc
    for problem in _problems(config):
        raise ParseError("kubelet configuration", text, f"values of a kubelet ({problem})")
    return config
