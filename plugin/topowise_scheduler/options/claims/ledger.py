"""What the cluster has of devices and claims: ResourceSlices, ResourceClaims and DeviceClasses, as the API server has
them, and the allocations that are decided here but not written yet.

Devices of some drivers are allocated here and by nobody else. Claims that no device of these drivers could satisfy are
kube-scheduler's, and unknown until it has allocated them.

A ResourceClaimTemplate is kept as the claim that is made from it, under the name "template/". So a pod whose claims are
not generated yet is judged by what it will claim.

Invariant: a device is allocated exactly while the status of a claim, or an assumed allocation, names the device without
admin access. An assumed allocation of a claim ends with the first status of the claim that has an allocation.

A namespace, and a node with its slices, has a share of the memory. Of a claim beyond it only the allocation is kept, so
that the choice for all other claims stays right, and the claim itself is unknown; a node with a slice beyond its share
is unknown. Objects beyond the bound of all are not kept; then nothing is allocated, as any device may be taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from topowise import digits
from topowise.claimed_devices import Location, location
from topowise.placement import ALLOCATED_FOR
from topowise.pods import Needs
from topowise_scheduler.options.claims.allocated import AllocatedDevices, ClaimUsers, user_of
from topowise_scheduler.options.claims.allocator import Allocation, NoFit, Unknown, allocate
from topowise_scheduler.options.claims.devices import ClaimedDevice, ClaimedDevices, Taken, all_results
from topowise_scheduler.options.claims.inventory import Inventory
from topowise_scheduler.options.claims.objects import (
    EXTENDED_RESOURCE_CLAIM,
    AllocationResult,
    DeviceClass,
    DeviceID,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceSlice,
)
from topowise_scheduler.options.claims.results import with_share_ids
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.verdicts.kube_scheduler import Node, selects

MOST_BYTES: Final = 256 << 20
"""Of all objects: 5,000 nodes with 16 devices each have 80 MB of JSON."""
# Of the specs of a namespace's claims, and of a node's slices: 10,000 claims of 400 bytes, 3,000 devices of 1.3 kB.
_MOST_SHARE: Final = 4 << 20
CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Of the implicit extended resource of each class (ResourceDeviceClassPrefix)."""
Rank = Callable[[DeviceID], int | None]
"""Returns how good a device is for a pod, 0 for the best, None for a device that it is not to have."""


def any_device(device: DeviceID) -> int:
    """Returns the rank of devices that are all as good."""
    return 0


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


class Assumed(NamedTuple):
    """Allocations of the claims of a pod on a node, by claim, that the API server does not have yet."""

    node: str
    allocations: dict[str, AllocationResult]


