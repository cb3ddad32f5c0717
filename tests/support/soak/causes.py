"""Why something went wrong, where there is a reason that nobody could have known better; "" where there is none.

The reasons are looked for in what truly happened: what the node, the API server and the service had at that moment.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from burst.checks import asks_for_devices
from burst.evidence import Scene
from sandbox.kubescheduler import fit
from sandbox.kubescheduler.attempt import Refused
from sandbox.kubescheduler.pod import PodInfo
from topowise import pods
from topowise_scheduler import refusals
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.memory_tables import MemoryTables

if TYPE_CHECKING:
    from soak.world import World

_BY_TEXT = {
    refusals.UNCERTAIN: "nobody knows yet where its newest pods lie",
    refusals.UNCONFIRMED: "its kubelet restarts",
    refusals.QUARANTINED: "its kubelet has refused such a pod, and no report has come since",
    refusals.TOO_SLOW: "its kubelet would take too long",
}
# A kubelet counts them where it looks for the fewest NUMA nodes, and refuses even who asks for 0 of a resource of which
# nothing is healthy. Neither List nor GetAllocatableResources has them.
_UNHEALTHY = "devices that are not healthy count for its kubelet, and no report tells of them"
_TWICE = "its kubelet has given a CPU to two pods, which no report can tell"
_UNREPORTED = "there was no report of its node, and who decided had started after it was deleted"
_SPREAD = "memory over several NUMA nodes is spread otherwise than predicted, and no report has come"
_UNHEARD = "a pod has ended, and the watch has not come"
_UNLISTED = "a pod was deleted while the watch was down, and may be one that the list did not have yet"
_PREFERRED = "a device plugin has chosen devices that it prefers, and others were left for the next container"
_OLD_REPORT = "an old report has pods that ended before the service started"
_DRAWN = "it hangs on which of several devices its kubelet happens to take"
_GIVEN_AGAIN = "its kubelet has restarted and given memory to init containers again, and no report has come since"
# Also where a watch has to be begun again.
_HEARING_S = 3.0
# From kube-scheduler's question to its decision.
_DECIDING_S = 0.1
_ENDED = ("Succeeded", "Failed")
# In the history of a node.
_WIDE = re.compile(r" admitted: .*\('[^']+', \(\d+, \d")
_CHANGES = ("admitted:", "started", "ended")


def of_refusal(world: World, seen: Scene) -> str:
    """Of a pod that its kubelet refused."""
    if seen.is_race("default/blind", world.weather.lag):
        return "another scheduler's pod was bound there at the same moment"
    if seen.refusal.pod.metadata.uid in world.unreported:
        return _UNREPORTED
    # What a restart takes away for a while are devices; CPUs and memory are those of its files.
    if asks_for_devices(seen.refusal) and seen.is_overtaken(world.weather.lag):
        return "its kubelet went down, and nobody could have told in time"
    kubelet = world.fleet.nodes[seen.refusal.node].kubelet
    if is_drawn(kubelet.model, (), seen.refusal.pod):
        return _DRAWN if seen.refusal.pod.metadata.uid in world.told else ""
    if by_devices := of_devices(kubelet.model, kubelet.as_told(), (), seen.refusal.pod):
        return by_devices
    if _has_too_much_room(world, seen):
        return "a pod has given something back since, with which it would have been taken"
    if _is_given_again(world, seen):
        return _GIVEN_AGAIN
    return _OLD_REPORT if _has_unseen_ends(world, seen) else ""


def of_waiting(world: World, info: PodInfo, name: str, refused: Refused) -> str:
    """Of an answer that let a pod not onto a node that would have taken it."""
    by_text = next((_BY_TEXT[text] for text in refused.reasons if text in _BY_TEXT), "")
    if by_text:
        return by_text
    state = world.replica.service.ledger.node_states.of(name)
    if state is None or state.kubelet is None:
        is_new = asyncio.get_running_loop().time() - world.replica.began < _HEARING_S
        return "who answered was killed since" if is_new else ""
    node = world.fleet.nodes[name]
    # kube-scheduler may not have heard of an end either.
    ended = {what.removesuffix(" ended") for _, what in node.lifecycle.history if what.endswith(" ended")}
    there = {one.uid for one in world.scheduler.pods_on(name) if one.key not in ended}
    coming = {uid for uid in there if not node.kubelet.runs(uid)}
    gone = {uid for uid in {*state.kubelet.active, *state.bookings} if not node.kubelet.runs(uid)} - coming
    if gone:
        return _not_told(world, name, gone)
    without = state.without([info.uid])
    if without is not None and without.admit(info.pod).admitted:
        # What lets it in came after the answer.
        if _has_just_ended(world, name):
            return _UNHEARD
        written = max((written for _, written in node.reporter.reports), default=0.0)
        if asyncio.get_running_loop().time() - written < world.weather.lag + _HEARING_S:
            return "a report has come since"
    if gives_twice(node.kubelet.model):
        return _TWICE
    if any(node.kubelet.runs(uid) and uid not in node.kubelet.model.active for uid in state.bookings):
        return "its kubelet is refusing another pod at this moment"
    untold = [uid for uid, booking in state.bookings.items() if not booking.reported and node.kubelet.runs(uid)]
    believed = {uid: _places(state.kubelet.placements(uid)) for uid in state.bookings if uid in state.kubelet.active}
    if any(_places(node.kubelet.model.placements(uid)) != believed.get(uid) for uid in untold):
        return "a pod of which no report tells yet lies elsewhere than predicted"
    if any(_is_spread_otherwise(node.kubelet.model, state.kubelet, uid) for uid in untold):
        return _SPREAD
    on_their_way = [one.pod for one in world.scheduler.pods_on(name) if one.uid in coming]
    if is_drawn(node.kubelet.model, on_their_way, info.pod):
        return _DRAWN
    if _has_just_ended(world, name) and lie_elsewhere(node.kubelet.model, state.kubelet, on_their_way):
        return "a pod on its way there may have come before another's end"
    if _is_spread_since(world, info, name, on_their_way):
        return _SPREAD
    if _init_memory_is_back(world, info, name, on_their_way):
        return "init containers have given memory back, and no report has come since"
    if by_devices := of_devices(node.kubelet.model, node.kubelet.as_told(), on_their_way, info.pod):
        return by_devices
    if any(not node.kubelet.would_admit(one, on_their_way[:at]).admitted for at, one in enumerate(on_their_way)):
        return "a pod on its way there will be refused"
    order = [one for uid in state.bookings for one in on_their_way if one.metadata.uid == uid]
    if not node.kubelet.would_admit(info.pod, order).admitted:
        return "pods on their way there may come in another order"
    return ""


def of_left_out(world: World, info: PodInfo, name: str, refused: Refused | None) -> str:
    """Of a pod that waits beside room when nothing moves any more."""
    kubelet = world.fleet.nodes[name].kubelet
    if gives_twice(kubelet.model):
        return _TWICE
    if is_drawn(kubelet.model, (), info.pod):
        return _DRAWN
    if refused is not None and refused.plugin == fit.PLUGIN and _counts_otherwise(world, info, name):
        return "kube-scheduler counts what the pods of its node ask for together, and its kubelet what containers do"
    state = world.replica.service.ledger.node_states.of(name)
    if state is not None and _is_unlisted(world, {*state.bookings}):
        return _UNLISTED
    requeued = world.replica.requeuer._requeued.get(info.uid)
    if requeued is not None and requeued.not_before > asyncio.get_running_loop().time():
        return "it was requeued in vain, and is left alone for a while"
    return of_devices(kubelet.model, kubelet.as_told(), (), info.pod)


def _counts_otherwise(world: World, info: PodInfo, name: str) -> bool:
    """Whether the sums of the pods there leave no room, as kube-scheduler counts them, and those of their containers
    do: a kubelet without the gate PodLevelResources goes by these."""
    some, node = [*world.scheduler.pods_on(name), info], world.scheduler._cache.get(name)
    allocatable = {} if node is None else node.allocatable

    def fits(*, by_pod: bool) -> bool:
        used: Counter[str] = Counter()
        for one in some:
            used.update(pods.needs(one.pod, pod_level_resources=by_pod).requests)
        return all(amount <= allocatable.get(resource, 0) for resource, amount in used.items() if amount)

    return fits(by_pod=False) and not fits(by_pod=True)


def gives_twice(kubelet: Kubelet) -> bool:
    """Whether two have one CPU, or one that somebody has is free: what a kubelet takes for a whole socket is measured
    by the average (cpu_packing.py)."""
    if kubelet.cpu is None:
        return False
    taken = 0
    for containers in kubelet.cpu.held.values():
        mine = 0
        for cpus in containers.values():
            mine |= cpus
        if mine & (taken | kubelet.cpu.available):
            return True
        taken |= mine
    return False


def _is_spread_otherwise(truth: Kubelet, believed: Kubelet, uid: str) -> bool:
    """Whether a block of the pod is over several NUMA nodes, and how much lies on which is not as believed."""
    if truth.memory is None or believed.memory is None or truth.memory.tables.free == believed.memory.tables.free:
        return False
    held = truth.memory.held.get(uid, {}).values()
    return any(block.mask.bit_count() > 1 for blocks in held for block in blocks)


def _places(placements: Mapping[str, Placement]) -> list[tuple[object, ...]]:
    """What each container of a pod has."""
    return [(name, held.cpus, held.memory, dict(held.devices)) for name, held in placements.items()]


def _has_too_much_room(world: World, seen: Scene) -> bool:
    """Whether its kubelet would have taken the pod if another had not ended, or been done with its init containers,
    after the service could know of it: an init container that finds room on another NUMA node ties those after it to
    that one."""
    node, pod, heard = world.fleet.nodes[seen.refusal.node], seen.refusal.pod, world.weather.lag + _DECIDING_S
    decided = seen.times().get(seen.pod, {}).get("decided", seen.refusal.at)
    there = [one.pod for one in world.scheduler.pods_on(seen.refusal.node) if node.kubelet.runs(one.uid)]
    before = [state for moment, state in world.before_releases[seen.refusal.node] if moment >= decided - heard]
    return any(takes_beside(state, [one for one in there if one != pod], pod) for state in before)


def _has_unseen_ends(world: World, seen: Scene) -> bool:
    """Whether the service, had it known of the ends before it started, would have seen that the pod would be refused:
    an init container that finds room elsewhere ties those after it to that NUMA node."""
    name, pod = seen.refusal.node, seen.refusal.pod
    state, history = world.replica.service.ledger.node_states.of(name), world.fleet.nodes[name].lifecycle.history
    if state is None or state.kubelet is None:
        return False
    looked, known = _looked(world, name), state.kubelet.fork()
    ended = [
        one for one in known.active if ended_unseen(world.names.get(one, one), history, looked, world.replica.began)
    ]
    for one in (*ended, pod.metadata.uid):
        known.remove(one)
    return bool(ended) and not known.admit(pod).admitted


def takes_beside(before: Kubelet, there: Iterable[pods.Pod], pod: pods.Pod) -> bool:
    """Whether a node in an earlier state takes those that have come since, and after them this pod."""
    trial = before.fork()
    come = [one for one in there if one.metadata.uid not in before.active]
    return all(trial.admit(one).admitted for one in (*come, pod))


def of_devices(truth: Kubelet, told: Kubelet, coming: Sequence[pods.Pod], pod: pods.Pod) -> str:
    """Whether a node decides otherwise of the pod, after those on their way there, if it has no devices but those that
    it is `told` to have, or plugins give the first that are free, or both."""

    def takes(node: Kubelet, *, has_preferences: bool) -> bool:
        trial = node.fork()
        if not has_preferences:
            trial.devices.preferred = {}
        for one in coming:
            trial.admit(one)
        return trial.admit(pod).admitted

    taken = takes(truth, has_preferences=True)
    if takes(told, has_preferences=True) != taken:
        return _UNHEALTHY
    if takes(truth, has_preferences=False) != taken:
        return _PREFERRED
    return _UNHEALTHY if takes(told, has_preferences=False) != taken else ""


def is_drawn(truth: Kubelet, coming: Sequence[pods.Pod], pod: pods.Pod) -> bool:
    """Whether a node would decide otherwise of a pod if it, and those on their way there, were given the devices that
    the model takes."""
    drawn, plain = truth.fork(), truth.fork()
    plain.devices.chooser = None
    for one in coming:
        drawn.admit(one)
        plain.admit(one)
    return drawn.admit(pod).admitted != plain.admit(pod).admitted


def lie_elsewhere(truth: Kubelet, believed: Kubelet, coming: Sequence[pods.Pod]) -> bool:
    """Whether pods on their way would be put elsewhere now than they are believed to be."""
    trial = truth.fork()
    for one in coming:
        trial.admit(one)
    uids = [one.metadata.uid for one in coming if one.metadata.uid in believed.active.keys() & trial.active.keys()]
    return any(_places(trial.placements(uid)) != _places(believed.placements(uid)) for uid in uids)


def _is_given_again(world: World, seen: Scene) -> bool:
    """Whether its kubelet would have taken the pod had it not restarted since its exporter looked at it."""
    restart = max((moment for moment, what in seen.history if what == "kubelet restarts"), default=0.0)
    if restart < seen.looked_at:
        return False
    since = {what.split()[0] for moment, what in seen.history if moment > restart and " admitted: " in what}
    node = world.fleet.nodes[seen.refusal.node].kubelet.model
    return takes_once_started(node, [uid for uid in node.active if world.names.get(uid) not in since], seen.refusal.pod)


def takes_once_started(node: Kubelet, before: Iterable[str], pod: pods.Pod) -> bool:
    """Whether a node takes the pod if the init containers of those that were there before (uids) hold nothing."""
    trial = node.fork()
    for uid in before:
        trial.start(uid)
    return trial.admit(pod).admitted


def _not_told(world: World, node: str, gone: set[str]) -> str:
    """Of pods that the service still has on a node and that are not there."""
    if _is_unlisted(world, gone):
        return _UNLISTED
    there = {one["metadata"]["uid"]: one for one in world.server.store.objects("pods")}
    if any(uid in there and not there[uid]["spec"].get("nodeName") for uid in gone):
        return "room is kept for a bind that failed, or that was not asked for"
    if any(uid in there and there[uid]["status"].get("phase", "") not in _ENDED for uid in gone):
        return "a pod has ended, and the API server does not know"
    unheard_since = asyncio.get_running_loop().time() - world.weather.lag - _HEARING_S
    deletions = [world.api.deletions.get(world.names.get(uid, "").rpartition("/")[2], 0.0) for uid in gone]
    if max(deletions) > unheard_since or _has_just_ended(world, node):
        return _UNHEARD
    history, began = world.fleet.nodes[node].lifecycle.history, world.replica.began
    looked = _looked(world, node)
    if all(ended_unseen(world.names.get(name, name), history, looked, began) for name in gone):
        return _OLD_REPORT
    state = world.replica.service.ledger.node_states.of(node)
    held = {} if state is None or state.report is None else state.report.held
    if all(("", uid) in held and ended_unseen(world.names.get(uid, uid), history, 0.0, began) for uid in gone):
        return "the managers of its kubelet still have a pod that ended before the service started"
    return ""


def _is_unlisted(world: World, uids: set[str]) -> bool:
    """Whether one of these was bound, and a list of all pods lacks it: its room is kept for two minutes."""
    return not uids.isdisjoint(world.replica.service.ledger._pods.unlisted(math.inf))


def _has_just_ended(world: World, node: str) -> bool:
    """Whether the service may not have heard yet of a pod's end there."""
    last = last_end(world.fleet.nodes[node].lifecycle.history)
    return asyncio.get_running_loop().time() - last < world.weather.lag + _HEARING_S


