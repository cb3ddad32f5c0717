"""Evicts the victims that alignment.py chooses, and no pod in vain.

The preemptor first writes the node to `status.nominatedNodeName`, so that it is reserved for the pod.
Before the first eviction, a dry run of every eviction asks the API server: if a budget refuses a later victim,
the evictions before it are in vain. Before each eviction the preemptor checks that the pod still waits and still needs
it. Evictions go by policy/v1, which respects budgets and termination grace periods. While victims of a pod are still
there, no further pod is evicted for it.

A tenant with many waiting pods, or with pods that do not use the capacity that evictions made, must not block other
tenants. A pass looks at a bounded number of pods, in the order of turns.py.
The pause before the next evictions for a pod doubles with each round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from topowise.bounded import Bounded
from topowise.errors import ApiError, ParseError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise_scheduler.configuration import Preemptor as Settings
from topowise_scheduler.controllers import controller, events, evictions
from topowise_scheduler.controllers.alignment import AlignmentPreemption, Victims
from topowise_scheduler.controllers.controller import in_turn
from topowise_scheduler.controllers.nomination import nominate
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import MIRROR, Pod

_INTERVAL_S: Final = 1.0
# Seconds that a pod must wait before pods are evicted for it: an exporter that reports a change within a second, and a
# requeued pod, come first.
_PATIENCE_S: Final = 10.0
_MINUTE_S: Final = 60.0
# Pause of a pod without suitable victims; bound of the wait for victims to end; bound of the pause.
_PAUSE_S: Final = 30.0
_LONGEST_END_S: Final = 600.0
_LONGEST_PAUSE_S: Final = 3600.0
_STATIC_BYTES: Final = 1 << 19
# Pods of a pass: each takes up to a second where nodes are many and busy.
_MAX_LOOKS: Final = 16


class _Eviction(msgspec.Struct, frozen=True):
    """The UIDs of the victims of a pod, and until when (seconds, monotonic) they may take to end."""

    node: str
    victims: frozenset[str]
    until: float


class Preemptor:
    """Makes room for waiting pods, by priority. `patience`: for how long (seconds) a pod has to wait. `clock` gives
    seconds, monotonic."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        alignment: AlignmentPreemption,
        settings: Settings,
        *,
        patience: float = _PATIENCE_S,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._alignment = alignment
        self._settings = settings
        self._patience = patience
        self._clock = clock
        # By UID: when a pod was first seen to wait, and when it may be looked at again.
        self._since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._evictions: dict[str, _Eviction] = {}
        self._nominated: dict[str, str] = {}
        # By UID: rounds of evictions for the pod.
        self._rounds: dict[str, int] = {}
        # UIDs of static pods, which no eviction ends.
        self._static_uids: Bounded[str, bool] = Bounded(_STATIC_BYTES, lambda uid, _: len(uid))
        # Of the last minute: when a pod was evicted, and the namespace of the pod that it was evicted for.
        self._evicted: list[tuple[float, str]] = []
        self._announced: dict[str, tuple[str, ...]] = {}

    async def run(self) -> None:
        """Evicts pods until cancelled."""
        await controller.run(
            "evict pods for one that waits for alignment", self.due, self._make_room, interval=_INTERVAL_S
        )

    def due(self) -> Mapping[str, PodRecord]:
        """Returns the next pods to look at, by UID, of the pods that have waited for long enough."""
        waiting, now = self._waiting(), self._clock()
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        for by_uid in (self._not_before, self._announced, self._nominated, self._rounds):
            for uid in by_uid.keys() - waiting.keys():
                del by_uid[uid]
        self._evictions = {uid: going for uid, going in self._evictions.items() if self._is_in_progress(going, now)}
        ready = [
            record
            for uid, record in waiting.items()
            if now >= max(self._since[uid] + self._patience, self._not_before.get(uid, 0.0))
            and uid not in self._evictions
        ]
        used = Counter(namespace for at, namespace in self._evicted if at > now - _MINUTE_S)
        return {record.uid: record for record in in_turn(ready, used, self._not_before)[:_MAX_LOOKS]}

    def _waiting(self) -> Mapping[str, PodRecord]:
        """Returns by UID the pods that were refused here, and the pods with claims that kube-scheduler itself refused:
        it refuses nodes without free devices."""
        ledger = self._ledger
        if not any(option.examined() for option in ledger.gates.options):
            return ledger.waiting
        return {
            uid: record
            for uid, record in ledger.unscheduled.items()
            if uid in ledger.waiting
            or (record.needs is not None and record.claims and ledger.gates.depends_on_evictions(record))
        }

    def _is_in_progress(self, going: _Eviction, now: float) -> bool:
        return now < going.until and any(pod.uid in going.victims for pod in self._ledger.pods_on(going.node))

    @property
    def _allowance(self) -> int:
        """Returns how many pods may be evicted now."""
        self._evicted = [(at, namespace) for at, namespace in self._evicted if at > self._clock() - _MINUTE_S]
        return self._settings.per_minute - len(self._evicted)

    async def _make_room(self, record: PodRecord) -> None:
        """Evicts victims for a pod if that helps. Raises ApiError."""
        if self._allowance < 1:
            return
        try:
            await self._look(record)
        except ApiError:
            # The controller decides when to retry.
            self._not_before.pop(record.uid, None)
            raise

    async def _look(self, record: PodRecord) -> None:
        self._not_before[record.uid] = self._clock() + _PAUSE_S
        pod = await self._get(record)
        nominated = "" if pod is None or pod.status is None else pod.status.nominatedNodeName
        if pod is None or nominated not in ("", self._nominated.get(record.uid)):
            # Another writer handles the pod, such as kube-scheduler while it evicts.
            return
        spared = set(self._static_uids).union(*(going.victims for going in self._evictions.values()))
        try:
            victims = await self._alignment.choose(pod, self._settings.per_minute, spared)
        except ParseError:
            return
        if victims is None:
            return
        if self._settings.dry_run:
            await self._announce(record, victims)
        elif len(victims.pods) <= self._allowance:
            await self._evict(record, pod, victims)
        else:
            # Until so many evictions are allowed at once.
            over = len(victims.pods) - self._allowance
            self._not_before[record.uid] = self._evicted[over - 1][0] + _MINUTE_S

    async def _announce(self, record: PodRecord, victims: Victims) -> None:
        uids = tuple(victim.uid for victim in victims.pods)
        if self._announced.get(record.uid) == uids:
            return
        self._announced[record.uid] = uids
        for victim in victims.pods:
            await self._post_to_victim(record, victim, "WouldPreempt", "would be evicted")
        await self._post_to_pod(record, victims, "WouldPreempt", "would fit")

    async def _evict(self, record: PodRecord, pod: Pod, victims: Victims) -> None:
        for victim in victims.pods:
            # A budget that refuses a victim shows here, before the first eviction.
            if not await self._is_evictable(record, victim):
                return
            if not await evictions.evict(self._api, victim, is_dry=True):
                return
        if not await nominate(self._api, record, victims.node, version=pod.metadata.resourceVersion):
            # The pod has changed, so look at it again at once.
            self._not_before.pop(record.uid, None)
            return
        self._nominated[record.uid] = victims.node
        await self._post_to_pod(record, victims, "Preempting", "will fit")
        evicted: set[str] = set()
        for at, victim in enumerate(victims.pods):
            remaining = [pod.uid for pod in victims.pods[at:]]
            is_waiting = await self._get(record) is not None
            is_needed = is_waiting and self._alignment.still_needs(pod, victims.node, evicted, remaining)
            if not is_needed or not await evictions.evict(self._api, victim):
                break
            evicted.add(victim.uid)
            until = self._clock() + _LONGEST_END_S
            self._evictions[record.uid] = _Eviction(victims.node, frozenset(evicted), until)
            self._evicted.append((self._clock(), record.namespace))
            self._ledger.count("evicted_for_alignment")
            await self._post_to_victim(record, victim, "Preempted", "was evicted")
        if evicted:
            self._rounds[record.uid] = rounds = self._rounds.get(record.uid, 0) + 1
            pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(rounds, 16))
            self._not_before[record.uid] = self._clock() + pause
        else:
            # No eviction makes room there, so the nomination would reserve nothing.
            await self._withdraw(record, victims.node)

    async def _get(self, record: PodRecord) -> Pod | None:
        """Returns the pod as it is now, None if it is ending, deleted, or on another node."""
        path = paths.pod(record.namespace, record.name)
        try:
            raw = await self._api.request("GET", path, timeout=controller.REQUEST_TIMEOUT_S)
            pod = kube_scheduler.decode(raw)
        except ApiError as exc:
            if exc.status != 404:
                raise
            return None
        except msgspec.DecodeError:
            return None
        is_there = pod.spec.nodeName == record.node and not pod.metadata.deletionTimestamp
        return pod if pod.metadata.uid == record.uid and is_there else None

    async def _is_evictable(self, record: PodRecord, victim: PodRecord) -> bool:
        """Returns whether an eviction would end the victim: it is not ending yet, and is no static pod, which the
        kubelet runs without the API server."""
        pod = await self._get(victim)
        if pod is not None and MIRROR in (pod.metadata.annotations or {}):
            self._static_uids.put(victim.uid, True)
            # Choose other victims at once.
            self._not_before.pop(record.uid, None)
            return False
        return pod is not None

    async def _withdraw(self, record: PodRecord, node: str) -> None:
        """Withdraws the nomination of a pod, unless another writer has nominated another node."""
        pod = await self._get(record)
        if pod is not None and pod.status is not None and pod.status.nominatedNodeName == node:
            await nominate(self._api, record, "", version=pod.metadata.resourceVersion)

    async def _post_to_victim(self, record: PodRecord, victim: PodRecord, reason: str, outcome: str) -> None:
        what = "devices of claims or NUMA nodes" if record.claims else "NUMA nodes"
        note = (
            f"The pod {outcome} for {record.namespace}/{record.name} (priority {record.priority}, this pod "
            f"{victim.priority}), which waits for {what} of {victim.node} on which the kubelet can align it."
        )
        await events.post(self._api, victim, reason, note, kind="Normal", action="Preempting")

    async def _post_to_pod(self, record: PodRecord, victims: Victims, reason: str, outcome: str) -> None:
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in victims.pods)
        count = len(victims.pods)
        note = f"The pod {outcome} on {victims.node}, aligned, without {count} pods of lower priority: {names}."
        await events.post(self._api, record, reason, note, kind="Normal", action="Preempting")
