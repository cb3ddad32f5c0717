"""Evicts the victims of alignment.py: gently, and nobody in vain.

The node is written to `status.nominatedNodeName` first, so that kube-scheduler and we keep the room for the pod. Every
eviction is asked of the API server with dryRun before the first is made, as one that a budget refuses would make those
before it vain; and before each it is looked again whether the pod still waits, and still needs it. Evictions go by
policy/v1, which respects budgets and gives the victim its time to end. As long as those evicted for a pod are there,
nobody else is evicted for it.

A tenant who has many pods wait, or who keeps them from taking the room that was made, must not keep other tenants' pods
waiting: some pods are looked at in a tick, of like priority one of each namespace first, and a pod that still waits
after evictions has to wait twice as long for the next ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from topowise.bounded import Bounded
from topowise.errors import ApiError, ParseError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise_scheduler import kube_scheduler
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.configuration import Preemptor as Settings
from topowise_scheduler.kube_scheduler import MIRROR, Pod
from topowise_scheduler.leader import chore, events, evictions
from topowise_scheduler.leader.alignment import AlignmentPreemption, Victims
from topowise_scheduler.leader.nomination import nominate

_INTERVAL_S: Final = 1.0
_MINUTE_S: Final = 60.0
# A pod for which there is nobody to evict is not looked at again before that, nor one whose victims do not end.
_PAUSE_S: Final = 30.0
_LONGEST_END_S: Final = 600.0
_LONGEST_PAUSE_S: Final = 3600.0
_STATIC_BYTES: Final = 1 << 19
# Pods looked at in a tick: up to a second each where nodes are many and busy.
_MOST_LOOKS: Final = 16


class _Going(msgspec.Struct, frozen=True):
    """Who was evicted for a pod, and until when (seconds, monotonic) they are waited for."""

    node: str
    victims: frozenset[str]
    until: float


class Preemptor:
    """For pods that wait, the most important first."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        alignment: AlignmentPreemption,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._alignment = alignment
        self._settings = settings
        self._clock = clock
        # By uid: when a pod was first seen to wait, and when it may be looked at again.
        self._since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._going: dict[str, _Going] = {}
        self._nominated: dict[str, str] = {}
        # How often pods were evicted for it.
        self._rounds: dict[str, int] = {}
        # Whom no eviction ends.
        self._static: Bounded[str, bool] = Bounded(_STATIC_BYTES, lambda uid, _: len(uid))
        self._evicted_at: list[float] = []
        self._told: dict[str, tuple[str, ...]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        await chore.run("evict pods for one that waits for alignment", self.due, self._make_room, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, PodRecord]:
        """The next pods to look at of those that have waited for long enough, by uid."""
        waiting, now = self._ledger.waiting, self._clock()
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        for kept in (self._not_before, self._told, self._nominated, self._rounds):
            for uid in kept.keys() - waiting.keys():
                del kept[uid]
        self._going = {uid: one for uid, one in self._going.items() if self._is_going(one, now)}
        ready = [
            record
            for uid, record in waiting.items()
            if now >= max(self._since[uid] + self._settings.patience, self._not_before.get(uid, 0.0))
            and uid not in self._going
        ]
        return {record.uid: record for record in self._in_turn(ready)[:_MOST_LOOKS]}

    def _in_turn(self, ready: Sequence[PodRecord]) -> list[PodRecord]:
        """Returns the pods in the order in which they are looked at: those that never were first, the most important
        ones first, and of like priority one of each namespace before a second one."""
        turns: Counter[tuple[str, int]] = Counter()
        places: dict[str, tuple[float, int, int]] = {}
        by_age = sorted(ready, key=lambda record: (record.started, record.uid))
        for record in by_age:
            tenant = record.namespace, record.priority
            places[record.uid] = self._not_before.get(record.uid, 0.0), -record.priority, turns[tenant]
            turns[tenant] += 1
        return sorted(by_age, key=lambda record: places[record.uid])

    def _is_going(self, one: _Going, now: float) -> bool:
        return now < one.until and any(pod.uid in one.victims for pod in self._ledger.pods_on(one.node))

    @property
    def _allowance(self) -> int:
        """How many may be evicted now."""
        self._evicted_at = [at for at in self._evicted_at if at > self._clock() - _MINUTE_S]
        return self._settings.per_minute - len(self._evicted_at)

    async def _make_room(self, record: PodRecord) -> None:
        """Evicts for one pod if that helps. Raises ApiError."""
        if self._allowance < 1:
            return
        try:
            await self._look(record)
        except ApiError:
            # When it is tried again is the chore's business.
            self._not_before.pop(record.uid, None)
            raise

    async def _look(self, record: PodRecord) -> None:
        self._not_before[record.uid] = self._clock() + _PAUSE_S
        pod = await self._get(record)
        nominated = "" if pod is None or pod.status is None else pod.status.nominatedNodeName
        if pod is None or nominated not in ("", self._nominated.get(record.uid)):
            # Somebody else sees to it, as kube-scheduler while it evicts.
            return
        spared = set(self._static).union(*(going.victims for going in self._going.values()))
        try:
            found = await self._alignment.choose(pod, self._settings.per_minute, spared)
        except ParseError:
            return
        if found is None:
            return
        if self._settings.dry_run:
            await self._tell_only(record, found)
        elif len(found.pods) <= self._allowance:
            await self._evict(record, pod, found)
        else:
            # Until so many may be evicted at once.
            over = len(found.pods) - self._allowance
            self._not_before[record.uid] = self._evicted_at[over - 1] + _MINUTE_S

    async def _tell_only(self, record: PodRecord, found: Victims) -> None:
        uids = tuple(one.uid for one in found.pods)
        if self._told.get(record.uid) == uids:
            return
        self._told[record.uid] = uids
        for victim in found.pods:
            await self._tell_victim(record, victim, "WouldPreempt", "would be evicted")
        await self._tell_pod(record, found, "WouldPreempt", "would fit")

    async def _evict(self, record: PodRecord, pod: Pod, found: Victims) -> None:
        for victim in found.pods:
            # A budget that refuses one of them says so here, before anybody has gone.
            if not await self._is_evictable(record, victim):
                return
            if not await evictions.evict(self._api, victim, is_dry=True):
                return
        if not await nominate(self._api, record, found.node, version=pod.metadata.resourceVersion):
            # It has changed in between, so it is looked at again.
            self._not_before.pop(record.uid, None)
            return
        self._nominated[record.uid] = found.node
        await self._tell_pod(record, found, "Preempting", "will fit")
        gone: set[str] = set()
        for at, victim in enumerate(found.pods):
            rest = [one.uid for one in found.pods[at:]]
            is_needed = await self._get(record) is not None and self._alignment.still_needs(pod, found.node, gone, rest)
            if not is_needed or not await evictions.evict(self._api, victim):
                break
            gone.add(victim.uid)
            self._going[record.uid] = _Going(found.node, frozenset(gone), self._clock() + _LONGEST_END_S)
            self._evicted_at.append(self._clock())
            self._ledger.count("evicted_for_alignment")
            await self._tell_victim(record, victim, "Preempted", "was evicted")
        if gone:
            self._rounds[record.uid] = rounds = self._rounds.get(record.uid, 0) + 1
            pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(rounds, 16))
            self._not_before[record.uid] = self._clock() + pause
        else:
            # Nobody makes room there, so none is kept.
            await self._let_go(record, found.node)

    async def _get(self, record: PodRecord) -> Pod | None:
        """The pod as it is, None if it ends, or is not where it was."""
        path = paths.pod(record.namespace, record.name)
        try:
            raw = await self._api.request("GET", path, timeout=chore.REQUEST_TIMEOUT_S)
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
        """Whether it would be evicted for this pod: not if it ends already, nor if its kubelet runs it whatever the
        API server says."""
        pod = await self._get(victim)
        if pod is not None and MIRROR in (pod.metadata.annotations or {}):
            self._static.put(victim.uid, True)
            # It is looked who else would do.
            self._not_before.pop(record.uid, None)
            return False
        return pod is not None

    async def _let_go(self, record: PodRecord, node: str) -> None:
        """The room of a node is not kept for a pod any more, unless somebody else keeps another for it by now."""
        pod = await self._get(record)
        if pod is not None and pod.status is not None and pod.status.nominatedNodeName == node:
            await nominate(self._api, record, "", version=pod.metadata.resourceVersion)

    async def _tell_victim(self, record: PodRecord, victim: PodRecord, reason: str, what: str) -> None:
        note = (
            f"The pod {what} for {record.namespace}/{record.name} (priority {record.priority}, this one "
            f"{victim.priority}), which waits for NUMA nodes of {victim.node} that its kubelet could align it on."
        )
        await events.post(self._api, victim, reason, note, kind="Normal", action="Preempting")

    async def _tell_pod(self, record: PodRecord, found: Victims, reason: str, what: str) -> None:
        names = ", ".join(f"{one.namespace}/{one.name}" for one in found.pods)
        note = f"The pod {what} on {found.node}, aligned, without {len(found.pods)} less important: {names}."
        await events.post(self._api, record, reason, note, kind="Normal", action="Preempting")
