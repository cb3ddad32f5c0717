"""The devices of a pod's claims (DRA) on a node, their NUMA nodes, and what they demand of a steered pod.

The kubelet places a pod without regard to its claims. So devices that are chosen here are chosen for the NUMA nodes
where the kubelet will have the pod; of a pod that can be steered, for any NUMA node that takes it; of a pod that gets
no CPUs or memory of its own, for any NUMA node, so that all its devices are near each other. Only if these have no
devices for the claims, others are taken.

Invariant: cached devices are used only until the node, or a claim on it, changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from topowise.bounded import Bounded
from topowise.claimed_devices import NumaNodes
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import union
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.ledger.gates.option import Cluster
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import CacheUntilChange
from topowise_scheduler.options.claims.annotation import NO_DEMAND, Alignment
from topowise_scheduler.options.claims.devices import ClaimedDevices, Taken, numa_nodes_of
from topowise_scheduler.options.claims.work import MOST_UNITS, Work
from topowise_scheduler.options.steering.annotation import NO_DEMAND as NOT_STEERED
from topowise_scheduler.options.steering.choice import Demand, takers, views_of
from topowise_scheduler.options.steering.gate import Markers, Source, may_be_steered
from topowise_scheduler.verdicts.kube_scheduler import Node
from topowise_scheduler.verdicts.refusals import Refusal

if TYPE_CHECKING:
    # At run time most installations do not need these.
    from topowise_scheduler.options.claims.ledger import Claims, Rank
    from topowise_scheduler.options.claims.objects import DeviceID

_MAX_NUMA_BYTES = 4 << 20
_MOST_BYTES: Final = 1 << 20
# Of a call of `filter`: a choice and its trials take up to a millisecond where no two nodes are alike.
_MOST_NEW: Final = 200
# Of the work of each choice (claims/work.py), the part that it does not take from the other choices of a call: two
# selectors of 20 steps for 40 devices.
_OWN_UNITS: Final = 2_000


class ClaimSettings(NamedTuple):
    """`node_of` returns a Node object. `default` is the alignment of pods without the annotation, `by_namespace` the
    default of some namespaces."""

    claims: Claims
    node_of: Callable[[str], Node | None]
    default: Alignment = "prefer"
    by_namespace: Mapping[str, Alignment] = {}


class Claimed(NamedTuple):
    """The devices of a pod's claims on a node, and their NUMA nodes. Devices without a NUMA node have none."""

    devices: ClaimedDevices
    near: frozenset[int] = frozenset()


_LATER: Final = Claimed(ClaimedDevices(problem="a call examines a limited number of nodes, with limited work"))


