"""Why a node's kubelet would admit or refuse a pod: the NUMA nodes that it saw per container and resource.

The one-node model decides the pod again and a watcher records each merge of hints. So the text states the decision
itself, not a second opinion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

import msgspec

from topowise import cpuset
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.explain import refusal_texts
from topowise_scheduler.explain.merge_table import MergeTable, merge_table
from topowise_scheduler.explain.text import enumerated, rough_duration, with_unit
from topowise_scheduler.kubelet import Admission, Kubelet, cost
from topowise_scheduler.kubelet.allocated_nodes import AllocatedNodes, allocated_nodes
from topowise_scheduler.kubelet.free_amounts import zone_amounts
from topowise_scheduler.kubelet.hints import Hint, Hints
from topowise_scheduler.kubelet.masks import members, union
from topowise_scheduler.kubelet.pod import ContainerView, PodView, device_requests
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.options.claims.devices import named
from topowise_scheduler.options.device_affinity.outcomes import AffinityVerdict, Outcome
from topowise_scheduler.report import Report
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.kube_scheduler import to_text

if TYPE_CHECKING:
    # At run time the imports would load numpy.
    from topowise_scheduler.options.claims.gate import Judgement
    from topowise_scheduler.options.steering.choice import Choice

Verdict = Literal["fits", "not now", "never", "excluded", "not reported"]
_MAX_ZONES = 2
_BY_CHANCE = (
    "; its kubelet may refuse the pod by chance: where several devices would do for a container it takes any, "
    "and may take what the next container needs"
)


class ZoneRoom(msgspec.Struct, frozen=True, rename="camel"):
    """A NUMA node and a resource: cores, bytes or devices. `fits`: for the kubelet this NUMA node suffices."""

    numa: int
    available: int
    allocatable: int
    fits: bool


class ResourceRoom(msgspec.Struct, frozen=True, rename="camel"):
    """The hints of a resource: every NUMA node, and whether any set of NUMA nodes has enough."""

    resource: str
    asked: int
    fits: bool
    zones: tuple[ZoneRoom, ...]


class Step(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A merge of hints, for a container, or for the whole pod (scope pod) with `container` "".

    `chosen` are NUMA node ids, None for no affinity; `preferred` as in the kubelet's hint. `merge` is None unless the
    caller requested hints.
    """

    container: str
    chosen: tuple[int, ...] | None
    preferred: bool
    resources: tuple[ResourceRoom, ...]
    merge: MergeTable | None = None


class AffinityExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """An affinity term of the pod for near devices: whether the node's devices satisfy it, and why."""

    wish: str
    outcome: Outcome
    why: str

    def __str__(self) -> str:
        return f"device affinity {self.wish} is {self.outcome}: {self.why}"


class ClaimExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """The devices of the pod's claims on the node, "driver/pool/device", and their NUMA nodes. They are predicted
    unless `is_allocated`. `outcome`: whether CPUs, memory and devices of device plug-ins would be there too."""

    outcome: str
    devices: tuple[str, ...]
    numa: tuple[int, ...]
    is_allocated: bool


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """A node. `reason` and `message` are the kubelet's texts for the pod's status.

    `precision` is "exact" if the report has ids, "counts" if it has only amounts, "" if no report was used. `kubelet`
    is the kubelet version that the model applied, with "?" if the version is not verified, "" if it is not known.
    `otherwise` is the verdict on an excluded node without the exclusion, "" for any other node.
    `refusal` is what refuses the node, the same for all nodes of a reason: a refusal's name or kube-scheduler's words.
    `not_looked_at` are terms of the pod that are not evaluated, the same for all nodes.
    """

    node: str
    verdict: Verdict
    score: int
    precision: str
    policy: str
    scope: str
    reason: str
    message: str
    steps: tuple[Step, ...]
    text: str
    not_looked_at: tuple[str, ...] = ()
    kubelet: str = ""
    device_affinity: tuple[AffinityExplanation, ...] = ()
    otherwise: Verdict | Literal[""] = ""
    refusal: str = ""
    claims: ClaimExplanation | None = None

    def steered_by(self, choice: Choice) -> NodeExplanation:
        """Adds the NUMA node that the service chooses for the pod and why, or the demands that no NUMA node meets."""
        demands = ", ".join(choice.whys)
        if choice.numa is not None:
            alone = "no single NUMA node" if choice.alone is None else choice.alone
            text = f"steered to NUMA node {choice.numa} (the kubelet alone would take {alone})"
            text += f" by {demands}" if demands else ""
        elif choice.refusal in refusals.OF_STEERING:
            text = f"the pod requires {demands}"
        else:
            return self
        return msgspec.structs.replace(self, text=f"{self.text}; {text}")

    def with_affinity(self, judged: AffinityVerdict | None) -> NodeExplanation:
        """Adds the verdict on the pod's affinity terms; `judged` is None for a pod without terms."""
        if judged is None or self.verdict == "not reported":
            return self
        affinity = tuple(
            AffinityExplanation(str(wish), outcome, refusal_texts.affinity(outcome, reason))
            for wish, outcome, reason in zip(judged.affinity_terms, judged.outcomes, judged.reasons, strict=True)
        )
        text = "; ".join((self.text, *map(str, affinity)))
        return msgspec.structs.replace(self, text=text, device_affinity=affinity)

    def with_claims(self, judged: Judgement | None) -> NodeExplanation:
        """Adds the devices of the pod's claims; `judged` is None without claims, or if claims are not enabled."""
        if judged is None or self.verdict == "not reported":
            return self
        text = "; ".join(filter(None, (self.text, _of_claims(judged))))
        devices = tuple(["/".join(device.id) for device in judged.devices.devices])
        claims = ClaimExplanation(judged.outcome, devices, tuple(sorted(judged.near)), judged.devices.is_allocated)
        return msgspec.structs.replace(self, text=text, claims=claims)

    def beside(self, over_budget: str) -> NodeExplanation:
        """Adds why the node's newest report is not used; unchanged for ""."""
        if not over_budget:
            return self
        return msgspec.structs.replace(self, text=f"{self.text}; of its newest report nothing is used: {over_budget}")


def _of_claims(judged: Judgement) -> str:
    """The judgement in words, "" if there is nothing to say."""
    if judged.outcome == "unknown":
        return f"the NUMA node of its claimed devices is unknown: {judged.devices.problem}"
    if not judged.near:
        return ""
    where = f"its claimed devices are {'' if judged.devices.is_allocated else 'to be '}on {named(judged.near)}"
    if judged.outcome == "possible":
        return f"{where}; CPUs and memory may be elsewhere, as placements on the node are uncertain"
    if judged.outcome == "apart":
        return f"{where}, CPUs and memory would be on {named(judged.placed) if judged.placed else 'no NUMA node'}"
    return where


def not_reported(name: str, refusal: str = "") -> NodeExplanation:
    """The explanation of a node without a report; `refusal` is a refusal by topowise, "" if there is none."""
    verdict: Verdict = "not now" if refusal else "not reported"
    text = refusal or "no exporter has reported it; it is left to the other plug-ins"
    return NodeExplanation(name, verdict, 0, "", "", "", "", "", (), text)


def too_large(name: str, problem: str) -> NodeExplanation:
    """The explanation for a pod above the limits of the model."""
    text = f"the pod is not judged: expected {problem}; use several pods"
    return NodeExplanation(name, "never", 0, "", "", "", "", "", (), text)


