"""The fields of a KubeletConfiguration that decide placements, as in files, the kubelet's configz and our attribute.

The effective configuration is the written one plus defaults from several places. Most defaults are in SetDefaults
(pkg/kubelet/apis/config/v1beta1/defaults.go). The hard eviction thresholds are set only while the main file is loaded
(cmd/kubelet/app/server.go, loadConfigFile), and as a whole: a single threshold drops the others, unless
mergeDefaultEvictionSettings (1.33, kubernetes#127577) is set. memory.available is reserved, so this changes which pods
fit. So no default is applied silently: `parse` reads what is written, `with_defaults` returns what the kubelet uses,
and `evictionHard` stays None until it is decided.

Go treats an empty string and zero as "not set", and so does this module. A file is read as strictly and as leniently
as the kubelet reads it (`document`); overrides and configz are only converted.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from topowise import cpuset, documents, kubelet_fields, quantity
from topowise.errors import ParseError, SourceError
from topowise.pods import HUGEPAGES, MAX_AMOUNT, Quantity, amount_of

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

# Only these signals reserve resources (cm/helpers.go, hardEvictionReservation).
_RESERVING_SIGNALS: Final = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}

# cmd/kubelet/app/server.go, parseResourceList.
_RESERVABLE: Final = frozenset(("cpu", "memory", "ephemeral-storage", "pid"))

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?!\d)", re.ASCII)
_OPENSHIFT = re.compile(r"v?\d{1,9}\.\d{1,9}(?:\.\d{1,9})?\+[0-9a-f]{7,12}", re.ASCII)
_SHARE = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FIELD = re.compile(r"`\$\.(\w+)")


class MemoryReservation(msgspec.Struct, frozen=True, gc=False):
    """Reserved memory of a NUMA node."""

    numaNode: int = 0
    limits: dict[str, Quantity] = {}


class KubeletConfiguration(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Fields with the names of kubelet.config.k8s.io/v1beta1. None: the map was not written; an empty map was."""

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

    @property
    def reserved_cpus(self) -> frozenset[int]:
        """The reserved CPUs by id; empty if only an amount is reserved."""
        return cpuset.parse(self.reservedSystemCPUs)

    def reserved_on(self, node: int, resource: str) -> int:
        """Returns the bytes of a memory type (`hugepages-2Mi`) that `reservedMemory` reserves on a NUMA node."""
        reservations = (entry.limits.get(resource) for entry in self.reservedMemory or () if entry.numaNode == node)
        return sum(amount_of(resource, amount) for amount in reservations)

    def reserved(self, capacities: Mapping[str, int]) -> dict[str, int]:
        """Returns the reservation of the whole machine by resource: system + kube + hard eviction. `capacities` in
        bytes are the base of percentages; cpu is in milli-CPU. A set of reserved CPUs replaces both amounts of cpu
        (cmd/kubelet/app/server.go, run). Source: cm.GetNodeAllocatableReservation."""
        reserved: dict[str, int] = {}
        for amounts in (self.systemReserved, self.kubeReserved):
            for name, amount in (amounts or {}).items():
                reserved[name] = reserved.get(name, 0) + amount_of(name, amount)
        if self.reservedSystemCPUs:
            reserved["cpu"] = 1000 * len(self.reserved_cpus)
        for signal, name in _RESERVING_SIGNALS.items():
            threshold = (self.evictionHard or {}).get(signal)
            if threshold is not None:
                reserved[name] = reserved.get(name, 0) + eviction_threshold(threshold, capacities.get(name, 0))
        return reserved


FIELDS: Final = frozenset(KubeletConfiguration.__struct_fields__)