class ClaimedNodes(Source):
    """See `Source` for what the devices demand of a steered pod. `markers`: of a Node that can steer."""

    def __init__(self, cluster: Cluster, settings: ClaimSettings, markers: Markers) -> None:
        self._node_states = cluster.node_states
        self._ignored = cluster.ignored
        self._pods = cluster.pods
        self._markers = markers
        self.settings = settings
        self._checked_at = -1
        self._is_limited = False
        self._left = 0
        self._own_units = 0
        self._shared_units = 0
        self._left_out: set[str] = set()
        self._known = CacheUntilChange[Claimed, tuple[str, bytes, int | None, frozenset[str]]](
            cluster.node_states, lambda _: 4096
        )
        # By the number of the node's state, and the requests of the pod.
        self._placed: Bounded[tuple[int, bytes], Sequence[frozenset[int] | None]]
        self._placed = Bounded(_MOST_BYTES, lambda key, places: 300 + len(key[1]) + 300 * len(places))
        self._has_free = CacheUntilChange[bool, tuple[str, frozenset[str]]](cluster.node_states)
        self._numa: Bounded[tuple[tuple[int, ...], str], NumaNodes]
        self._numa = Bounded(_MAX_NUMA_BYTES, lambda key, _: 10 * len(key[1]))

    def alignment(self, record: PodRecord) -> Alignment:
        """Returns how near a pod with claims has to be to their devices."""
        demanded = record.demand(NO_DEMAND).alignment
        return demanded or self.settings.by_namespace.get(record.namespace, self.settings.default)

    def applies(self, record: PodRecord) -> bool:
        """Returns whether the pod has claims or extended resources that a class backs."""
        return bool(record.claims or self.settings.claims.extended_resources(record.needs))

    def is_required(self, record: PodRecord) -> bool:
        """Returns whether the pod has claims, and must be near their devices."""
        return self.applies(record) and self.alignment(record) == "require"

    def digest(self, record: PodRecord) -> bytes:
        """Returns a key that is equal for pods whose claims get the same devices on the same node."""
        self._forget_unexpected()
        return self.settings.claims.digest(record.uid, record.namespace, record.claims)

    @contextmanager
    def limited(self, most: int | None = None) -> Iterator[set[str]]:
        """Limits on how many nodes devices are chosen anew, and the work of all choices together. Yields the nodes
        that are left out so far: their devices are unknown, which is not kept."""
        self._is_limited = True
        self._left = _MOST_NEW if most is None else most
        self._own_units, self._shared_units = _OWN_UNITS, MOST_UNITS
        try:
            yield self._left_out
        finally:
            self._is_limited = False
            self._left_out.clear()

    def refill(self) -> bool:
        """Lets as many nodes be examined as at first, with the work that is left. Returns whether work is left."""
        self._left_out.clear()
        self._left, self._own_units = _MOST_NEW, 0
        return self._shared_units > 0

    def is_left_out(self, name: str) -> bool:
        """Returns whether the devices of a node are unknown by the limit."""
        return name in self._left_out

    def freeing(self, record: PodRecord, leaving: Collection[str]) -> frozenset[str]:
        """Returns those of the pods `leaving` (UIDs) on which the devices of the pod's claims depend."""
        if not leaving:
            return frozenset()
        frees = self.settings.claims.frees
        return frozenset([uid for uid in leaving if uid == record.uid or frees(uid)])

    def of(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Claimed:
        """Returns the devices of a pod's claims on a node, once the pods `leaving` have left; a node without a report
        has no NUMA nodes."""
        node_state = self._node_states.of(name)
        if node_state is None or node_state.kubelet is None:
            # Such a node notes no changes, so nothing is kept.
            return Claimed(self._devices(record, name, iter((_any,)), leaving))
        # Extended resources are in the key of the admission.
        wanted = record.demand(NOT_STEERED).numa_node
        key = (name, self.digest(record) + record.admission_key, wanted, self.freeing(record, leaving))
        known = self._known.get(key)
        if known is not None:
            return known
        known = self._limited(record, name, leaving) if self._is_limited else self._chosen(record, name, leaving)
        if known is None:
            self._left_out.add(name)
            return _LATER
        self._known.put(key, known)
        return known

    def _limited(self, record: PodRecord, name: str, leaving: Collection[str]) -> Claimed | None:
        """Returns the devices within the limits, None if they leave the node out."""
        # All choices of a call are for the same claims: after long searches the others are likely to be long.
        if self._left <= 0 or self._shared_units <= 0 or name in self._left_out:
            return None
        self._left -= 1
        units = self._shared_units
        spent = Work(self._own_units + units)
        claimed = self._chosen(record, name, leaving, spent)
        self._shared_units = max(0, min(units, spent.left))
        # With the work of all choices a node is as known as it can be.
        return claimed if spent.left >= 0 or units == MOST_UNITS else None

    def _chosen(self, record: PodRecord, name: str, leaving: Collection[str], work: Work | None = None) -> Claimed:
        ignored = frozenset((*self._ignored.on(record.uid, record.priority, name), *leaving))
        ranks = self._ranks(record, name, lambda: self._node_states.states(name, {record.uid, *ignored}))
        return self._located(name, self._devices(record, name, ranks, leaving, work=work))

    def once_placed(
        self,
        record: PodRecord,
        name: str,
        states: Sequence[Kubelet],
        leaving: Collection[str],
        taken: Taken = (),
        *,
        is_new: bool = False,
    ) -> Claimed:
        """Returns the devices of a pod's claims on a node in these states, once the pods `leaving` have left and these
        devices are `taken`; `is_new`: on a new node that is like this node. The answer is not kept."""
        ranks = self._ranks(record, name, lambda: states)
        return self._located(name, self._devices(record, name, ranks, leaving, taken, is_new=is_new))

    def _devices(
        self,
        record: PodRecord,
        name: str,
        ranks: Iterator[Rank],
        leaving: Collection[str],
        taken: Taken = (),
        work: Work | None = None,
        *,
        is_new: bool = False,
    ) -> ClaimedDevices:
        node = self.settings.node_of(name)
        return self.settings.claims.devices(record, node, name, leaving, taken, work, ranks, is_new=is_new)

    def _ranks(self, record: PodRecord, name: str, states: Callable[[], Iterable[Kubelet]]) -> Iterator[Rank]:
        """Yields how good devices are for a pod on a node: on some NUMA nodes where the pod may be, and then on any.
        `states` returns the possible states of the node without the pod."""
        possible = list(states())
        if not possible or record.requests is None:
            yield _any
            return
        numa_nodes = self._numa_nodes(name, possible[0])
        location = self.settings.claims.location

        def near(device: DeviceID) -> int | None:
            where = location(device, name)
            return None if where is None else numa_nodes.of(where)

        alone = placed_by(possible[0], record) or frozenset()
        for target in self._targets(record, name, possible, alone):
            yield partial(_on, target, near, None)
        yield partial(_on, alone, near, 1)

    def _targets(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], alone: frozenset[int]
    ) -> Iterator[frozenset[int]]:
        """Yields NUMA nodes where the pod may be, the best first; the kubelet alone would take `alone`."""
        wanted = record.demand(NOT_STEERED).numa_node
        if wanted is not None:
            yield frozenset((wanted,))
            return
        if record.steered is None and may_be_steered(self._markers, record, name):
            for numa in takers(states, views_of(record)):
                yield frozenset((numa,))
        if alone:
            yield alone
        else:
            # A pod that gets nothing from the managers of its kubelet: its devices are near each other.
            yield from (frozenset((numa,)) for numa in self._by_free_devices(name, states[0].node_ids))

    def _by_free_devices(self, name: str, numa_nodes: Sequence[int]) -> list[int]:
        """Returns the NUMA nodes with free devices, those with the fewest first: the others stay whole."""
        free = {
            numa: sum(not is_allocated for devices in by_driver.values() for _, is_allocated in devices)
            for numa, by_driver in self.devices_by_numa_node(name).items()
        }
        return sorted([numa for numa in numa_nodes if free.get(numa)], key=lambda numa: free[numa])

    def follows_kubelet(self, record: PodRecord, name: str) -> bool:
        """Returns whether the devices have NUMA nodes, and the kubelet alone decides whether the pod is near them."""
        is_steered = record.steered is not None or may_be_steered(self._markers, record, name)
        return not is_steered and bool(self.of(record, name).near)

    def placements(self, record: PodRecord, name: str, ignored: Collection[str]) -> Sequence[frozenset[int] | None]:
        """Returns the NUMA nodes on which the kubelet places a pod, in each possible state of the node without the pods
        `ignored`: None where it refuses the pod."""
        number = 0 if ignored else self._node_states.number(name)

        def places() -> Sequence[frozenset[int] | None]:
            return [placed_by(state, record) for state in self._node_states.states(name, {record.uid, *ignored})]

        return self._placed.once((number, record.admission_key), places) if number else places()

    def key(self, record: PodRecord, name: str, leaving: Collection[str]) -> tuple[frozenset[int], bool] | None:
        """See `Source`."""
        return (self.of(record, name, leaving).near, self.is_required(record)) if self.applies(record) else None

    def requires_label(self, record: PodRecord, name: str) -> bool:
        """See `Source`."""
        return self.is_required(record)

    def always_steers(self, record: PodRecord) -> bool:
        """See `Source`. Preferred or required, the bind steers the pod to the devices of its claims."""
        return self.applies(record)

    def may_preempt(self, record: PodRecord) -> bool:
        """See `Source`."""
        return self.is_required(record)

    def demands(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], leaving: Collection[str]
    ) -> Iterator[Demand]:
        """See `Source`.

        A pod with devices on several NUMA nodes may need several as well, so nothing is required of it.
        """
        near = self.of(record, name, leaving).near if self.applies(record) else frozenset[int]()
        if not near:
            return
        is_single = len(near) == 1
        required = is_single and self.is_required(record)
        # Without a label the kubelet may take another NUMA node than predicted.
        yield demand_of(near)._replace(is_required=required, needs_label=is_single)

    def has_free_devices(self, name: str) -> bool:
        """Returns whether a node has a device in its slices that no claim has."""
        if name not in self.settings.claims.nodes:
            return False
        self._forget_unexpected()
        key = (name, frozenset[str]())
        has_free = self._has_free.get(key)
        if has_free is None:
            devices = self.settings.claims.devices_of_node(name)
            has_free = any(not is_allocated for _, _, is_allocated in devices)
            self._has_free.put(key, has_free)
        return has_free

    def devices_by_numa_node(self, name: str) -> dict[int, dict[str, list[tuple[str, bool]]]]:
        """Returns by NUMA node and driver the devices of a node that claims can have, each with whether a claim has
        it."""
        node_state, found = self._node_states.of(name), dict[int, dict[str, list[tuple[str, bool]]]]()
        if node_state is None or node_state.kubelet is None:
            return found
        numa_nodes = self._numa_nodes(name, node_state.kubelet)
        for device, where, is_allocated in self.settings.claims.devices_of_node(name):
            node = numa_nodes.of(where)
            if node is not None:
                found.setdefault(node, {}).setdefault(device.driver, []).append((device.device, is_allocated))
        return found

    def assume(self, record: PodRecord, name: str) -> None:
        """Expects the chosen devices of a pod's claims on the node that the pod is expected on."""
        if self.applies(record):
            allocations = self.of(record, name).devices.allocations
            if allocations:
                self.settings.claims.assume(record.uid, name, allocations)

    def _forget_unexpected(self) -> None:
        """Ends assumed allocations of pods that are not expected on the node any more."""
        # A pod that leaves a node changes the node.
        if self._node_states.changes == self._checked_at:
            return
        for uid, name in self.settings.claims.assumed():
            if self._pods.of(uid).node != name:
                self.settings.claims.forget(uid)
        self._checked_at = self._node_states.changes

    def _located(self, name: str, devices: ClaimedDevices) -> Claimed:
        node_state = self._node_states.of(name)
        if node_state is None or node_state.kubelet is None:
            return Claimed(devices)
        numa_nodes = self._numa_nodes(name, node_state.kubelet)
        located = [numa_nodes.of(device.location) for device in devices.devices if device.location is not None]
        return Claimed(devices, frozenset([node for node in located if node is not None]))

    def _numa_nodes(self, name: str, kubelet: Kubelet) -> NumaNodes:
        node_state = self._node_states.of(name)
        report = None if node_state is None else node_state.report
        key = tuple(kubelet.node_ids), "" if report is None else report.pcie_roots
        return self._numa.once(key, lambda: numa_nodes_of(*key))


def placed_by(state: Kubelet, record: PodRecord) -> frozenset[int] | None:
    """Returns the NUMA nodes of the pod's exclusive resources, None if the kubelet refuses the pod."""
    view = record.view(state)
    admission, after = trial(state, view)
    return nodes_of(after, view.uid) if admission.admitted else None


def nodes_of(kubelet: Kubelet, uid: str) -> frozenset[int]:
    """Returns the NUMA nodes of the exclusive resources of a pod that is on the node."""
    return frozenset(kubelet.ids(union(where.mask for where in allocated_nodes(kubelet, uid).values())))


def _any(device: DeviceID) -> int:
    return 0


def _on(
    target: frozenset[int], near: Callable[[DeviceID], int | None], elsewhere: int | None, device: DeviceID
) -> int | None:
    """Returns the rank of a device: 0 on these NUMA nodes and without a NUMA node."""
    numa = near(device)
    return 0 if numa is None or not target or numa in target else elsewhere


def demand_of(near: frozenset[int]) -> Demand:
    """Returns the demand to be near devices on these NUMA nodes."""
    return Demand(near, "the devices of its claims", refusal=Refusal.CLAIMS_APART)