def explain(
    name: str,
    node: Kubelet,
    pod: PodView,
    *,
    precision: str,
    refusal: str = "",
    never: bool = False,
    score: int = 0,
    unconfirmed: Sequence[str] = (),
    report: Report | None = None,
    with_hints: bool = False,
    by_chance: bool = False,
) -> NodeExplanation:
    """Explains the pod on the node.

    `refusal` is a refusal by topowise, whatever the kubelet says. `never`: the pod does not fit on the empty node
    either. `unconfirmed` says why the kubelet does not confirm the report at present. `with_hints` adds the hints and
    their merges. `by_chance`: the node fits but may refuse the pod, by its choice of devices
    (device_affinity/choices.py).
    """
    takes = 0.0 if cost.is_quick(node) else cost.estimate(node, pod).seconds
    admission, node, steps = _tried(node, pod, with_hints=with_hints)
    settings = node.settings.topology
    verdict: Verdict = "fits"
    text = refusal
    if not admission.admitted:
        verdict = "never" if never else "not now"
        text = _refused(steps, admission)
        text += _never(text, steps, pod, settings.policy, report) if never else ""
    elif refusal:
        verdict = "never" if never else "not now"
    else:
        text = _placed(node, pod, steps, admission, knows_policy=report is None or report.knows_policy)
        text += _shared(node, pod) if report is None or report.precision == "exact" else ""
        text += _BY_CHANCE if by_chance else ""
    if report is not None and not admission.admitted:
        text += _damage(report)
    if unconfirmed:
        text += f"; the node's report is its last true one, not confirmed now ({', '.join(unconfirmed)})"
    if takes >= 1:
        text += f"; its kubelet takes about {rough_duration(takes)} to decide, as it tries every set of NUMA nodes"
    if report is not None and report.remark:
        text += f"; {report.remark}"
    return NodeExplanation(
        node=name,
        verdict=verdict,
        score=score,
        precision=precision,
        policy=settings.policy if report is None else report.policy,
        scope=settings.scope,
        reason=admission.reason,
        message=admission.message,
        steps=tuple(steps),
        text=text,
        kubelet="" if report is None else report.exact_for,
    )


def _tried(node: Kubelet, pod: PodView, *, with_hints: bool = False) -> tuple[Admission, Kubelet, list[Step]]:
    """Tries the pod; returns the answer, the node after it, and the merges of hints on the way."""
    steps: list[Step] = []

    def watch(
        kubelet: Kubelet, container: ContainerView | None, groups: Sequence[tuple[str, Hints]], merged: Hint
    ) -> None:
        # Markers are not in reports, so they have no amounts.
        amounts = [(resource, hints) for resource, hints in groups if resource != MARKER]
        rooms = tuple(_room(kubelet, pod, container, resource, hints) for resource, hints in amounts)
        rooms += tuple(_without_hints(kubelet, pod, container, {room.resource for room in rooms}))
        chosen = None if merged.mask is None else kubelet.ids(merged.mask)
        table = merge_table(kubelet, groups) if with_hints else None
        steps.append(Step("" if container is None else container.name, chosen, merged.preferred, rooms, table))

    return *trial(node, pod, observe=watch), steps


def _shared(node: Kubelet, pod: PodView) -> str:
    """The CPUs of the placed pod that the kubelet has reserved or given to another pod too (panics.py), if any."""
    manager = node.cpu
    if manager is None or manager.policy.topology.is_even:
        return ""
    taken = union(manager.allocations.get(pod.uid, {}).values())
    others = union(cpus for uid, by_name in manager.allocations.items() if uid != pod.uid for cpus in by_name.values())
    shared = taken & (others | manager.policy.reserved)
    cpus = f"CPU {cpuset.to_text(members(shared))} of them is reserved or another pod's too" if shared else ""
    possible = "its cores or sockets have different numbers of CPUs, so a CPU may belong to two pods" if taken else ""
    return "".join(f"; {part}" for part in (possible, cpus) if part)


def _damage(report: Report) -> str:
    """The first unusable part of the report, which may be why the node looks full."""
    problems = [problem for problem in report.problems if problem != report.version_problem]
    if not problems:
        return ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"; of its report something could not be used: {problems[0]}{more}"


def _room(kubelet: Kubelet, pod: PodView, container: ContainerView | None, resource: str, hints: Hints) -> ResourceRoom:
    zones = tuple(
        ZoneRoom(numa, free or 0, allocatable, bool(hints.fits >> (1 << position) & 1))
        for position, (numa, (free, allocatable)) in enumerate(
            zip(kubelet.node_ids, zone_amounts(kubelet, resource), strict=True)
        )
    )
    return ResourceRoom(resource, _requested_amount(pod, container, resource), bool(hints.fits), zones)


