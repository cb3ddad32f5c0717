"""The pods that have ended on a node, while its reports may still list them.

Invariant: nothing here outlives its cause. An end is kept until reports that still list the pod are the kubelet's truth
(`ENDED_KEPT_S`), a release until no prediction depends on it, and a pod that has ended by its own status until it is
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.report import Placements, PodName, Report

# For so long a report that still lists an ended pod is taken for an old one; later, for the kubelet's truth.
ENDED_KEPT_S: Final = 120.0


class Ended(NamedTuple):
    """A pod that has ended: seconds, monotonic, and what it was. `held` is what the exact report of that time listed,
    None if it did not list all of it; `has_left`: a later one has not listed it any more."""

    at: float
    record: PodRecord
    held: Placements | None = None
    has_left: bool = False

    @property
    def name(self) -> PodName:
        """Namespace and name of the pod."""
        return self.record.namespace, self.record.name

    def may_be(self, listed: Placements) -> bool:
        """Whether what an exact report lists under its name may still be this pod, and not one made after it."""
        return not self.has_left and (self.held is None or self.held == listed)


class EndedPods:
    """Those of one node. It is false if there are none; times of releases alone are nothing to keep a node for."""

    def __init__(self) -> None:
        self.ended: dict[PodName, Ended] = {}
        self.releases: list[float] = []
        """When something was given back that pods have for themselves."""
        # Pods by uid that have ended by their own status, and are not deleted yet.
        self._finished: dict[str, PodName] = {}
        # When the service heard of such a pod, if it did not see the end, as the pod ended before the service started.
        self._unseen: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self.ended or self._finished)

    @property
    def will_be_forgotten(self) -> bool:
        """Whether `forget` will have something to do."""
        return bool(self.ended or self.releases or self._unseen)

    def note_report(self, report: Report) -> None:
        """A new exact report: whoever it does not list has left."""
        for name, ended in self.ended.items():
            if ended.held is not None and name not in report.held:
                self.ended[name] = ended._replace(has_left=True)

    def finish(self, uid: str, name: PodName, now: float) -> None:
        """A pod has ended by its own status, which its kubelet writes when nothing of it runs any more."""
        self._finished[uid] = name
        if name not in self.ended:
            self._unseen.setdefault(uid, now)

    def forget_finished(self, uid: str) -> PodName | None:
        """It was deleted; its name, if it was known here."""
        self._unseen.pop(uid, None)
        return self._finished.pop(uid, None)

    def forget(self, now: float) -> list[Ended]:
        """Ends and releases of long ago; the ends that are forgotten."""
        self.releases = [at for at in self.releases if now - at < ENDED_KEPT_S]
        late = [name for name, ended in self.ended.items() if now - ended.at >= ENDED_KEPT_S]
        return [self.ended.pop(name) for name in late]

    def forget_unseen(self, now: float) -> list[PodName]:
        """Returns the names of finished pods that a report may list again, as it is newer than their end by now."""
        late = [uid for uid, at in self._unseen.items() if now - at >= ENDED_KEPT_S]
        for uid in late:
            del self._unseen[uid]
        return [self._finished[uid] for uid in late]

    def in_report(self, report: Report) -> set[PodName]:
        """The names under which a report may list what nobody holds any more: those of pods, and their uids where it
        has nothing but these, which is what a finished init container left to a pod."""
        return {*self.ended, *(("", one.record.uid) for one in self.ended.values()), *self._listed_finished(report)}

    def _listed_finished(self, report: Report) -> Iterable[PodName]:
        if not self._finished:
            return
        # There may be thousands of them, and never so many that are listed.
        yield from (name for name in report.held if not name[0] and name[1] in self._finished)
        if report.lists_ended:
            yield from (name for name in self._finished.values() if name in report.held)
        else:
            yield from (name for uid in self._unseen if (name := self._finished[uid]) in report.held)


def lists_finished(report: Report, uid: str, name: PodName) -> bool:
    """Whether a report lists something of a pod that has ended by its own status. By its uid alone it has one that List
    does not have: the managers keep what was given to a pod until the next one is admitted."""
    return ("", uid) in report.held or name in report.held
