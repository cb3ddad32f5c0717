"""Requests nodes from an autoscaler for pods that wait only for alignment.

An autoscaler simulates kube-scheduler without extenders: such a pod fits in its simulation, so it adds no node. The
leader packs these pods on empty nodes of the groups that it knows, and creates a placeholder for each node that they
need (scale_up/). The new node is reserved for its pods for a while once it is reported. A placeholder ends when its
pods run, or when the node does not help.

Invariant: the placeholders on the API server have all state of the requests. Only since when a pod waits, and since
when a node is reported, is in memory: a new leader waits at most that much longer.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from topowise.errors import ApiError, ParseError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise.runtime.log import OncePerChange, kv
from topowise_scheduler.configuration import ScaleUp as Settings
from topowise_scheduler.controllers import controller, events, known_nodes, objects, pod_lists
from topowise_scheduler.controllers.controller import in_turn
from topowise_scheduler.controllers.scale_up_demand import Demand, units
from topowise_scheduler.controllers.workload_pods import WorkloadPods
from topowise_scheduler.explain.text import plural
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.scale_up import budget, node_groups, placeholders
from topowise_scheduler.overlay.scale_up.budget import Budget, Limits
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, PlannedNode, Profile
from topowise_scheduler.overlay.scale_up.placeholders import LABEL, Placeholder
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.report import timestamps
from topowise_scheduler.verdicts.kube_scheduler import Node, Pod, is_daemon

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
_PASS_S: Final = 5.0
# Events of a placeholder: its pods are often alike.
_MOST_EVENTS: Final = 8

Groups = Mapping[GroupLabels, Sequence[Node]]


class ScaleUp:
    """Creates and ends placeholders in `namespace`.

    `declared`: profiles of groups without a reported node. `limits`: by default those of `settings`.
    `not_ready`: what of the cluster is not known yet, None if all is. `clock` gives seconds, monotonic, `now` seconds
    since 1970.
    """

    def __init__(
        self,
        api: Api,
        cluster: Trial,
        demand: Demand,
        settings: Settings,
        *,
        namespace: str,
        workloads: WorkloadPods,
        declared: Mapping[GroupLabels, Profile] | None = None,
        limits: Limits | None = None,
        not_ready: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = clock.monotonic,
        now: Callable[[], float] = clock.wall,
    ) -> None:
        self._api = api
        self._demand = demand
        self._cluster, self._ledger, self._nodes = cluster, cluster.ledger, cluster.nodes
        self._workloads = workloads
        self._settings = settings
        self._declared = declared or {}
        self._limits = limits or Limits(settings.per_hour)
        self._template = placeholders.Template(namespace, settings.image, settings.priority_class, settings.autoscaler)
        self._path = paths.path(paths.NAMESPACES, namespace, "pods")
        self._not_ready = not_ready
        self._clock, self._now = clock, now
        # By Node of a placeholder: since when it is reported.
        self._reported: dict[str, float] = {}
        # By Node: its daemon pods, until its pods change.
        self._daemons: dict[str, tuple[int, list[PodRecord]]] = {}
        self._problems = OncePerChange()
        # Passes so far and the time of the last (seconds, monotonic); what `Nodes.changes` was then, and whether a node
        # was on its way.
        self._passes, self._passed_at = 0, float("-inf")
        self._nodes_at, self._expects_node = 0, False

    async def run(self) -> None:
        """Works until cancelled."""
        await controller.run("request nodes from the autoscaler", self.due, self.sync, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, str]:
        """Returns a pass every five seconds, and at once when a node changes while a node is on its way.

        A placeholder is hidden from the autoscaler when its Node appears, before pods are bound to it.
        """
        is_awaited = self._expects_node and self._nodes.changes != self._nodes_at
        if self._not_ready() or not (is_awaited or self._clock() >= self._passed_at + _PASS_S):
            return {}
        return {f"pass {self._passes}": ""}

    async def sync(self, _: str = "") -> None:
        """Attributes, ends, deletes and creates placeholders once. Raises ApiError."""
        self._nodes_at = self._nodes.changes
        known = await self._list()
        groups = node_groups.groups(self._node_objects(), self._settings.group_labels)
        self._reported = {name: at for name, at in self._reported.items() if name in self._nodes}
        for at, placeholder in enumerate(known):
            known[at] = await self._advance(placeholder, known, groups)
        for group in {placeholder.group for placeholder in known if placeholder.is_active}:
            await self._mark(known, groups.get(group, ()))
        requested = {pod.uid for placeholder in known if placeholder.is_active for pod in placeholder.pods}
        # Of the hour that the budget counts.
        recent = Budget(self._limits, known, self._now()).recent
        used = Counter(name for placeholder in recent for name in {pod.namespace for pod in placeholder.pods})
        wanted = [*await self._demand.pods(requested, used), *self._workloads.due(requested)]
        wanted = in_turn(wanted, used)
        refusals = await self._request(wanted, known, groups) if wanted else {}
        self._workloads.set_answers(refusals, [placeholder for placeholder in known if placeholder.is_active])
        self._expects_node = any(placeholder.is_in_flight for placeholder in known)
        self._passes, self._passed_at = self._passes + 1, self._clock()

    def _node_objects(self) -> Iterator[Node]:
        for name in self._nodes:
            if (node := self._nodes.get(name)) is not None:
                yield node

    # Placeholders that exist

    async def _list(self) -> list[Placeholder]:
        # From etcd: a new leader must see what the last leader has written.
        return await objects.read(self._api, self._path, placeholders.decode, {"labelSelector": LABEL})

    async def _advance(self, placeholder: Placeholder, known: Sequence[Placeholder], groups: Groups) -> Placeholder:
        """Attributes a node to a placeholder, ends it or deletes it. Returns it as it is after that."""
        now = self._now()
        if not placeholder.is_active:
            if not Budget(self._limits, known, now).is_kept(placeholder):
                await objects.delete(self._api, paths.path(self._path, placeholder.name), placeholder.uid)
            return placeholder
        if not placeholder.is_visible:
            await self._patch(placeholder, placeholders.waiting_patch(placeholder.uid, now))
        if not placeholder.node and (node := _new_node(placeholder, known, groups)) is not None:
            placeholder = msgspec.structs.replace(placeholder, node=node.name)
            await self._patch(placeholder, placeholders.node_patch(placeholder.uid, node.name, now))
        pending = self._ledger.unscheduled | self._workloads.waiting
        waiting = [pending[pod.uid] for pod in placeholder.pods if pod.uid in pending]
        facts = await self._facts(placeholder, waiting, groups.get(placeholder.group, ()))
        end = budget.end_of(placeholder, facts)
        if not end.outcome:
            if facts.reported_for >= 0:
                self._reserve(placeholder.node, waiting)
            return placeholder
        await self._patch(placeholder, placeholders.end_patch(placeholder.uid, end.outcome, end.why, now))
        ended = msgspec.structs.replace(placeholder, outcome=end.outcome, ended=now)
        self._ledger.count(f"scale_up_{end.outcome}")
        group = _words(placeholder.group)
        log.info("The request of a node has ended", extra=kv(group=group, outcome=end.outcome, why=end.why))
        if end.outcome in placeholders.FAILURES:
            after = [ended if item.uid == ended.uid else item for item in known]
            until = timestamps.text(Budget(self._limits, after, now).paused_until(ended.group))
            note = f"{end.why}. No node of {group} is requested before {until}."
            await self._post(waiting, "ScaleUpDidNotHelp", note)
        return ended

    async def _facts(
        self, placeholder: Placeholder, waiting: Sequence[PodRecord], members: Iterable[Node]
    ) -> budget.Facts:
        name, age = placeholder.node, self._now() - placeholder.created
        states = [self._ledger.pods.of(pod.uid) for pod in placeholder.pods]
        where = [state.node for state in states if state.is_assigned]
        where += self._workloads.nodes_of({pod.uid for pod in placeholder.pods})
        # The autoscaler may have added several nodes, and kube-scheduler chooses among them.
        added = {node.name for node in members if _is_added_after(placeholder, node)}
        on_node = sum(node in added for node in where)
        refused = [self._ledger.refused[pod.uid] for pod in placeholder.pods if pod.uid in self._ledger.refused]
        refusal = next(
            (f"its kubelet refused {pod.name}: {pod.status.refusal}" for pod in refused if pod.node in added), ""
        )
        node = self._nodes.get(name)
        is_reported = node is not None and node.is_ready and self._ledger.reports.is_confirmed(name)
        profile = await self._profile(placeholder.group, [node]) if node is not None and is_reported else None
        asked = [] if profile is None else [(profile, record) for record in waiting]
        # The drivers of its devices may start later than its exporter.
        if not is_reported or any(node_groups.lacks_devices(self._cluster, *item) for item in asked):
            self._reported.pop(name, None)
            return budget.Facts(age, len(waiting), len(where), on_node, has_node=node is not None, refusal=refusal)
        since = self._reported.setdefault(name, self._clock())
        refusals = [node_groups.refusal(self._cluster, *item) for item in asked]
        refusal = refusal or next(filter(None, refusals), "")
        return budget.Facts(
            age, len(waiting), len(where), on_node, has_node=True, reported_for=self._clock() - since, refusal=refusal
        )

    def _reserve(self, name: str, records: Iterable[PodRecord]) -> None:
        """Keeps the new node free for these pods, as far as they fit there."""
        for record in records:
            state = self._ledger.pods.of(record.uid)
            if record.needs is not None and not state.is_assigned and state.node != name:
                self._ledger.reservations.put_unasked(record, record.needs, name, budget.HOLD_S)

    # Requests of nodes

    async def _request(self, wanted: Sequence[PodRecord], known: list[Placeholder], groups: Groups) -> dict[str, str]:
        """Creates the placeholders that the budget allows, in the order of the `wanted` pods. Returns by gang why it
        gets no node."""
        refusals = {}
        budget = Budget(self._limits, known, self._now())
        profiles: dict[GroupLabels, Profile] = {}
        for group in dict.fromkeys((*groups, *self._declared)):
            members = groups.get(group, ())
            if budget.paused_until(group) > self._now() or not self._is_usable(group, members):
                continue
            if (profile := await self._profile(group, members)) is not None:
                profiles[group] = profile
        ordered = sorted(profiles.values(), key=_size)
        are_coming = [profiles[group] for group in self._coming(known, groups) if group in profiles]
        coming = [node_groups.empty_node(self._cluster, profile) for profile in are_coming]
        turns = {record.uid: turn for turn, record in enumerate(wanted)}
        requests: list[tuple[int, str, Sequence[PlannedNode]]] = []
        for records in units(wanted):
            plan, gang = node_groups.pack(self._cluster, records, ordered, coming), records[0].group
            if gang and plan.unplaced:
                count = plural(len(plan.unplaced), "pod")
                refusals[gang] = f"{count} would not be aligned by an empty node of a group that may be requested now"
                continue
            # Nodes of a gang are requested together or not at all.
            parts = [plan.new_nodes] if gang else [[node] for node in plan.new_nodes]
            requests += [(turns[part[0].records[0].uid], gang, part) for part in parts if part]
        for _, gang, new_nodes in sorted(requests, key=itemgetter(0)):
            needed = Counter(node.group for node in new_nodes)
            if gang and not Budget(self._limits, known, self._now()).affords(needed):
                refusals[gang] = f"{plural(needed.total(), 'node')} are more than the limits of scaleUp allow now"
                continue
            for node in new_nodes:
                if Budget(self._limits, known, self._now()).allowance(node.group) > 0:
                    known.append(await self._create(node, known, groups.get(node.group, ())))
        return refusals

    def _is_usable(self, group: GroupLabels, members: Sequence[Node]) -> bool:
        """Returns whether placeholders can exclude all nodes of the group by name."""
        unnamed = sum(not node.hostname for node in members)
        if not unnamed and len(members) <= placeholders.MOST_HOSTS:
            return True
        why = (
            f"{unnamed} of {len(members)} nodes lack the hostname label, expected none of at most "
            f"{placeholders.MOST_HOSTS} nodes: a placeholder names them all"
        )
        if self._problems.is_change(why):
            log.warning("Cannot request nodes of a group", extra=kv(group=_words(group), why=why))
        return False

    def _coming(self, known: Iterable[Placeholder], groups: Groups) -> Iterator[GroupLabels]:
        """Yields the group of each new node that has no report yet and that no placeholder has requested."""
        attributed = {placeholder.node for placeholder in known if placeholder.is_active}
        since = self._now() - budget.TIME_LIMIT_S
        for group, members in groups.items():
            for node in members:
                is_new = timestamps.seconds(node.created) > since
                if is_new and node.name not in attributed and not self._ledger.reports.is_confirmed(node.name):
                    yield group

    async def _profile(self, group: GroupLabels, members: Sequence[Node]) -> Profile | None:
        source = node_groups.source_of(self._ledger, members)
        if source is None:
            return self._declared.get(group)
        changed_at = self._ledger.node_states.changed_at(source.name)
        at, daemons = self._daemons.get(source.name, (-1, []))
        if at != changed_at:
            pods = [pod for pod in await pod_lists.on_node(self._api, source.name) if is_daemon(pod)]
            daemons = list(self._records(pods))
            self._daemons = {name: entry for name, entry in self._daemons.items() if name in self._nodes}
            self._daemons[source.name] = changed_at, daemons
        return node_groups.profile(self._ledger, group, members, daemons)

    def _records(self, pods: Iterable[Pod]) -> Iterator[PodRecord]:
        for pod in pods:
            # The kubelet runs the pod, so a pod that cannot be read here has no amounts that matter.
            with contextlib.suppress(ParseError):
                yield self._cluster.answers.record(pod)

    async def _create(self, planned: PlannedNode, known: Sequence[Placeholder], members: Sequence[Node]) -> Placeholder:
        """Creates the placeholder for a node, visible for autoscalers only after its nodes are excluded."""
        await self._mark(known, members)
        hosts = [node.hostname for node in members]
        document = placeholders.document(planned, hosts, self._template, secrets.token_hex(5))
        created = await objects.create(self._api, self._path, document, placeholders.decode_one)
        await self._patch(created, placeholders.waiting_patch(created.uid, self._now()))
        self._ledger.count("scale_up_requested")
        group, count = _words(planned.group), plural(len(planned.records), "pod")
        log.info("Requested a node", extra=kv(group=group, pods=len(planned.records), placeholder=created.name))
        note = (
            f"A node of {group} is requested from the autoscaler for {count} ({created.name}): "
            "an empty node of this group would align them."
        )
        await self._post(planned.records, "ScaleUpForAlignment", note)
        return created

    # Writes

    async def _post(self, records: Sequence[PodRecord], reason: str, note: str) -> None:
        kind: Any = "Warning" if reason == "ScaleUpDidNotHelp" else "Normal"
        # Pods of a Workload do not exist yet.
        for record in [record for record in records if record.uid in self._ledger.unscheduled][:_MOST_EVENTS]:
            try:
                await events.post(self._api, record, reason, note, kind=kind, action="ScaleUp")
            except ApiError as exc:
                # The namespace is being deleted; the placeholder matters more than its event.
                if exc.is_general:
                    raise

    async def _mark(self, known: Iterable[Placeholder], members: Iterable[Node]) -> None:
        """Excludes the nodes that exist, for Karpenter, which ignores pods with required terms about host names."""
        if self._settings.autoscaler == "karpenter":
            added = {placeholder.node for placeholder in known if placeholder.is_active}
            await known_nodes.mark(self._api, [node for node in members if node.name not in added])

    async def _patch(self, placeholder: Placeholder, body: Mapping[str, Any]) -> None:
        await objects.patch(self._api, paths.path(self._path, placeholder.name, "status"), body)


def _new_node(placeholder: Placeholder, known: Iterable[Placeholder], groups: Groups) -> Node | None:
    """Returns the oldest node that was added to the group after the placeholder, and to no other placeholder."""
    taken = {item.node for item in known}
    for node in reversed(groups.get(placeholder.group, ())):
        if _is_added_after(placeholder, node) and node.name not in taken:
            return node
    return None


def _is_added_after(placeholder: Placeholder, node: Node) -> bool:
    return timestamps.seconds(node.created) >= placeholder.created and node.hostname not in placeholder.hosts


def _size(profile: Profile) -> tuple[int, int, int, GroupLabels]:
    """Orders groups: the fewest kinds of devices first, then the smallest nodes."""
    allocatable = profile.allocatable
    devices = sum("/" in resource and amount > 0 for resource, amount in allocatable.items())
    return devices, allocatable.get("cpu", 0), allocatable.get("memory", 0), profile.group


def _words(group: GroupLabels) -> str:
    return ",".join(f"{key}={value}" for key, value in group)
