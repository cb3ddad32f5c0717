"""Decodes objects of `resource.k8s.io`: ResourceSlices, ResourceClaims, their templates and DeviceClasses. Pure.

Fields are spelt as in v1 (1.34), which v1beta2 shares. v1beta1 (1.32) has a device's fields under `basic` and a
request's fields on the request; both are decoded into the form of v1. A field that this module does not know may change
what kube-scheduler allocates, so its path goes to `not_modelled`, and the allocator answers `Unknown`. API:
k8s.io/api/resource/v1, types.go (1.36).
"""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from topowise.errors import ParseError
from topowise_scheduler.verdicts.kube_scheduler import NodeSelector

MOST_BYTES: Final = 2 << 20
"""The most bytes of an object. etcd takes 1.5 MiB."""
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation ("true") of a claim that kube-scheduler makes for the extended resources of a pod."""
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that is made from a template: the name in `spec.resourceClaims` of its pod."""

# Bounds of `not_modelled`: paths, and characters of a path.
_MOST_PATHS: Final = 16
_MOST_PATH: Final = 200


class DeviceID(NamedTuple):
    """A device of the cluster."""

    driver: str
    pool: str
    device: str


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An object that no allocation depends on; its fields are not kept."""


class _Strict(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Base of the structs whose unknown fields are recorded."""


