"""Checks the devices that topowise allocates (`resourceClaims.drivers`), and that no device is allocated twice.

Nobody else may allocate these devices. So a claim that topowise does not allocate is never allocated, and its pods wait
with an error of kube-scheduler at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from topowise import documents
from topowise.errors import ParseError
from topowise.placement import ALLOCATED_FOR, GATE
from topowise.pods import claim_names
from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl.console import human, seconds_since
from topowise_scheduler.kubectl.doctor import own_pods
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.source import decoded
from topowise_scheduler.options.claims import objects
from topowise_scheduler.options.claims.cel import values
from topowise_scheduler.options.claims.cel.expressions import Expression, Input, input_of
from topowise_scheduler.options.claims.objects import DeviceClass, DeviceSelector, DeviceSubRequest, ResourceClaim
from topowise_scheduler.options.claims.work import EvaluationError, NotModelledError
from topowise_scheduler.verdicts.kube_scheduler import Pod

CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
CONFIGURATIONS: Final = own_pods.SCHEDULERS_PATH.replace("/pods?", "/configmaps?")
_FILE: Final = "scheduler.yaml"
# The leader frees such an allocation within minutes.
_LONG_S: Final = 600.0
# Of Kubernetes 1.36 and 1.37: a device that stands for CPUs or memory of its node (KEP-5517).
_NODE_AMOUNTS: Final = ("nodeAllocatableResourceMappings", "nodeAllocatableResources")
_DOCS: Final = "docs/how-to/dra.md"


def drivers(answer: bytes) -> frozenset[str]:
    """Returns the drivers whose devices topowise allocates, by its ConfigMaps. Raises SourceError."""
    found: set[str] = set()
    for item in decoded(answer, CONFIGURATIONS).get("items") or ():
        try:
            settings = documents.load((item.get("data") or {}).get(_FILE) or "")["resourceClaims"]
            found.update(map(str, settings["drivers"] if settings["enabled"] else ()))
        except (documents.DocumentError, LookupError, TypeError, AttributeError):
            continue
    return frozenset(found)


class Devices:
    """The devices of ResourceSlices by driver, and which of them selectors match."""

    def __init__(self, answer: bytes, path: str) -> None:
        """Reads the slices of a list. Raises SourceError."""
        self.of_node: dict[str, int] = {}
        """How many devices of a driver stand for CPUs or memory of their node."""
        self._by_driver: dict[str, list[Input]] = {}
        self._matching: dict[tuple[str, ...], frozenset[str]] = {}
        for item in decoded(answer, path).get("items") or ():
            try:
                spec = objects.decode_slice(msgspec.json.encode(item)).spec
                raw = item["spec"].get("devices") or ()
            except (ParseError, *documents.UNREADABLE, LookupError, AttributeError):
                continue
            inputs = self._by_driver.setdefault(spec.driver, [])
            inputs += [input_of(spec.driver, device) for device in spec.devices or ()]
            of_node = sum(any(device.get(name) for name in _NODE_AMOUNTS) for device in raw)
            if of_node:
                self.of_node[spec.driver] = self.of_node.get(spec.driver, 0) + of_node

    def __contains__(self, driver: str) -> bool:
        return driver in self._by_driver

    def drivers(self, *selectors: Iterable[DeviceSelector] | None) -> frozenset[str]:
        """Returns the drivers with a device that all selectors match. An unknown result counts as a match."""
        texts = tuple(item.cel.expression for part in selectors for item in part or () if item.cel is not None)
        if texts not in self._matching:
            expressions = [compiled for text in texts if (compiled := _compiled(text)) is not None]
            self._matching[texts] = frozenset(
                driver
                for driver, inputs in self._by_driver.items()
                if any(all(_matches(expression, device) for expression in expressions) for device in inputs)
            )
        return self._matching[texts]


def _compiled(text: str) -> Expression | None:
    try:
        return Expression(text)
    except NotModelledError:
        return None


def _matches(expression: Expression, device: Input) -> bool:
    try:
        return expression.matches(device, values.Run())
    except EvaluationError:
        return False
    except NotModelledError:
        return True


def classes(answer: bytes) -> dict[str, DeviceClass]:
    """Returns the classes by name. A class that cannot be read is left out. Raises SourceError."""
    found: dict[str, DeviceClass] = {}
    for item in decoded(answer, CLASSES).get("items") or ():
        try:
            device_class = objects.decode_class(msgspec.json.encode(item))
        except (ParseError, *documents.UNREADABLE):
            continue
        found[device_class.name] = device_class
    return found


def check(owned: frozenset[str], devices: Devices, by_name: Mapping[str, DeviceClass]) -> Iterator[Finding]:
    """Checks the drivers that topowise allocates for, and the classes of their devices."""
    for driver in sorted(owned):
        if driver not in devices:
            yield Finding(
                "claims", "warning", "driver", (driver,), "is in resourceClaims.drivers, and no ResourceSlice is of it",
                "if the name is wrong, kube-scheduler still allocates the devices, wherever they are",
                "compare it with kubectl get resourceslices; correct the name, or install the driver",
            )  # fmt: skip
        if of_node := devices.of_node.get(driver, 0):
            yield Finding(
                "claims", "warning", "driver", (driver,),
                f"{plural(of_node, 'device')} with {' or '.join(_NODE_AMOUNTS)}",
                "only kube-scheduler counts the CPUs and memory of such a device, and may not allocate it: claims for "
                "it wait forever",
                f"remove the driver from resourceClaims.drivers ({_DOCS})",
            )  # fmt: skip
    for device_class in by_name.values():
        resource = device_class.spec.extendedResourceName
        matching = devices.drivers(device_class.spec.selectors) & owned
        if resource and matching:
            yield Finding(
                "claims", "warning", "device class", (device_class.name,),
                f"extendedResourceName {resource}, for devices of {_named(matching)}",
                "kube-scheduler makes the claim of a pod that requests this resource, and may not allocate it: the pod "
                "waits forever",
                f"let pods claim the class, and remove extendedResourceName ({_DOCS})",
            )  # fmt: skip


def check_waiting(
    pods: Iterable[Pod],
    by_key: Mapping[str, ResourceClaim],
    owned: frozenset[str],
    devices: Devices,
    by_name: Mapping[str, DeviceClass],
) -> Iterator[Finding]:
    """Checks the pods without a node whose claims nobody may allocate."""
    for pod in pods:
        if pod.spec.nodeName or pod.is_terminal or pod.metadata.deletionTimestamp:
            continue
        has_gate = any(gate.name == GATE for gate in pod.spec.schedulingGates or ())
        for name in filter(None, claim_names(pod)):
            claim = by_key.get(f"{pod.metadata.namespace}/{name}")
            if claim is None or claim.status.allocation is not None:
                continue
            possible = _drivers_of(claim, devices, by_name)
            ours, others = possible & owned, possible - owned
            pod_name = (f"{pod.metadata.namespace}/{pod.metadata.name}",)
            if ours and others:
                yield Finding(
                    "claims", "warning", "pod", pod_name,
                    f"waits for a claim that may get devices of {_named(ours)} and of {_named(others)}",
                    f"topowise leaves the claim to kube-scheduler, which is refused devices of {_named(ours)}",
                    "put all these drivers into resourceClaims.drivers, or make a claim of each driver",
                )  # fmt: skip
            elif ours and not has_gate:
                yield Finding(
                    "claims", "error", "pod", pod_name,
                    f"waits without the gate {GATE}, and claims devices of {_named(ours)}",
                    "topowise alone allocates these devices, to pods with the gate: the pod waits forever",
                    f"label its namespace {GATE}=enabled, or put the gate into its template, and create the pod anew "
                    f"({_DOCS})",
                )  # fmt: skip


def _drivers_of(claim: ResourceClaim, devices: Devices, by_name: Mapping[str, DeviceClass]) -> frozenset[str]:
    """Returns the drivers whose devices a claim may get, without requests for admin access."""
    found: frozenset[str] = frozenset()
    for request in claim.spec.devices.requests or ():
        parts: list[DeviceSubRequest | objects.ExactDeviceRequest] = list(request.firstAvailable or ())
        if request.exactly is not None and not request.exactly.adminAccess:
            parts.append(request.exactly)
        for part in parts:
            device_class = by_name.get(part.deviceClassName)
            if device_class is not None:
                found |= devices.drivers(device_class.spec.selectors, part.selectors)
    return found


def check_allocated(by_key: Mapping[str, ResourceClaim], pods: Sequence[Pod] | None, now: float) -> Iterator[Finding]:
    """Checks allocations: devices with two owners, and allocations of topowise for pods that are gone."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for claim in by_key.values():
        allocation = claim.status.allocation
        for result in () if allocation is None else allocation.devices.results or ():
            if not result.adminAccess:
                owners.setdefault((*result.id, result.shareID or ""), []).append(claim.key)
    for (*device, share), keys in owners.items():
        if len(keys) > 1:
            yield Finding(
                "claims", "error", "device", ("/".join(device),),
                f"allocated to the claims {', '.join(sorted(keys))}{f' by the share {share}' if share else ''}",
                "two pods use one device, which no driver expects",
                "delete all of these pods but one, and report it with the claims (kubectl get resourceclaim -o yaml)",
            )  # fmt: skip
    uids = None if pods is None else {pod.metadata.uid for pod in pods}
    yield from () if uids is None else _left(by_key.values(), uids, now)


def _left(claims: Iterable[ResourceClaim], uids: Collection[str], now: float) -> Iterator[Finding]:
    for claim in claims:
        mark, allocation = (claim.metadata.annotations or {}).get(ALLOCATED_FOR), claim.status.allocation
        if not mark or allocation is None or mark in uids:
            continue
        age = seconds_since(allocation.allocationTimestamp or "", now)
        if age is None or age < _LONG_S or any(item.uid in uids for item in claim.status.reservedFor or ()):
            continue
        yield Finding(
            "claims", "warning", "claim", (claim.key,),
            f"allocated {human(int(age))} ago by topowise for a pod that is gone (UID {mark})",
            "no pod uses its devices, and no other claim gets them",
            "read the log of topowise-scheduler's leader, which frees such claims; delete the claim if nobody needs it",
        )  # fmt: skip


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
