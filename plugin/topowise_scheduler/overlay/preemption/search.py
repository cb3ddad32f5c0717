"""The victims on a node: kube-scheduler's proposal and the least harmful further pods that make the pod fit.

First the fewest violating pods if all other pods are evicted; then, for these, the least harmful set of the other pods.
That is the order of pickOneNodeForPreemption. If further evictions can prevent the admission, some smaller sets to
start from are tried, not all.

At most MAX_TRIALS admissions are tried, and a few more confirm the answer. A trial takes about 0.1 ms per container of
the pod; a full node of 110 pods and 8 NUMA nodes takes 60 to 240 trials.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Final

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import mask_of, members
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.preemption.cover import Accepts, Cover, Trials, narrowed
from topowise_scheduler.overlay.preemption.roster import Choice, PodSet, Roster, Running
from topowise_scheduler.overlay.preemption.shares import Shares

MAX_TRIALS: Final = 256
MAX_GROUNDS: Final = 32
MAX_SWAP_TRIALS: Final = 30
MAX_ALTERNATIVES: Final = 3


class Search:
    """Searches victims in addition to the proposed pods, on the node of these trials."""

    def __init__(self, node: Kubelet, trials: Trials, roster: Roster) -> None:
        self._trials = trials
        self._roster = roster
        self._shares = Shares(node, trials.base, trials.pod, roster)

    def sets(self) -> set[PodSet]:
        """Sets without which, and without the proposed pods, the pod fits; kube-scheduler's result is not better."""
        sets = set()
        for ground in self._grounds():
            violating = ground & self._roster.violating
            rest = ground & ~violating
            choices = [0]
            if not self._trials.fits(rest):
                sets.add(self._cover(0, ground).reprieved())
                choices = self._violators(violating, rest)
            sets.update(violators | self._cover(violators, rest, violators).search() for violators in choices)
        return sets

    def _grounds(self) -> Iterator[PodSet]:
        """Sets to reprieve from: all pods or, if the pod does not fit without all pods, some sets that suffice."""
        all_pods = self._roster.all_pods & ~self._roster.proposed
        if self._trials.fits(all_pods):
            yield all_pods
        elif all_pods and self._may_be_too_many(all_pods):
            for ground in islice(dict.fromkeys(self._smaller(all_pods)), MAX_GROUNDS):
                if self._trials.fits(ground):
                    yield ground

    def _may_be_too_many(self, all_pods: PodSet) -> bool:
        """Whether fewer evictions can suffice although all do not.

        They can if a container takes resources that a later container needs. The predicates and a pod with a single
        container only gain from evictions. They also can if evictions free devices of claims on another NUMA node.
        """
        if self._trials.accepts is not None:
            return True
        return len(self._trials.pod.containers) > 1 and self._trials.admission(all_pods).stage == "topology"

    def _smaller(self, all_pods: PodSet) -> Iterator[PodSet]:
        """The pods up to a priority, the pods on a NUMA node, and all pods without one or two."""
        for priority in self._roster.priorities(all_pods):
            yield self._roster.up_to(priority, all_pods)
        for position in members(self._shares.everywhere):
            yield self._shares.holders(1 << position, all_pods)
        for number in (1, 2):
            for pods in combinations(members(all_pods), number):
                yield all_pods & ~mask_of(pods)

    def _violators(self, violating: PodSet, rest: PodSet) -> list[PodSet]:
        """Smallest sets of violating pods without which the pod fits, if `rest` is evicted too: some alternatives."""
        fewest = self._cover(rest, violating).search()
        if self._trials.fits(fewest):
            # No further victim is needed, so no alternative is less harmful.
            return [fewest]
        # The further victims depend on which of the violating pods are evicted.
        choices = [fewest, *self._swaps(fewest, violating, rest)]
        highest = {
            pods: self._roster.harm(pods | narrowed(self._trials, self._roster, pods, rest)).highest_priority
            for pods in choices
        }
        choices = [pods for pods in choices if highest[pods] == min(highest.values())]
        return choices[:MAX_ALTERNATIVES]

    def _swaps(self, victims: PodSet, violating: PodSet, rest: PodSet) -> Iterator[PodSet]:
        """The sets with a victim exchanged for another violating pod, as far as trials allow."""
        until = self._trials.left - MAX_SWAP_TRIALS
        for spared in members(victims):
            for evicted in reversed(list(members(violating & ~victims))):
                if self._trials.left <= max(0, until):
                    return
                swapped = victims & ~(1 << spared) | 1 << evicted
                if self._trials.fits(rest | swapped):
                    yield swapped

    def _cover(self, base: PodSet, pool: PodSet, victims: PodSet = 0) -> Cover:
        counted = self._roster.proposed | victims
        return Cover(self._trials, self._roster, self._shares, base=base, pool=pool, counted=counted)


def choose_on(
    answers: Answers,
    record: PodRecord,
    name: str,
    state: Kubelet,
    pods: Iterable[PodRecord],
    budgets: Budgets,
    proposed: Collection[str] = (),
    *,
    leaving: Collection[str] = (),
    priority: int | None = None,
) -> Choice | None:
    """The choice for a node of the cluster in its predicted `state`; None if the node would not take the pod then, in
    whichever of its possible states (Answers.takes_without).

    `pods` are the pods on the node that may be evicted, those `leaving` leave anyway, and `priority` replaces that of
    the pod.
    """
    running = [
        Running(pod.uid, pod.priority, pod.status.started, budgets.matching(pod.name, pod.namespace, pod.labels))
        for pod in pods
    ]
    allowed = {key: budgets.allowed(key) for pod in running for key in pod.budgets}
    accepts = answers.accepts(record, name, leaving)
    priority = record.priority if priority is None else priority
    choice = choose(state, record.view(state), priority, running, proposed, allowed, accepts)
    if choice is None or not answers.takes_without(record, name, {*leaving, *choice.victims}):
        return None
    return choice


def choose(
    node: Kubelet,
    pod: PodView,
    priority: int,
    running: Sequence[Running],
    proposed: Collection[str],
    allowed: Mapping[str, int],
    accepts: Accepts | None = None,
) -> Choice | None:
    """The pods to evict from `node` so that its kubelet admits `pod`, None if no evictions help.

    `node` has all assigned pods and does not change. `running` are the pods on it that may be evicted; only pods with a
    lower priority than `priority` are. `proposed` are the uids that kube-scheduler proposes. It has further reasons for
    these, so they always stay victims. `allowed` maps the key of a budget to its remaining evictions, 0 by default.

    `accepts` (`Accepts`) is asked about sets without which the kubelet admits the pod.

    An empty choice means that the pod fits without evictions. The model has confirmed every answer.
    """
    roster = Roster(pod.uid, priority, running, frozenset(proposed), allowed)
    trials = Trials(node, pod, roster, MAX_TRIALS, accepts)
    if trials.holds(roster.proposed):
        return roster.choice(roster.proposed)
    sets = {roster.proposed | victims for victims in Search(node, trials, roster).sets()}
    for victims in sorted(sets, key=lambda pods: (roster.harm(pods), pods)):
        if trials.holds(victims):
            return roster.choice(victims)
    return None