class ClaimingPod(Protocol):
    """What decides the claims of a pod; `claims` are their names, "template/number" for a claim that is not generated
    yet."""

    @property
    def uid(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def claims(self) -> tuple[str, ...]: ...

    @property
    def needs(self) -> Needs | None: ...


_OF_OTHERS: Final = "kube-scheduler allocates devices of drivers that are not listed in resourceClaims.drivers"


class Claims:
    """`drivers` are the drivers whose devices are allocated here. Not thread-safe."""

    def __init__(self, drivers: Iterable[str] = (), *, most_bytes: int = MOST_BYTES) -> None:
        self.drivers = frozenset(drivers)
        self.changed: Callable[[str, bool], None] = lambda node, is_better: None
        """Receives each node whose devices, or their allocation, have changed, and whether more devices are free."""
        self.arrivals = 0
        """How many claims have come so far."""
        self._most_bytes = most_bytes
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
        self._backed: frozenset[str] = frozenset()
        self._allocated = AllocatedDevices()
        self._holders: Counter[tuple[DeviceID, str | None]] = Counter()
        self._users = ClaimUsers()
        # Claims that this service has allocated.
        self._marked: set[str] = set()
        self._assumed: dict[str, Assumed] = {}
        # The same by claim and UID.
        self._assumed_claims: dict[str, dict[str, Assumed]] = {}

    @property
    def nodes(self) -> Collection[str]:
        """Returns the nodes with ResourceSlices of their own."""
        return self._slices_by_node.keys()

    def assumed(self) -> list[tuple[str, str]]:
        """Returns UID and node of the pods with an assumed allocation."""
        return [(uid, assumed.node) for uid, assumed in self._assumed.items()]

    def assumed_of(self, uid: str) -> Assumed | None:
        """Returns the assumed allocation of a pod, None if it has none."""
        return self._assumed.get(uid)

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

    def _known(self, key: str) -> _Claim | None:
        """Returns a claim by namespace/name, or the claim that will be made by namespace/template/number."""
        kept = self._claims.get(key)
        if kept is None and key.count("/") > 1:
            kept = self._claims.get(key[: key.rindex("/") + 1])
            if kept is not None:
                metadata = replace(kept.claim.metadata, name=key.partition("/")[2])
                kept = kept._replace(claim=replace(kept.claim, metadata=metadata))
        return kept

    def marked(self) -> Iterator[tuple[ResourceClaim, str, str]]:
        """Yields the claims that this service has allocated and that no other pod uses, with name and UID of the pod;
        the name is "" if the claim is not reserved for it."""
        for key in self._marked:
            claim = self._claims[key].claim
            user = user_of(claim)
            if user is not None:
                yield claim, user.name, user.uid

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
        if needs is None:
            return ()
        return tuple([name for name, amount in needs.requests.items() if amount and name in self._backed])

    # Choices

    def digest(self, uid: str, namespace: str, names: Iterable[str]) -> bytes:
        """Returns a key that is equal for pods of equal requests whose claims get the same devices on the same node."""
        # The devices of an assumed allocation are taken for all other pods.
        parts = [uid.encode() if uid in self._assumed else b""]
        for name in names:
            kept = self._known(f"{namespace}/{name}")
            if kept is None:
                parts.append(b"-")
            elif kept.claim.status.allocation is None:
                assumed_for = ",".join(self._assumed_claims.get(f"{namespace}/{name}", ()))
                parts.append(kept.digest + assumed_for.encode())
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
        taken: Taken = (),
        work: Work | None = None,
        ranks: Iterable[Rank] = (any_device,),
        *,
        is_new: bool = False,
    ) -> ClaimedDevices:
        """Returns the devices that the claims of a pod have, or get, on a node, once the pods `leaving` (UIDs) have
        left and these devices are `taken`. If the pod itself leaves, the answer is for its replacement, whose claims
        are made anew. The first of the `ranks` by which all claims can be allocated decides. A choice whose `work` is
        spent has a problem.

        `is_new`: on a node that the cluster does not have yet. It has devices as the slices of this node name, and of
        these only those `taken` are not free."""
        freed = {claim.key: claim for claim in self._users.freed(leaving)}
        parted = self._parted(pod, node, leaving, taken, freed, is_new=is_new)
        if isinstance(parted, ClaimedDevices):
            return parted
        allocated, waiting, is_written = parted
        if not waiting:
            return ClaimedDevices(self._located(allocated, name), is_allocated=is_written)
        if is_new and name not in self._slices_by_node:
            return ClaimedDevices(problem="no ResourceSlice says which devices a new node has")
        assumed = None if is_new or pod.uid in leaving else self._assumed.get(pod.uid)
        if assumed is not None and assumed.node == name:
            chosen = {claim.key: assumed.allocations.get(claim.key) for claim in waiting}
            allocations = {key: allocation for key, allocation in chosen.items() if allocation is not None}
            if len(allocations) == len(waiting):
                return self._chosen(allocated, allocations, name)
        held = [result for _, allocation in taken for result in allocation.devices.results or ()]
        if is_new:
            ranks = (partial(self._of_node, name, rank) for rank in ranks)
            changes = self._all_free_but(held)
        else:
            # What is assumed for the pod itself was for other claims, or for another node.
            changes = self._as_if(self._freed_results(freed.values(), {*leaving, pod.uid}), held)
        with changes:
            choice = self._choose(pod.uid, node, waiting, ranks, work or Work())
        return choice if isinstance(choice, ClaimedDevices) else self._chosen(allocated, choice, name)

    def _shared(self, key: str, uid: str, leaving: Collection[str], taken: Taken) -> AllocationResult | None:
        """Returns what a claim without an allocation is expected to get for another pod, None if nothing is."""
        if uid in leaving or key.count("/") > 1:
            # Claims that are generated from a template belong to one pod.
            return None
        others = self._assumed_claims.get(key, {}).items()
        assumed = [assumed.allocations[key] for other, assumed in others if other != uid and other not in leaving]
        return next((allocation for claim, allocation in taken if claim == key), assumed[0] if assumed else None)

    def _parted(
        self,
        pod: ClaimingPod,
        node: Node | None,
        leaving: Collection[str],
        taken: Taken,
        freed: Collection[str],
        *,
        is_new: bool,
    ) -> tuple[list[DeviceID], list[ResourceClaim], bool] | ClaimedDevices:
        """Returns the devices that the claims of a pod have already, the claims without any, and whether all of these
        devices are written; or why the node has none for the pod, or why that is not known. `freed`: claims whose
        allocation ends with the pods that leave."""
        allocated: list[DeviceID] = []
        waiting: list[ResourceClaim] = []
        is_made, is_written = False, True
        for claim_name in pod.claims:
            key = f"{pod.namespace}/{claim_name}"
            kept = self._known(key)
            if kept is None:
                template, is_of_template, _ = claim_name.partition("/")
                return ClaimedDevices(
                    problem=f"ResourceClaim{'Template' * bool(is_of_template)} {template} is not known"
                )
            shared = None if kept.claim.status.allocation else self._shared(key, pod.uid, leaving, taken)
            if shared is not None:
                if node is not None and not is_new and not _is_usable(shared, node):
                    return ClaimedDevices(problem=f"ResourceClaim {claim_name} is for another node", is_short=True)
                allocated += [result.id for result in shared.devices.results or () if not result.adminAccess]
                is_written = False
            elif kept.claim.status.allocation is None or pod.uid in leaving:
                waiting.append(kept.claim)
            elif key in freed:
                return ClaimedDevices(
                    problem=f"ResourceClaim {claim_name} may be allocated anew once its pods have left"
                )
            elif node is not None and not _is_usable(
                kept.claim.status.allocation, replace(node, name="") if is_new else node
            ):
                return ClaimedDevices(problem=f"ResourceClaim {claim_name} has devices of other nodes", is_short=True)
            else:
                allocated += [result.id for result in _results(kept.claim) if not result.adminAccess]
            is_made |= (kept.claim.metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM) == "true"
        plugged = () if node is None else [name for name, amount in node.allocatable.items() if amount]
        if not is_made and any(name not in plugged for name in self.extended_resources(pod.needs)):
            return ClaimedDevices(problem="kube-scheduler makes a claim for extended resources of the pod")
        return allocated, waiting, is_written

    def _chosen(
        self, allocated: Sequence[DeviceID], allocations: Mapping[str, AllocationResult], name: str
    ) -> ClaimedDevices:
        added = [result.id for result in all_results(allocations) if not result.adminAccess]
        return ClaimedDevices(self._located([*allocated, *added], name), allocations=allocations)

    def _freed_results(
        self, freed: Iterable[ResourceClaim], leaving: Collection[str]
    ) -> list[DeviceRequestAllocationResult]:
        results = [result for claim in freed for result in _results(claim)]
        assumed = [self._assumed[uid].allocations for uid in leaving if uid in self._assumed]
        return results + [result for allocations in assumed for result in all_results(allocations)]

    @contextmanager
    def _as_if(
        self, freed: Sequence[DeviceRequestAllocationResult], taken: Sequence[DeviceRequestAllocationResult]
    ) -> Iterator[None]:
        """Changes which devices are allocated, for the time of a choice."""
        self._release(freed)
        self._hold(taken)
        try:
            yield
        finally:
            self._release(taken)
            self._hold(freed)

    @contextmanager
    def _all_free_but(self, taken: Sequence[DeviceRequestAllocationResult]) -> Iterator[None]:
        """Changes which devices are allocated to these, for the time of a choice."""
        before = self._allocated, self._holders
        self._allocated, self._holders = AllocatedDevices(), Counter()
        self._hold(taken)
        try:
            yield
        finally:
            self._allocated, self._holders = before

    def _choose(
        self, uid: str, node: Node | None, claims: Sequence[ResourceClaim], ranks: Iterable[Rank], work: Work
    ) -> dict[str, AllocationResult] | ClaimedDevices:
        if not self.drivers:
            return ClaimedDevices(problem="kube-scheduler has not allocated the claims yet")
        if node is None:
            return ClaimedDevices(problem="the node has no Node object", is_short=True)
        if self._over:
            over = self._over.values()
            if "" in over:
                problem = f"devices and claims take more than the {self._most_bytes >> 20} MiB that are kept"
                return ClaimedDevices(problem=problem, is_short=True)
            if node.name in over:
                problem = f"the ResourceSlices of the node take more than the {_MOST_SHARE >> 20} MiB that are kept"
                return ClaimedDevices(problem=problem, is_short=True)
        failed: NoFit | Unknown = NoFit("no device")
        for rank in ranks:
            found = self._allocate(node, claims, partial(self._own, rank), work)
            if isinstance(found, Allocation):
                return {
                    claim.key: with_share_ids(allocation, _provisional(f"{uid} {claim.key}"))
                    for claim, allocation in zip(claims, found.claims, strict=True)
                }
            failed = found
        if isinstance(failed, Unknown):
            # It may be a claim for devices of other drivers.
            return ClaimedDevices(problem=f"not known: {failed.feature}", is_short=work.left <= 0)
        if not any(isinstance(self._allocate(node, [claim], self._of_others, work), NoFit) for claim in claims):
            return ClaimedDevices(problem=_OF_OTHERS, is_short=work.left <= 0)
        return ClaimedDevices(problem=failed.reason, is_short=True)

    def _allocate(
        self, node: Node, claims: Sequence[ResourceClaim], rank: Rank, work: Work
    ) -> Allocation | NoFit | Unknown:
        return allocate(node, claims, self._inventory, self._classes, self._allocated, self._selectors, work, rank)

    def _own(self, rank: Rank, device: DeviceID) -> int | None:
        return rank(device) if device.driver in self.drivers else None

    def _of_node(self, name: str, rank: Rank, device: DeviceID) -> int | None:
        return None if self.location(device, name) is None else rank(device)

    def _of_others(self, device: DeviceID) -> int | None:
        return None if device.driver in self.drivers else 0

    def _located(self, devices: Iterable[DeviceID], node: str) -> tuple[ClaimedDevice, ...]:
        return tuple([ClaimedDevice(device, self.location(device, node)) for device in devices])

    # Assumed allocations

    def assume(self, uid: str, node: str, allocations: Mapping[str, AllocationResult]) -> None:
        """Expects the allocation of a pod's claims on a node, which is decided and about to be written."""
        waiting = {key: allocation for key, allocation in allocations.items() if self._is_waiting(key)}
        if self._assumed.get(uid) == Assumed(node, waiting):
            return
        self.forget(uid)
        if not waiting:
            return
        self._assumed[uid] = Assumed(node, waiting)
        for key in waiting:
            self._assumed_claims.setdefault(key, {})[uid] = self._assumed[uid]
        self._hold(all_results(waiting))
        self.changed(node, False)

    def forget(self, uid: str) -> None:
        """Ends the assumed allocation of a pod, if it has one."""
        assumed = self._assumed.pop(uid, None)
        if assumed is not None:
            for key in assumed.allocations:
                _drop(self._assumed_claims, key, uid)
            self._release(all_results(assumed.allocations))
            self.changed(assumed.node, True)

    def _is_waiting(self, key: str) -> bool:
        kept = self._known(key)
        return kept is not None and kept.claim.status.allocation is None

    def _settle(self, key: str) -> None:
        """Ends the assumed allocations of a claim whose status has an allocation, or which is gone."""
        for uid, assumed in self._assumed_claims.pop(key, {}).items():
            allocation = assumed.allocations.pop(key)
            if not assumed.allocations:
                del self._assumed[uid]
            self._release(allocation.devices.results or ())
            self.changed(assumed.node, True)

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
        self.arrivals += before is None
        self._forget_claim(key)
        claim, size, spec_size = self._share(claim)
        if not self._keeps(f"claim {key}", size):
            return
        self._shares[f"namespace {claim.metadata.namespace}"] += spec_size
        self._claims[key] = _Claim(claim, size, spec_size, digest)
        if ALLOCATED_FOR in (claim.metadata.annotations or {}):
            self._marked.add(key)
        results = _results(claim)
        self._hold(results)
        self._users.put(claim)
        was = () if before is None else _results(before.claim)
        if was == results and before is not None and before.claim.status.reservedFor != claim.status.reservedFor:
            # Which pods have to leave before the devices are free.
            self._note_results(results, is_better=False)
        if was != results:
            self._settle(key)
            self._note_results((*was, *results), is_better=not results)

    def _share(self, claim: ResourceClaim) -> tuple[ResourceClaim, int, int]:
        """Returns what is kept of a claim by the share of its namespace, and the sizes of it and of the spec in it."""
        metadata, spec = claim.metadata, len(_encode([claim.spec, claim.not_modelled]))
        rest = len(_encode([metadata, claim.status]))
        namespace = f"namespace {metadata.namespace}"
        extra = len(_encode([metadata.annotations, metadata.ownerReferences]))
        if self._shares[namespace] + spec + extra <= _MOST_SHARE:
            return claim, spec + rest, spec + extra
        mark = {name: uid for name, uid in (metadata.annotations or {}).items() if name == ALLOCATED_FOR}
        bare = replace(metadata, annotations=mark or None, ownerReferences=None)
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
        self._marked.discard(key)
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


def _results(claim: ResourceClaim) -> tuple[DeviceRequestAllocationResult, ...]:
    allocation = claim.status.allocation
    return () if allocation is None else allocation.devices.results or ()


def _is_usable(allocation: AllocationResult, node: Node) -> bool:
    """Returns whether a node can use the devices of an allocated claim."""
    return allocation.nodeSelector is None or selects(allocation.nodeSelector, node)


def _provisional(key: str) -> Callable[[], str]:
    """Returns what makes the IDs of shared devices until they are written, with random IDs."""
    numbers = count()
    return lambda: f"{key} {next(numbers)}"


def _version(claim: ResourceClaim) -> int:
    return digits.natural(claim.metadata.resourceVersion, digits.UINT64) or 0


def _take(shares: Counter[str], name: str, size: int) -> None:
    shares[name] -= size
    if shares[name] <= 0:
        del shares[name]


def _drop(by_claim: dict[str, dict[str, Assumed]], key: str, uid: str) -> None:
    del by_claim[key][uid]
    if not by_claim[key]:
        del by_claim[key]


def _discard(sets: dict[Any, set[str]], key: Any, name: str) -> None:
    names = sets[key]
    names.discard(name)
    if not names:
        del sets[key]