def eviction_threshold(text: str, capacity: int) -> int:
    """Returns an eviction threshold in units of its capacity. Raises ParseError.

    The percentage is a float32 and the product is truncated, so 5% of 1 TiB is 820 bytes more than a twentieth; the
    memory manager compares such sums for equality. Source: eviction/helpers.go parsePercentage, eviction/api
    GetThresholdQuantity. "0%" and "100%" disable a threshold (parseThresholdStatement).
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
    """Returns what a kubelet's file contains, checked, without defaults. Raises SourceError with field and value."""
    fields = kubelet_fields.zeroed(document(text, source=source), source=source)
    return check(convert(fields, source=source), source=source)


def document(text: bytes, *, source: str) -> dict[str, Any]:
    """Returns the fields of a kubelet's file or drop-in, with nulls. Raises SourceError unless a kubelet decodes it.

    Only the first document of a YAML text counts. A text that begins with a brace is JSON.
    """
    try:
        first = next(iter(documents.load_all(text)), None)
    except documents.DocumentError as exc:
        raise SourceError(source, f"is not YAML: {exc}") from exc
    if text.lstrip()[:1] == b"{" and not documents.is_json(text):
        raise SourceError(source, "begins with a brace and is not JSON; a kubelet does not start with it")
    if first is not None and not isinstance(first, dict):
        raise SourceError(source, f"is a {type(first).__name__}, expected the fields of a {KIND}")
    fields = {name if isinstance(name, str) else str(name): value for name, value in (first or {}).items()}
    # Only these two are decoded by encoding/json, which ignores case (apimachinery json/meta.go).
    by_lower_case = {name.lower(): value for name, value in fields.items()}
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = by_lower_case.get(field.lower())
        if value != expected:
            raise SourceError(source, f"{field} is {value!r:.80}, expected {expected!r}")
    kubelet_fields.check(fields, source=source)
    return fields


def convert(document_fields: Mapping[str, Any], *, source: str) -> KubeletConfiguration:
    """Returns the fields with the right types, without what Go treats as "not set". Raises SourceError."""
    try:
        written = {
            name: item
            for name, item in _without_nulls(document_fields).items()
            if item != "" and (name, item) != ("maxPods", 0)
        }
        return msgspec.convert(written, KubeletConfiguration)
    except RecursionError as exc:
        raise SourceError(source, "is nested too deep for the fields of a kubelet") from exc
    except msgspec.ValidationError as exc:
        field_match = _FIELD.search(str(exc))
        value = f", its value is {written.get(field_match[1])!r:.80}" if field_match else ""
        raise SourceError(source, f"{exc}{value}") from exc


def _without_nulls(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _without_nulls(value) for key, value in item.items() if value is not None}
    if isinstance(item, list):
        return [_without_nulls(value) for value in item]
    return item


def check(config: KubeletConfiguration, *, source: str) -> KubeletConfiguration:
    """Returns the configuration. Raises SourceError if a kubelet would not start with a value in it."""
    for problem in chain(_problems(config), _invalid(config)):
        raise SourceError(source, problem)
    return config


def _problems(config: KubeletConfiguration) -> Iterator[str]:
    for field, values in _VALUES.items():
        value = getattr(config, field)
        if value and value not in values:
            yield f"{field} {value!r}: expected one of {', '.join(values)}"
    if config.maxPods < 0:
        yield f"maxPods {config.maxPods}: expected a number of pods"
    try:
        cpuset.parse(config.reservedSystemCPUs)
    except ParseError as exc:
        yield f"reservedSystemCPUs: {exc}"
    yield from _bad_amounts("systemReserved", (config.systemReserved or {}).items())
    yield from _bad_amounts("kubeReserved", (config.kubeReserved or {}).items())
    is_managed = config.memoryManagerPolicy == "Static"
    for position, entry in enumerate(config.reservedMemory or ()):
        # Policy None does not read them.
        if is_managed and entry.numaNode < 0:
            yield f"reservedMemory[{position}].numaNode {entry.numaNode}: expected the id of a NUMA node"
        least = 0 if is_managed else -MAX_AMOUNT
        yield from _bad_amounts(f"reservedMemory[{position}].limits", entry.limits.items(), least=least)
    for signal, threshold in (config.evictionHard or {}).items():
        try:
            eviction_threshold(threshold, 0)
        except ParseError as exc:
            yield f"evictionHard[{signal}]: {exc}"