def _init_memory_is_back(world: World, info: PodInfo, name: str, coming: Iterable[pods.Pod]) -> bool:
    """Whether the pod fits if memory is as free as it is, and not as at the last report, which names no init container
    that holds some."""
    history, looked = world.fleet.nodes[name].lifecycle.history, _looked(world, name)
    return gave_init_memory_back(history, looked) and _fits_with_true_memory(world, info, name, coming)


def _is_spread_since(world: World, info: PodInfo, name: str, coming: Iterable[pods.Pod]) -> bool:
    """Whether the pod fits if memory is spread as it is, since a pod with some over several NUMA nodes came or went:
    what it gives back is on other nodes than what it took."""
    history, looked = world.fleet.nodes[name].lifecycle.history, _looked(world, name)
    return moved_memory(history, looked) and _fits_with_true_memory(world, info, name, coming, by_group)


def _fits_with_true_memory(
    world: World,
    info: PodInfo,
    name: str,
    coming: Iterable[pods.Pod],
    known: Callable[[MemoryTables], object] = lambda tables: None,
) -> bool:
    """Whether the service would let the pod in if it knew how much memory is free where; it is right about what is
    `known` of it."""
    truth, state = world.fleet.nodes[name].kubelet.model.fork(), world.replica.service.ledger.node_states.of(name)
    believed = None if state is None else state.without([info.uid])
    if believed is None or believed.memory is None or truth.memory is None:
        return False
    for one in coming:
        truth.admit(one)
    tables = truth.memory.tables
    if known(tables) != known(believed.memory.tables):
        return False
    believed.memory.tables.correct(tables.free, tables.assignments, tables.cells)
    return believed.admit(info.pod).admitted