def _without_hints(
    kubelet: Kubelet, pod: PodView, container: ContainerView | None, known: Collection[str]
) -> Iterator[ResourceRoom]:
    """Memory that no set of NUMA nodes has: the memory manager gives no hints for it, and fails to allocate it."""
    memory = pod.memory if container is None else container.memory
    for resource, asked in (memory or {}).items():
        if asked and resource not in known and kubelet.memory is not None and pod.pinned:
            amounts = zip(kubelet.node_ids, zone_amounts(kubelet, resource), strict=True)
            zones = tuple(ZoneRoom(numa, free or 0, total, (free or 0) >= asked) for numa, (free, total) in amounts)
            yield ResourceRoom(resource, asked, any(zone.fits for zone in zones), zones)


def _requested_amount(pod: PodView, container: ContainerView | None, resource: str) -> int:
    memory = pod.memory if container is None else container.memory
    if resource == "cpu":
        return pod.cpus if container is None else container.cpus
    if memory and resource in memory:
        return memory[resource]
    return (device_requests(pod, resource) or 0) if container is None else container.limits.get(resource, 0)


def _placed(node: Kubelet, pod: PodView, steps: Sequence[Step], admission: Admission, *, knows_policy: bool) -> str:
    places = allocated_nodes(node, pod.uid)
    if node.settings.topology.policy == "none":
        text = "fits: the node's Topology Manager has policy none and aligns nothing"
        if not knows_policy:
            text = "fits by sums alone: the policy of the node's Topology Manager is not known"
        lie = [
            f"container {name} has {_allocation_in_words(node, [place])}"
            for name, place in places.items()
            if place.mask
        ]
        return "; ".join((text, *lie))
    aligned = [step for step in steps if step.resources]
    if not aligned:
        return f"fits: nothing this {pod.qos} pod asks for is aligned on this node"
    return "; ".join(
        _where(node, step, [places[step.container]] if step.container else list(places.values())) for step in aligned
    )


def _where(node: Kubelet, step: Step, places: Sequence[AllocatedNodes]) -> str:
    """The result of a merge of hints; a merge that is not preferred leads to the actual allocation."""
    amounts = _requested(step)
    if not step.preferred:
        return f"{_scope_of(step)} is not aligned: {_allocation_in_words(node, places)} ({amounts})"
    if step.chosen is None:
        return f"{_scope_of(step)} goes anywhere ({amounts})"
    nodes = "NUMA node" if len(step.chosen) == 1 else "NUMA nodes"
    return f"{_scope_of(step)} goes to {nodes} {', '.join(map(str, step.chosen))} ({amounts})"


def _allocation_in_words(node: Kubelet, places: Sequence[AllocatedNodes]) -> str:
    """NUMA nodes of the allocations of containers: "CPUs on NUMA nodes 0 and 1, memory on 0"."""
    masks = {
        "CPUs": [place.cpus for place in places],
        "memory": [place.memory for place in places],
        "devices": [place.devices for place in places],
    }
    parts: list[str] = []
    for kind, each in masks.items():
        ids = [node.node_ids[position] for position in members(reduce(or_, each, 0))]
        if ids:
            # "NUMA nodes" stands only before the first list of ids.
            nodes = "" if parts else "NUMA nodes " if len(ids) > 1 else "NUMA node "
            parts.append(f"{kind} on {nodes}{enumerated(ids)}")
    return ", ".join(parts) or "nothing on a NUMA node of its own"


def _scope_of(step: Step) -> str:
    return f"container {step.container}" if step.container else "the pod"


def _lacks_memory(step: Step) -> bool:
    return any(not room.fits and not any(zone.fits for zone in room.zones) for room in step.resources)