class Owner(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    uid: str = ""
    resourceVersion: str = ""
    creationTimestamp: str | None = None


class ClaimMeta(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: tuple[Owner, ...] | None = None


# --- ResourceSlice ---


class DeviceAttribute(_Strict, frozen=True, gc=False, rename={"integer": "int", "boolean": "bool"}):
    """A value of exactly one type. The lists are alpha in 1.36 (DRAListTypeAttributes)."""

    integer: int | None = None
    boolean: bool | None = None
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRequestPolicyRange(_Strict, frozen=True, gc=False):
    min: str | None = None
    max: str | None = None
    step: str | None = None


class CapacityRequestPolicy(_Strict, frozen=True, gc=False):
    default: str | None = None
    validValues: tuple[str, ...] | None = None
    validRange: CapacityRequestPolicyRange | None = None


class DeviceCapacity(_Strict, frozen=True, gc=False):
    value: str = "0"
    requestPolicy: CapacityRequestPolicy | None = None


class Counter(_Strict, frozen=True, gc=False):
    value: str = "0"


class CounterSet(_Strict, frozen=True, gc=False):
    name: str = ""
    counters: dict[str, Counter] | None = None


class DeviceCounterConsumption(_Strict, frozen=True, gc=False):
    counterSet: str = ""
    counters: dict[str, Counter] | None = None


class DeviceTaint(_Strict, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""
    timeAdded: str | None = None


class _DeviceFields(_Strict, frozen=True, gc=False):
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumesCounters: tuple[DeviceCounterConsumption, ...] | None = None
    nodeName: str | None = None
    nodeSelector: NodeSelector | None = None
    allNodes: bool | None = None
    taints: tuple[DeviceTaint, ...] | None = None
    bindsToNode: bool | None = None
    bindingConditions: tuple[str, ...] | None = None
    bindingFailureConditions: tuple[str, ...] | None = None
    allowMultipleAllocations: bool | None = None
    nodeAllocatableResourceMappings: dict[str, Ignored] | None = None


class Device(_DeviceFields, frozen=True, gc=False):
    """A device of a ResourceSlice. Names of attributes and capacities may lack their domain, which is the driver's."""

    name: str = ""


class ResourcePool(_Strict, frozen=True, gc=False):
    name: str = ""
    generation: int = 0
    resourceSliceCount: int = 0


class ResourceSliceSpec(_Strict, frozen=True, gc=False):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    nodeName: str | None = None
    nodeSelector: NodeSelector | None = None
    allNodes: bool | None = None
    perDeviceNodeSelection: bool | None = None
    devices: tuple[Device, ...] | None = None
    sharedCounters: tuple[CounterSet, ...] | None = None


class ResourceSlice(msgspec.Struct, frozen=True, gc=False):
    """`not_modelled` are the paths of unknown fields, such as "spec.devices[].colour"."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()
    not_modelled: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.metadata.name


# --- ResourceClaim, ResourceClaimTemplate ---


class CELDeviceSelector(_Strict, frozen=True, gc=False):
    expression: str = ""


class DeviceSelector(_Strict, frozen=True, gc=False):
    cel: CELDeviceSelector | None = None


class DeviceToleration(_Strict, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    tolerationSeconds: int | None = None


class CapacityRequirements(_Strict, frozen=True, gc=False):
    requests: dict[str, str] | None = None


class _RequestFields(_Strict, frozen=True, gc=False):
    """`allocationMode` is "ExactCount" or "All"; `count` is 0 with "All"."""

    deviceClassName: str = ""
    selectors: tuple[DeviceSelector, ...] | None = None
    allocationMode: str = "ExactCount"
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] | None = None
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(_RequestFields, frozen=True, gc=False):
    adminAccess: bool | None = None


class DeviceSubRequest(_RequestFields, frozen=True, gc=False):
    name: str = ""


class DeviceRequest(_Strict, frozen=True, gc=False):
    """Has `exactly` or `firstAvailable`; with neither the request is of a later version, and not modelled."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    firstAvailable: tuple[DeviceSubRequest, ...] | None = None


class DeviceConstraint(_Strict, frozen=True, gc=False):
    requests: tuple[str, ...] | None = None
    matchAttribute: str | None = None
    distinctAttribute: str | None = None


class DeviceClaim(_Strict, frozen=True, gc=False):
    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[DeviceConstraint, ...] | None = None
    config: tuple[Ignored, ...] | None = None


class ResourceClaimSpec(_Strict, frozen=True, gc=False):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(msgspec.Struct, frozen=True, gc=False):
    """A device of an allocated claim. Devices with `adminAccess` are not taken from others. `shareID` and
    `consumedCapacity` are of a device that several claims share."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    adminAccess: bool | None = None
    shareID: str | None = None
    consumedCapacity: dict[str, str] | None = None
    bindingConditions: tuple[str, ...] | None = None

    @property
    def id(self) -> DeviceID:
        return DeviceID(self.driver, self.pool, self.device)


class DeviceAllocationResult(msgspec.Struct, frozen=True, gc=False):
    results: tuple[DeviceRequestAllocationResult, ...] | None = None


class AllocationResult(msgspec.Struct, frozen=True, gc=False):
    devices: DeviceAllocationResult = DeviceAllocationResult()
    nodeSelector: NodeSelector | None = None
    allocationTimestamp: str | None = None


class ResourceClaimConsumerReference(msgspec.Struct, frozen=True, gc=False):
    apiGroup: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(msgspec.Struct, frozen=True, gc=False):
    allocation: AllocationResult | None = None
    reservedFor: tuple[ResourceClaimConsumerReference, ...] | None = None


class ResourceClaim(msgspec.Struct, frozen=True, gc=False):
    metadata: ClaimMeta = ClaimMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()
    not_modelled: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ResourceClaimTemplateSpec(_Strict, frozen=True, gc=False):
    metadata: Ignored = Ignored()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(msgspec.Struct, frozen=True, gc=False):
    metadata: ClaimMeta = ClaimMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()
    not_modelled: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


# --- DeviceClass ---


class DeviceClassSpec(_Strict, frozen=True, gc=False):
    selectors: tuple[DeviceSelector, ...] | None = None
    config: tuple[Ignored, ...] | None = None
    extendedResourceName: str | None = None


class DeviceClass(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()
    not_modelled: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.metadata.name


Version = Literal["v1", "v1beta2", "v1beta1"]
Decoded = TypeVar("Decoded", ResourceSlice, ResourceClaim, ResourceClaimTemplate, DeviceClass)


class _Kind(Generic[Decoded]):
    def __init__(self, struct: type[Decoded]) -> None:
        self.struct: type[Decoded] = struct
        self.decoder: msgspec.json.Decoder[Decoded] = msgspec.json.Decoder(struct)
        self.info = inspect.type_info(struct)


_SLICE: Final = _Kind(ResourceSlice)
_CLAIM: Final = _Kind(ResourceClaim)
_TEMPLATE: Final = _Kind(ResourceClaimTemplate)
_CLASS: Final = _Kind(DeviceClass)


def decode_slice(raw: bytes | msgspec.Raw, version: Version = "v1") -> ResourceSlice:
    """Returns a ResourceSlice. Raises ParseError."""
    return _decoded(_SLICE, raw, version)


def decode_claim(raw: bytes | msgspec.Raw, version: Version = "v1") -> ResourceClaim:
    """Returns a ResourceClaim. Raises ParseError."""
    return _decoded(_CLAIM, raw, version)


def decode_template(raw: bytes | msgspec.Raw, version: Version = "v1") -> ResourceClaimTemplate:
    """Returns a ResourceClaimTemplate. Raises ParseError."""
    return _decoded(_TEMPLATE, raw, version)


def decode_class(raw: bytes | msgspec.Raw, version: Version = "v1") -> DeviceClass:
    """Returns a DeviceClass. Raises ParseError."""
    return _decoded(_CLASS, raw, version)


def claim_of(template: ResourceClaimTemplate, namespace: str, name: str) -> ResourceClaim:
    """Returns the claim that the resource claim controller makes from a template, not allocated."""
    meta = ClaimMeta(name=name, namespace=namespace)
    return ResourceClaim(meta, template.spec.spec, not_modelled=template.not_modelled)


def _decoded(kind: _Kind[Decoded], raw: bytes | msgspec.Raw, version: Version) -> Decoded:
    size = memoryview(raw).nbytes
    if size > MOST_BYTES:
        raise ParseError(kind.struct.__name__, f"{size} bytes", f"at most {MOST_BYTES} bytes")
    try:
        if version != "v1beta1":
            try:
                return kind.decoder.decode(raw)
            except msgspec.ValidationError:
                # An unknown field or a wrong type: `_pruned` finds the first, `convert` raises for the second.
                pass
        value = msgspec.json.decode(raw, type=dict[str, Any])
        if version == "v1beta1":
            value = _from_v1beta1(value)
        paths: dict[str, None] = {}
        pruned = _pruned(kind.info, value, "", paths)
        pruned.pop("not_modelled", None)
        item: Decoded = msgspec.convert(pruned, kind.struct)
    except (msgspec.DecodeError, AttributeError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(kind.struct.__name__, str(error), "an object of resource.k8s.io") from error
    return msgspec.structs.replace(item, not_modelled=tuple(paths))


def _pruned(info: inspect.Type, value: Any, path: str, paths: dict[str, None]) -> Any:
    """Returns the value without unknown fields of strict structs, and adds the paths of these fields to `paths`."""
    if isinstance(info, inspect.UnionType):
        info = next((kind for kind in info.types if not isinstance(kind, inspect.NoneType)), info)
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in info.fields}
        if info.forbid_unknown_fields and len(paths) < _MOST_PATHS:
            unknown = sorted(name for name in value if name not in fields)
            paths.update((f"{path}.{name}".removeprefix(".")[:_MOST_PATH], None) for name in unknown[:_MOST_PATHS])
        return {
            name: _pruned(fields[name], item, f"{path}.{name}", paths) for name, item in value.items() if name in fields
        }
    if isinstance(info, inspect.VarTupleType) and isinstance(value, list):
        return [_pruned(info.item_type, item, f"{path}[]", paths) for item in value]
    if isinstance(info, inspect.DictType) and isinstance(value, dict):
        return {name: _pruned(info.value_type, item, f"{path}[]", paths) for name, item in value.items()}
    return value


def _from_v1beta1(value: Any) -> Any:
    """Returns an object of v1beta1 in the form of v1."""
    spec = value.get("spec") or {}
    if spec.get("devices") is None and isinstance(spec.get("spec"), dict):
        spec = spec["spec"]
    devices = spec.get("devices")
    if isinstance(devices, list):
        spec["devices"] = [{**device.pop("basic", {}), **device} for device in devices]
    elif isinstance(devices, dict):
        devices["requests"] = [_request_from_v1beta1(request) for request in devices.get("requests") or ()]
    return value


def _request_from_v1beta1(request: dict[str, Any]) -> dict[str, Any]:
    if request.get("firstAvailable"):
        return {name: value for name, value in request.items() if value}
    return {"name": request.pop("name", ""), "exactly": request}
