"""What the cluster has of devices and claims: ResourceSlices, ResourceClaims and DeviceClasses, as the API server has
them, and the allocations that kube-scheduler is predicted to have made but has not written yet.

Invariant: a device is allocated exactly while the status of a claim, or an assumed allocation, names the device without
admin access. An assumed allocation of a claim ends with the first status of the claim that has an allocation.

A namespace, and a node with its slices, has a share of the memory. Of a claim beyond it only the allocation is kept, so
that the predictions of all other claims stay right, and the claim itself is unknown; a node with a slice beyond its
share is unknown. Objects beyond the bound of all are not kept; then every prediction is unknown, never wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from topowise import digits
from topowise.bounded import Bounded
from topowise.claimed_devices import Location, location
from topowise.pods import Container, Needs, Resources, Spec
from topowise_scheduler.options.claims.allocated import AllocatedDevices, ClaimUsers
from topowise_scheduler.options.claims.allocator import AllocatedDevice, Allocation, NoFit, Unknown, allocate
from topowise_scheduler.options.claims.devices import ClaimedDevice, ClaimedDevices
from topowise_scheduler.options.claims.extended import CLASS_PREFIX, ExtendedResources
from topowise_scheduler.options.claims.extended import NAME as EXTENDED_NAME
from topowise_scheduler.options.claims.features import Features
from topowise_scheduler.options.claims.inventory import Inventory
from topowise_scheduler.options.claims.objects import (
    EXTENDED_RESOURCE_CLAIM,
    DeviceClass,
    DeviceID,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceSlice,
)
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.verdicts.kube_scheduler import Node, selects

MOST_BYTES: Final = 256 << 20
"""Of all objects: 5,000 nodes with 16 devices each have 80 MB of JSON."""
# Of the specs of a namespace's claims, and of a node's slices: 10,000 claims of 400 bytes, 3,000 devices of 1.3 kB.
_MOST_SHARE: Final = 4 << 20
_MOST_PREDICTED_BYTES: Final = 1 << 20
_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode

Item = TypeVar("Item", ResourceSlice, ResourceClaim, DeviceClass)


class Sized(NamedTuple, Generic[Item]):
    """An object with the size of its JSON in bytes. `name` and `version` are for the reflector."""

    item: Item
    size: int

    @property
    def name(self) -> str:
        """Returns the name of the object."""
        return self.item.metadata.name

    @property
    def version(self) -> str:
        """Returns the resourceVersion of the object."""
        return self.item.metadata.resourceVersion


class _Slice(NamedTuple):
    node: str
    pool: tuple[str, str]
    locations: Mapping[str, Location]
    size: int


class _Claim(NamedTuple):
    """`spec_size` is the part of `size` that the spec takes, 0 if it is not kept."""

    claim: ResourceClaim
    size: int
    spec_size: int
    digest: bytes


class _Assumed(NamedTuple):
    node: str
    results: dict[str, tuple[DeviceRequestAllocationResult, ...]]


class ClaimingPod(Protocol):
    """What decides the claims of a pod; `claims` are their names, "" for a claim that is not generated yet."""

    @property
    def uid(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def claims(self) -> tuple[str, ...]: ...

    @property
    def needs(self) -> Needs | None: ...


class Claims:
    """Not thread-safe."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self.changed: Callable[[str, bool], None] = lambda node, is_better: None
        """Receives each node whose devices, or their allocation, have changed, and whether more devices are free."""
        self.predictions: Counter[str] = Counter()
        """Predicted allocations of claims, by whether kube-scheduler has allocated the same devices (right, wrong), or
        devices of another node (elsewhere)."""
        self._most_bytes = most_bytes
        self.features: Features | None = None
        """Of the cluster's kube-scheduler; None until its version is known."""
        self.bytes = 0
        """Of the objects that are kept: of the JSON of slices and classes, and of claims without what is not kept."""
        # Objects that are not kept, with the node that is unknown without the object, "" for all nodes.
        self._over: dict[str, str] = {}
        # Bytes by namespace ("namespace ") and node ("node ").
        self._shares: Counter[str] = Counter()
        self._inventory = Inventory()
        self._selectors = Selectors()
        self._slices: dict[str, _Slice] = {}
        self._slices_of_pool: dict[tuple[str, str], set[str]] = {}
        self._slices_by_node: dict[str, set[str]] = {}
        self._claims: dict[str, _Claim] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._class_sizes: dict[str, int] = {}
        self._extended = ExtendedResources(())
        self._backed: frozenset[str] = frozenset()
        self._allocated = AllocatedDevices()
        self._holders: Counter[tuple[DeviceID, str | None]] = Counter()
        self._users = ClaimUsers()
        self._assumed: dict[str, _Assumed] = {}
        self._as_predicted: Bounded[str, None] = Bounded(_MOST_PREDICTED_BYTES, lambda key, _: len(key))

    @property
    def nodes(self) -> Collection[str]:
        """Returns the nodes with ResourceSlices of their own."""
        return self._slices_by_node.keys()

    def assumed(self) -> list[tuple[str, str]]:
        """Returns UID and node of the pods with an assumed allocation."""
        return [(uid, assumed.node) for uid, assumed in self._assumed.items()]

    def were_predicted(self, namespace: str, names: Iterable[str]) -> bool:
        """Returns whether each of these claims got the predicted devices when it was allocated last."""
        return all(f"{namespace}/{name}" in self._as_predicted for name in names)

    @property
    def keys(self) -> set[str]:
        """Returns the claims, with those that are not kept, by namespace/name."""
        return {*self._claims, *self._left_out("claim")}

    @property
    def slices(self) -> set[str]:
        """Returns the names of the slices, with those that are not kept."""
        return {*self._slices, *self._left_out("slice")}

    @property
    def classes(self) -> set[str]:
        """Returns the names of the classes, with those that are not kept."""
        return {*self._classes, *self._left_out("class")}

    def claim(self, key: str) -> ResourceClaim | None:
        """Returns a claim by namespace/name, None if there is none."""
        kept = self._claims.get(key)
        return None if kept is None else kept.claim

    def location(self, device: DeviceID, node: str) -> Location | None:
        """Returns the location of a device of a node, None if no slice of the node has the device."""
        for name in self._slices_of_pool.get(device[:2], ()):
            kept = self._slices[name]
            if kept.node == node and device.device in kept.locations:
                return kept.locations[device.device]
        return None

    def devices_of_node(self, node: str) -> Iterator[tuple[DeviceID, Location, bool]]:
        """Yields the devices in the slices of a node, their location, and whether a claim has them."""
        for name in sorted(self._slices_by_node.get(node, ())):
            kept = self._slices[name]
            for device, where in kept.locations.items():
                key = DeviceID(*kept.pool, device)
                yield key, where, key in self._allocated.devices or key in self._allocated.shares

    def extended_resources(self, needs: Needs | None) -> tuple[str, ...]:
        """Returns the extended resources of a pod that kube-scheduler allocates by a claim of its own making, on nodes
        without a device plug-in for them (KEP-5004)."""
        if needs is None or self.features is None or not self.features.extended_resource:
            return ()
        return tuple([name for name, amount in needs.requests.items() if amount and name in self._backed])

    # Predictions

    def digest(self, uid: str, namespace: str, names: Iterable[str]) -> bytes:
        """Returns a key that is equal for pods of equal requests whose claims get the same devices on the same node."""
        # The devices of an assumed allocation are taken for all other pods.
        parts = [uid.encode() if uid in self._assumed else b""]
        for name in names:
            kept = self._claims.get(f"{namespace}/{name}")
            if kept is None:
                parts.append(b"-")
            elif kept.claim.status.allocation is None:
                parts.append(kept.digest)
            else:
                parts.append(_encode([tuple(result.id) for result in _results(kept.claim)]))
        return blake2b(b"\0".join(parts), digest_size=16).digest()

    def frees(self, uid: str) -> bool:
        """Returns whether the devices of claims may depend on whether this pod has left."""
        return uid in self._users or uid in self._assumed

    def devices(
        self,
        pod: ClaimingPod,
        node: Node | None,
        name: str,
        leaving: Collection[str] = (),
        taken: Sequence[DeviceRequestAllocationResult] = (),
        work: Work | None = None,
    ) -> ClaimedDevices:
        """Returns the devices that the claims of a pod have, or are predicted to get, on a node, once the pods
        `leaving` (UIDs) have left and these devices are `taken`. If the pod itself leaves, the answer is for its
        replacement, whose claims are made anew. A prediction whose `work` is spent has a problem."""
        allocated: list[DeviceID] = []
        waiting: list[ResourceClaim] = []
        has_extended = False
        freed = {claim.key: claim for claim in self._users.freed(leaving)}
        for claim_name in pod.claims:
            key = f"{pod.namespace}/{claim_name}"
            kept = self._claims.get(key)
            if kept is None:
                return ClaimedDevices(problem=f"ResourceClaim {claim_name or 'of a template'} is not known")
            has_extended |= _is_extended(kept.claim)
            if kept.claim.status.allocation is None or pod.uid in leaving:
                waiting.append(kept.claim)
            elif key in freed:
                return ClaimedDevices(
                    problem=f"ResourceClaim {claim_name} may be allocated anew once its pods have left"
                )
            elif node is not None and not _is_available(kept.claim, node):
                return ClaimedDevices(problem=f"ResourceClaim {claim_name} has devices of other nodes", is_short=True)
            else:
                allocated += [result.id for result in _results(kept.claim) if not result.adminAccess]
        made = None if has_extended else self._made(pod, node)
        if isinstance(made, Unknown):
            return ClaimedDevices(problem=f"not modelled: {made.feature}")
        waiting += [] if made is None else [made]
        if not waiting:
            return ClaimedDevices(self._located(allocated, name), is_allocated=True)
        assumed = None if pod.uid in leaving else self._assumed.get(pod.uid)
        if assumed is not None and assumed.node == name and {claim.key for claim in waiting} <= assumed.results.keys():
            results = assumed.results
        else:
            with self._as_if(self._freed_results(freed.values(), leaving), taken):
                predicted = self._predict(node, waiting, work or Work())
            if isinstance(predicted, ClaimedDevices):
                return predicted
            results = predicted
        expected = [result.id for claim in waiting for result in results[claim.key] if not result.adminAccess]
        return ClaimedDevices(self._located([*allocated, *expected], name), results=results)

    def _freed_results(
        self, freed: Iterable[ResourceClaim], leaving: Collection[str]
    ) -> list[DeviceRequestAllocationResult]:
        results = [result for claim in freed for result in _results(claim)]
        parts = [part for uid in leaving if uid in self._assumed for part in self._assumed[uid].results.values()]
        return results + [result for part in parts for result in part]

    @contextmanager
    def _as_if(
        self, freed: Sequence[DeviceRequestAllocationResult], taken: Sequence[DeviceRequestAllocationResult]
    ) -> Iterator[None]:
        """Changes which devices are allocated, for the time of a prediction."""
        self._release(freed)
        self._hold(taken)
        try:
            yield
        finally:
            self._release(taken)
            self._hold(freed)

    def _made(self, pod: ClaimingPod, node: Node | None) -> ResourceClaim | Unknown | None:
        """Returns the claim that kube-scheduler makes for extended resources of the pod, None if it makes none."""
        if node is None or pod.needs is None or not self.extended_resources(pod.needs):
            return None
        spec = _spec(pod.needs)
        return self._extended.claim(pod.namespace, spec, self._extended.requested_by(spec), node.allocatable)

    def _predict(
        self, node: Node | None, claims: list[ResourceClaim], work: Work
    ) -> dict[str, tuple[DeviceRequestAllocationResult, ...]] | ClaimedDevices:
        if node is None:
            return ClaimedDevices(problem="the node has no Node object")
        if self.features is None:
            return ClaimedDevices(problem="the version of kube-scheduler is not known yet")
        if self._over:
            over = self._over.values()
            if "" in over:
                return ClaimedDevices(
                    problem=f"devices and claims take more than the {self._most_bytes >> 20} MiB that are kept"
                )
            if node.name in over:
                return ClaimedDevices(
                    problem=f"the ResourceSlices of the node take more than the {_MOST_SHARE >> 20} MiB that are kept"
                )
        found = allocate(
            node, claims, self._inventory, self._classes, self._allocated, self.features, self._selectors, work
        )
        match found:
            case Allocation():
                return {
                    claim.key: tuple([_result(device, f"{claim.key} {at}") for at, device in enumerate(devices)])
                    for claim, devices in zip(claims, found.claims, strict=True)
                }
            case NoFit():
                problem = f"kube-scheduler is predicted to allocate nothing: {found.reason}"
                # An error that ends the attempt does not depend on which devices are allocated.
                return ClaimedDevices(problem=problem, is_short=not found.ends_attempt)
            case Unknown():
                return ClaimedDevices(problem=f"not modelled: {found.feature}")

    def _located(self, devices: Iterable[DeviceID], node: str) -> tuple[ClaimedDevice, ...]:
        return tuple([ClaimedDevice(device, self.location(device, node)) for device in devices])

    # Assumed allocations

    def assume(self, uid: str, node: str, results: Mapping[str, tuple[DeviceRequestAllocationResult, ...]]) -> None:
        """Expects the allocation of a pod's claims on a node: kube-scheduler is predicted to have made the allocation,
        and writes it before the bind."""
        self.forget(uid)
        waiting = {key: part for key, part in results.items() if self._is_waiting(key)}
        if not waiting:
            return
        self._assumed[uid] = _Assumed(node, waiting)
        for part in waiting.values():
            self._hold(part)
        self.changed(node, False)

    def forget(self, uid: str) -> None:
        """Ends the assumed allocation of a pod, if it has one."""
        assumed = self._assumed.pop(uid, None)
        if assumed is not None:
            for part in assumed.results.values():
                self._release(part)
            self.changed(assumed.node, True)

    def _is_waiting(self, key: str) -> bool:
        kept = self._claims.get(key)
        if kept is None and key.endswith(f"/{EXTENDED_NAME}"):
            return True
        return kept is not None and kept.claim.status.allocation is None

    def _settle(self, key: str, results: Sequence[DeviceRequestAllocationResult] | None = None) -> None:
        """Ends the assumed allocations of a claim whose status has an allocation with these `results`, or which is
        gone."""
        self._as_predicted.pop(key)
        for uid, assumed in list(self._assumed.items()):
            part = assumed.results.pop(key, None)
            if not assumed.results:
                del self._assumed[uid]
            if part is None:
                continue
            self._release(part)
            self.changed(assumed.node, True)
            if results is not None:
                self._compare(key, assumed.node, part, results)

    def _settle_extended(self, claim: ResourceClaim, results: Sequence[DeviceRequestAllocationResult]) -> None:
        """Ends the assumed allocation of the claim that kube-scheduler has made for extended resources of a pod."""
        provisional = f"{claim.metadata.namespace}/{EXTENDED_NAME}"
        for owner in claim.metadata.ownerReferences or ():
            assumed = self._assumed.get(owner.uid)
            part = None if assumed is None else assumed.results.pop(provisional, None)
            if assumed is not None and part is not None:
                if not assumed.results:
                    del self._assumed[owner.uid]
                self._release(part)
                self.changed(assumed.node, True)
                if results:
                    self._compare(claim.key, assumed.node, part, results)

    def _compare(
        self,
        key: str,
        node: str,
        predicted: Sequence[DeviceRequestAllocationResult],
        actual: Sequence[DeviceRequestAllocationResult],
    ) -> None:
        if all(self.location(result.id, node) is None for result in actual):
            self.predictions["elsewhere"] += 1
            return
        is_right = _devices(predicted) == _devices(actual)
        self.predictions["right" if is_right else "wrong"] += 1
        if is_right:
            self._as_predicted.put(key, None)

    # Objects

    def put_slice(self, item: Sized[ResourceSlice]) -> None:
        """Adds or replaces a slice."""
        self.drop_slice(item.name)
        spec = item.item.spec
        node, pool = spec.nodeName or "", (spec.driver, spec.pool.name)
        if node and self._shares[f"node {node}"] + item.size > _MOST_SHARE:
            self._over[f"slice {item.name}"] = node
            self._note(node)
            return
        if not self._keeps(f"slice {item.name}", item.size):
            return
        self._shares[f"node {node}"] += item.size
        locations = {device.name: location(device.attributes or {}, spec.driver) for device in spec.devices or ()}
        self._slices[item.name] = _Slice(node, pool, locations, item.size)
        self._slices_of_pool.setdefault(pool, set()).add(item.name)
        if node:
            self._slices_by_node.setdefault(node, set()).add(item.name)
        self._inventory.put(item.item)
        self._note(node)

    def drop_slice(self, name: str) -> None:
        """Removes a slice, if it is there."""
        over = self._over.pop(f"slice {name}", "")
        if over:
            self._note(over)
        kept = self._slices.pop(name, None)
        if kept is None:
            return
        self.bytes -= kept.size
        _take(self._shares, f"node {kept.node}", kept.size)
        _discard(self._slices_of_pool, kept.pool, name)
        if kept.node:
            _discard(self._slices_by_node, kept.node, name)
        self._inventory.remove(name)
        self._note(kept.node)

    def put_claim(self, item: Sized[ResourceClaim]) -> None:
        """Adds or replaces a claim. A version that is older than the known version changes nothing: a bind may have
        read a newer version than the watch."""
        claim, key = item.item, item.item.key
        before = self._claims.get(key)
        if before is not None and before.claim.metadata.uid == claim.metadata.uid:
            if _version(claim) < _version(before.claim):
                return
            # The spec of a claim cannot change.
            digest = before.digest
        else:
            digest = blake2b(_encode([claim.spec, claim.not_modelled]), digest_size=16).digest()
        self._forget_claim(key)
        claim, size, spec_size = self._share(claim)
        if not self._keeps(f"claim {key}", size):
            return
        self._shares[f"namespace {claim.metadata.namespace}"] += spec_size
        self._claims[key] = _Claim(claim, size, spec_size, digest)
        results = _results(claim)
        self._hold(results)
        self._users.put(claim)
        was = () if before is None else _results(before.claim)
        if was == results and before is not None and before.claim.status.reservedFor != claim.status.reservedFor:
            # Which pods have to leave before the devices are free.
            self._note_results(results, is_better=False)
        if was != results:
            self._settle(key, results or None)
            if _is_extended(claim):
                self._settle_extended(claim, results)
            self._note_results((*was, *results), is_better=not results)

    def _share(self, claim: ResourceClaim) -> tuple[ResourceClaim, int, int]:
        """Returns what is kept of a claim by the share of its namespace, and the sizes of it and of the spec in it."""
        metadata, spec = claim.metadata, len(_encode([claim.spec, claim.not_modelled]))
        rest = len(_encode([metadata, claim.status]))
        namespace = f"namespace {metadata.namespace}"
        extra = len(_encode([metadata.annotations, metadata.ownerReferences]))
        if self._shares[namespace] + spec + extra <= _MOST_SHARE:
            return claim, spec + rest, spec + extra
        bare = msgspec.structs.replace(metadata, annotations=None, ownerReferences=None)
        why = f"spec beyond the {_MOST_SHARE >> 20} MiB that are kept of a namespace"
        return ResourceClaim(bare, status=claim.status, not_modelled=(why,)), rest - extra, 0

    def drop_claim(self, key: str) -> None:
        """Removes a claim, if it is there."""
        self._over.pop(f"claim {key}", None)
        before = self._forget_claim(key)
        self._settle(key)
        if before is not None:
            self._note_results(_results(before.claim), is_better=True)

    def _forget_claim(self, key: str) -> _Claim | None:
        self._over.pop(f"claim {key}", None)
        before = self._claims.pop(key, None)
        if before is not None:
            self.bytes -= before.size
            _take(self._shares, f"namespace {before.claim.metadata.namespace}", before.spec_size)
            self._release(_results(before.claim))
            self._users.drop(before.claim)
        return before

    def put_class(self, item: Sized[DeviceClass]) -> None:
        """Adds or replaces a class."""
        self.drop_class(item.name)
        if self._keeps(f"class {item.name}", item.size):
            self._classes[item.name] = item.item
            self._class_sizes[item.name] = item.size
            self._note_classes()

    def drop_class(self, name: str) -> None:
        """Removes a class, if it is there."""
        self._over.pop(f"class {name}", None)
        if self._classes.pop(name, None) is not None:
            self.bytes -= self._class_sizes.pop(name)
            self._note_classes()

    def _note_classes(self) -> None:
        classes = self._classes.values()
        self._extended = ExtendedResources(classes)
        named = (name for item in classes for name in (CLASS_PREFIX + item.name, item.spec.extendedResourceName))
        self._backed = frozenset([name for name in named if name is not None])
        self._note("")

    def _left_out(self, kind: str) -> Iterator[str]:
        return (what.removeprefix(f"{kind} ") for what in self._over if what.startswith(f"{kind} "))

    def _keeps(self, what: str, size: int) -> bool:
        if self.bytes + size > self._most_bytes:
            self._over[what] = ""
            return False
        self.bytes += size
        return True

    def _hold(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        for result in results:
            self._holders[result.id, result.shareID] += not result.adminAccess
            if self._holders[result.id, result.shareID] == 1:
                self._allocated.add((result,))

    def _release(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        for result in results:
            key = result.id, result.shareID
            self._holders[key] -= not result.adminAccess
            if self._holders[key] <= 0:
                del self._holders[key]
                self._allocated.remove((result,))

    def _note_results(self, results: Iterable[DeviceRequestAllocationResult], *, is_better: bool) -> None:
        pools = {(result.driver, result.pool) for result in results}
        for node in {self._slices[name].node for pool in pools for name in self._slices_of_pool.get(pool, ())}:
            self._note(node, is_better=is_better)

    def _note(self, node: str, *, is_better: bool = True) -> None:
        for name in (node,) if node else list(self._slices_by_node):
            self.changed(name, is_better)


def _is_extended(claim: ResourceClaim) -> bool:
    """Returns whether kube-scheduler has made the claim for extended resources of a pod."""
    return (claim.metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM) == "true"


def _spec(needs: Needs) -> Spec:
    """Returns the containers of a pod with their requests."""
    containers = [
        (
            container.kind,
            Container(
                container.name,
                Resources({**container.requests}),
                restartPolicy="Always" if container.kind == "sidecar" else None,
            ),
        )
        for container in needs.containers
    ]
    return Spec(
        tuple([container for kind, container in containers if kind == "app"]),
        tuple([container for kind, container in containers if kind != "app"]),
    )


def _results(claim: ResourceClaim) -> tuple[DeviceRequestAllocationResult, ...]:
    allocation = claim.status.allocation
    return () if allocation is None else allocation.devices.results or ()


def _is_available(claim: ResourceClaim, node: Node) -> bool:
    """Returns whether a node can use the devices of an allocated claim."""
    allocation = claim.status.allocation
    return allocation is None or allocation.nodeSelector is None or selects(allocation.nodeSelector, node)


def _result(device: AllocatedDevice, share: str) -> DeviceRequestAllocationResult:
    """Returns the device as the status of its claim will have it; a shared device under the provisional ID `share`."""
    driver, pool, name = device.id
    consumed = None if device.consumed is None else {key: f"{nano}n" for key, nano in device.consumed.items()}
    return DeviceRequestAllocationResult(
        device.request,
        driver,
        pool,
        name,
        adminAccess=device.admin_access or None,
        shareID=None if consumed is None else share,
        consumedCapacity=consumed,
    )


def _devices(results: Iterable[DeviceRequestAllocationResult]) -> list[tuple[str, DeviceID]]:
    return [(result.request, result.id) for result in results]


def _version(claim: ResourceClaim) -> int:
    return digits.natural(claim.metadata.resourceVersion, digits.UINT64) or 0


def _take(shares: Counter[str], name: str, size: int) -> None:
    shares[name] -= size
    if shares[name] <= 0:
        del shares[name]


def _discard(sets: dict[Any, set[str]], key: Any, name: str) -> None:
    names = sets[key]
    names.discard(name)
    if not names:
        del sets[key]