def nearness(step: Step, at: int) -> tuple[bool, float]:
    """How much a NUMA node lacks; the least is the nearest: whether it can never have a resource, and the missing
    amounts in shares of what it can have."""
    short = [(room.asked, room.zones[at]) for room in step.resources if not room.zones[at].fits]
    missing = sum(max(1, asked - zone.available) / max(1, zone.allocatable) for asked, zone in short)
    return any(zone.allocatable < asked for asked, zone in short), missing


def _refused(steps: Sequence[Step], admission: Admission) -> str:
    if admission.shortages:
        worst = max(admission.shortages, key=lambda short: (short.requested + short.used) / max(1, short.capacity))
        amounts = (worst.requested, worst.used, worst.capacity)
        requested, used, capacity = (to_text(worst.resource, amount) for amount in amounts)
        return f"{worst.reason}: asks for {requested}, {used} of {capacity} are in use"
    step = steps[-1] if steps else None
    is_explained = admission.reason == "TopologyAffinityError" or (step is not None and _lacks_memory(step))
    if step is None or not is_explained:
        return f"{admission.reason}: {admission.message}"
    amounts_text = _requested(step)
    if not amounts_text:
        return f"{admission.reason}: {_scope_of(step)} cannot be aligned"
    zones = sorted((nearness(step, at), at) for at in range(len(step.resources[0].zones)))
    # The nearest NUMA nodes suffice to show what is missing.
    shown = [at for (_, missing), at in zones[:_MAX_ZONES] if missing]
    if len(shown) < min(len(zones), _MAX_ZONES):
        return f"{_scope_of(step)} needs {amounts_text}; no set of NUMA nodes is the best for all of it"
    alike = sum(near == zones[_MAX_ZONES - 1][0] for near, _ in zones[_MAX_ZONES:])
    further = len(zones) - len(shown) - alike
    rest = f"; {alike} more lack as much" if alike else ""
    rest += f"; {further} more lack more" if further else ""
    lacks = [_lack(step, at) for at in shown]
    return f"{_scope_of(step)} needs {amounts_text} together; {'; '.join(lacks)}{rest}"


def _never(now: str, steps: Sequence[Step], pod: PodView, policy: str, report: Report | None) -> str:
    """The refusal of the empty node, which may differ from the present refusal `now`.

    A manager with too little in sum gives no hints, so the present merges do not show its shortage.
    """
    admission = None
    if report is not None:
        admission, _, steps = _tried(report.empty, pod)
    rooms = _ordered(steps[-1]) if steps and policy == "single-numa-node" else ()
    most = [(room, max(zone.allocatable for zone in room.zones)) for room in rooms]
    short = [(room, amount) for room, amount in most if amount < room.asked]
    text = "; not even the empty node would do"
    if short:
        has = [
            f"{room.resource} {with_unit(room.resource, amount)}, not {with_unit(room.resource, room.asked)}"
            for room, amount in short
        ]
        return f"{text}, whose largest NUMA node has {' and '.join(has)}"
    if admission is None or admission.admitted or admission.reason == "TopologyAffinityError":
        return text
    refused = _refused(steps, admission)
    return text if refused == now else f"{text}: {refused}"


def _lack(step: Step, at: int) -> str:
    """The shortages of a NUMA node, the worst first."""
    short = sorted(
        (room for room in _ordered(step) if not room.zones[at].fits),
        key=lambda room: room.zones[at].available / max(1, room.asked),
    )
    lacks = ", ".join(f"{room.resource} {with_unit(room.resource, max(0, room.zones[at].available))}" for room in short)
    return f"node {step.resources[0].zones[at].numa} has only {lacks}"


def _ordered(step: Step) -> list[ResourceRoom]:
    """CPUs and memory before devices."""
    first = ("cpu", "memory")
    return sorted(
        step.resources, key=lambda room: (first.index(room.resource) if room.resource in first else 2, room.resource)
    )


def _requested(step: Step) -> str:
    return ", ".join(f"{room.resource} {with_unit(room.resource, room.asked)}" for room in _ordered(step))
