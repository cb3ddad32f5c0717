"""Decodes objects of `resource.k8s.io`: ResourceSlices, ResourceClaims and DeviceClasses. Pure.

Fields are spelt as in v1 (1.34), which v1beta2 shares. A field that this module does not know may change what can be
allocated, so its path goes to `not_modelled`, and the allocator answers `Unknown`. API: k8s.io/api/resource/v1,
types.go (1.36).
"""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from topowise.errors import ParseError
from topowise_scheduler.verdicts.kube_scheduler import NodeSelector

MOST_BYTES: Final = 2 << 20
"""The most bytes of an object. etcd takes 1.5 MiB."""
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation ("true") of a claim that kube-scheduler makes for the extended resources of a pod."""

# Bounds of `not_modelled`: paths, and characters of a path.
_MOST_PATHS: Final = 16
_MOST_PATH: Final = 200


class DeviceID(NamedTuple):
    """A device of the cluster."""

    driver: str
    pool: str
    device: str


class _Strict(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
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
    finalizers: tuple[str, ...] | None = None
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
    nodeAllocatableResourceMappings: Any = None
    nodeAllocatableResources: Any = None


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


class DeviceConfiguration(_Strict, frozen=True, gc=False):
    """Parameters for a driver; `opaque` is JSON as the API server has it, with "driver" and "parameters"."""

    opaque: msgspec.Raw = msgspec.Raw()

    def __post_init__(self) -> None:
        # A decoded part of a message keeps all of it.
        msgspec.structs.force_setattr(self, "opaque", self.opaque.copy())


class DeviceClaimConfiguration(DeviceConfiguration, frozen=True, gc=False):
    requests: tuple[str, ...] | None = None


class DeviceAllocationConfiguration(DeviceConfiguration, frozen=True, gc=False, forbid_unknown_fields=False):
    """`source` is "FromClass" or "FromClaim"."""

    source: str = ""
    requests: tuple[str, ...] | None = None


class DeviceClaim(_Strict, frozen=True, gc=False):
    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[DeviceConstraint, ...] | None = None
    config: tuple[DeviceClaimConfiguration, ...] | None = None


class ResourceClaimSpec(_Strict, frozen=True, gc=False):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A device of an allocated claim. `request` is the name of the request, "name/subrequest" for a request with
    `firstAvailable`. Devices with `adminAccess` are not taken from others. `consumedCapacity` (quantities) and
    `shareID` are of a device that several claims share."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    adminAccess: bool | None = None
    tolerations: tuple[DeviceToleration, ...] | None = None
    shareID: str | None = None
    consumedCapacity: dict[str, str] | None = None
    bindingConditions: tuple[str, ...] | None = None
    bindingFailureConditions: tuple[str, ...] | None = None

    @property
    def id(self) -> DeviceID:
        return DeviceID(self.driver, self.pool, self.device)


class DeviceAllocationResult(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    results: tuple[DeviceRequestAllocationResult, ...] | None = None
    config: tuple[DeviceAllocationConfiguration, ...] | None = None


class AllocationResult(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The allocation of a claim; `msgspec.json.encode` makes the API's JSON of it."""

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
    metadata: Any = None
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(msgspec.Struct, frozen=True, gc=False):
    metadata: ClaimMeta = ClaimMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()
    not_modelled: tuple[str, ...] = ()


# --- DeviceClass ---


class DeviceClassSpec(_Strict, frozen=True, gc=False):
    selectors: tuple[DeviceSelector, ...] | None = None
    config: tuple[DeviceConfiguration, ...] | None = None
    extendedResourceName: str | None = None


class DeviceClass(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()
    not_modelled: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.metadata.name


Decoded = TypeVar("Decoded", ResourceSlice, ResourceClaim, ResourceClaimTemplate, DeviceClass)


class _Decoder(Generic[Decoded]):
    """Decodes objects of a kind."""

    def __init__(self, struct: type[Decoded]) -> None:
        self._struct: type[Decoded] = struct
        self._decoder: msgspec.json.Decoder[Decoded] = msgspec.json.Decoder(struct)
        self._info = inspect.type_info(struct)

    def __call__(self, raw: bytes | msgspec.Raw) -> Decoded:
        """Returns an object. Raises ParseError."""
        size = memoryview(raw).nbytes
        if size > MOST_BYTES:
            raise ParseError(self._struct.__name__, f"{size} bytes", f"at most {MOST_BYTES} bytes")
        try:
            try:
                return self._decoder.decode(raw)
            except msgspec.ValidationError:
                # An unknown field or a wrong type: `_pruned` finds the first, `convert` raises for the second.
                pass
            paths: dict[str, None] = {}
            pruned = _pruned(self._info, msgspec.json.decode(raw, type=dict[str, Any]), "", paths)
            item: Decoded = msgspec.convert(pruned | {"not_modelled": list(paths)}, self._struct)
        except (msgspec.DecodeError, AttributeError, TypeError, UnicodeDecodeError, RecursionError) as error:
            raise ParseError(self._struct.__name__, str(error), "an object of resource.k8s.io") from error
        return item


decode_slice: Final = _Decoder(ResourceSlice)
decode_claim: Final = _Decoder(ResourceClaim)
decode_class: Final = _Decoder(DeviceClass)
_decode_template: Final = _Decoder(ResourceClaimTemplate)


def decode_template(raw: bytes | msgspec.Raw) -> ResourceClaim:
    """Returns the claim that is made from a template, under the name "template/", which no object has. Raises
    ParseError."""
    template = _decode_template(raw)
    metadata = template.metadata
    named = ClaimMeta(f"{metadata.name}/", metadata.namespace, metadata.uid, metadata.resourceVersion)
    return ResourceClaim(named, template.spec.spec, not_modelled=template.not_modelled)


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
    if isinstance(info, inspect.RawType):
        return msgspec.Raw(msgspec.json.encode(value))
    if isinstance(info, inspect.DictType) and isinstance(value, dict):
        return {name: _pruned(info.value_type, item, f"{path}[]", paths) for name, item in value.items()}
    return value