def _looked(world: World, name: str) -> float:
    """When the node was looked at for the report that the service has."""
    state, reports = world.replica.service.ledger.node_states.of(name), list(world.fleet.nodes[name].reporter.reports)
    is_heard = state is None or state.report is None or state.report.version == reported(world).get(name)
    # Of what was written in the last seconds nobody can tell how much has come.
    come = asyncio.get_running_loop().time() - (0.0 if is_heard else world.weather.lag + _HEARING_S)
    return max((looked for looked, written in reports if written <= come), default=0.0)


def reported(world: World) -> dict[str, str]:
    """The nodes that have an object, with its version."""
    objects = world.server.store.objects("noderesourcetopologies.topology.node.k8s.io")
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in objects}


def by_group(tables: MemoryTables) -> dict[tuple[int, str], int]:
    """Free memory by group of NUMA nodes and type."""
    found: dict[tuple[int, str], int] = {}
    for name, values in tables.free.items():
        for cells, value in zip(tables.cells, values, strict=True):
            found[cells, name] = found.get((cells, name), 0) + value
    return found


def moved_memory(history: Iterable[tuple[float, str]], since: float) -> bool:
    """Whether a pod with memory over several NUMA nodes has come or gone since then."""
    history = list(history)
    wide = {what.split()[0] for _, what in history if _WIDE.search(what)}
    return any(what.split()[0] in wide and what.split()[1] in _CHANGES for at, what in history if at >= since)


def gave_init_memory_back(history: Iterable[tuple[float, str]], since: float) -> bool:
    """Whether a pod with init containers has started or ended since then."""
    changed = {what.split()[0]: what.split()[1] for moment, what in history if moment >= since}
    with_some = {what.split()[0] for _, what in history if " admitted: i" in what}
    return any(name in with_some and how in ("started", "ended", "is") for name, how in changed.items())


def last_end(history: Iterable[tuple[float, str]]) -> float:
    """When the API server was last told of a pod, or a pod ended or was refused."""
    ends = (moment for moment, what in history if what.endswith(" ended") or " is " in what or " REFUSED" in what)
    return max(ends, default=0.0)


def ended_unseen(name: str, history: Iterable[tuple[float, str]], looked: float, began: float) -> bool:
    """Whether a pod (namespace/name) ended, or was not admitted again, after its node was `looked` at for the last
    report, and before the service `began`, which was told neither of the pod nor of its end."""
    ends = f"{name} ended", f"{name} not admitted again"
    ended = max((moment for moment, what in history if what.startswith(ends)), default=-1.0)
    return looked <= ended <= began