def _invalid(config: KubeletConfiguration) -> Iterator[str]:
    """Yields what a kubelet's validation refuses (apis/config/validation, cmd/kubelet/app parseResourceList)."""
    if any(character.isspace() for character in config.reservedSystemCPUs):
        yield f"reservedSystemCPUs {config.reservedSystemCPUs!r:.80}: expected no white space"
    for field in ("systemReserved", "kubeReserved"):
        for name in (getattr(config, field) or {}).keys() - _RESERVABLE:
            yield f"{field}[{name}]: expected one of {', '.join(sorted(_RESERVABLE))}"
    known: set[tuple[int, str]] = set()
    for position, entry in enumerate(config.reservedMemory or ()):
        for name, amount in entry.limits.items():
            where = f"reservedMemory[{position}].limits[{name}]"
            if name != "memory" and not name.startswith(HUGEPAGES):
                yield f"{where}: expected memory or hugepages"
            if amount_of(name, amount) == 0 or (entry.numaNode, name) in known:
                yield f"{where} {amount!r}: expected a single amount for the NUMA node, above 0"
            known.add((entry.numaNode, name))


def _bad_amounts(field: str, amounts: Iterable[tuple[str, Quantity]], *, least: int = 0) -> Iterator[str]:
    for name, amount in amounts:
        try:
            if amount_of(name, amount) < least:
                yield f"{field}[{name}] {amount!r}: expected a quantity that is not negative"
        except ParseError as exc:
            yield f"{field}[{name}]: {exc}"


def with_defaults(config: KubeletConfiguration, kubelet_version: str | None = None) -> KubeletConfiguration:
    """Returns the configuration that a kubelet derives from its main file. Idempotent. `kubelet_version` is the Node's
    ("v1.33.2"); None or malformed: the newest. mergeDefaultEvictionSettings is removed from the result, because it has
    been applied."""
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
    """Returns a configuration whose thresholds the kubelet has already set: a missing threshold stays missing."""
    return msgspec.structs.replace(config, evictionHard=config.evictionHard or {}, mergeDefaultEvictionSettings=None)


def _eviction_hard(config: KubeletConfiguration, version: tuple[int, int]) -> dict[str, str]:
    defaults = dict(_EVICTION_HARD)
    if version < _INODES_OF_IMAGES_SINCE:
        del defaults["imagefs.inodesFree"]
    if config.evictionHard is None:
        return defaults
    # Older kubelets ignore the unknown field.
    if config.mergeDefaultEvictionSettings and version >= _MERGED_EVICTION_SINCE:
        return defaults | config.evictionHard
    return config.evictionHard


def release_of(version: str | None) -> tuple[int, int]:
    """Returns major and minor version; a version above all others if the text has none."""
    match = _VERSION.match(version or "")
    return (int(match[1]), int(match[2])) if match else (1 << 30, 0)


def is_openshift(version: str | None) -> bool:
    """Returns whether a kubelet's version is that of an OpenShift build: its suffix is an abbreviated commit."""
    return _OPENSHIFT.fullmatch(version or "") is not None


_decode = msgspec.json.Decoder(KubeletConfiguration).decode


def encode(config: KubeletConfiguration) -> str:
    """Returns the attribute's text: compact JSON, keys sorted at every level, without absent and default fields."""
    return msgspec.json.encode(config, order="sorted").decode()


def decode(text: str) -> KubeletConfiguration:
    """Returns the inverse of `encode`. Raises ParseError."""
    try:
        config = _decode(text)
    except documents.UNREADABLE as exc:
        raise ParseError("kubelet configuration", text, f"a {KIND} in JSON ({exc})") from exc
    for problem in _problems(config):
        raise ParseError("kubelet configuration", text, f"values of a kubelet ({problem})")
    return config
