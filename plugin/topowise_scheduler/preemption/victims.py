"""The victims on one node: what kube-scheduler proposes, and the least harmful pods without which that is in vain.

At most MAX_TRIALS admissions are tried and a few more confirm the answer. One takes about 0.1 ms per container of the
pod, a full node of 110 pods and 8 NUMA nodes takes 60 to 240. What may be missed is said in cover.py and search.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.preemption.budgets import Budgets
from topowise_scheduler.preemption.roster import Choice, Roster, Running
from topowise_scheduler.preemption.search import Search
from topowise_scheduler.preemption.trials import Trials

MAX_TRIALS: Final = 256


class Pod(Protocol):
    """What has to be known of a pod that may be evicted."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def priority(self) -> int: ...
    @property
    def started(self) -> str: ...


def choose_for_all(
    state: Kubelet,
    others: Iterable[Kubelet],
    view: Callable[[Kubelet], PodView],
    priority: int,
    pods: Iterable[Pod],
    proposed: Collection[str],
    budgets: Budgets,
) -> Choice | None:
    """As `choose` on the state that the node is predicted to be in, if that helps in the others that it may be in too.

    `view` is the pod as a kubelet sees it, `pods` are those on the node that may be evicted. The others are changed.
    """
    running = [
        Running(one.uid, one.priority, one.started, budgets.matching(one.name, one.namespace, one.labels))
        for one in pods
    ]
    allowed = {key: budgets.allowed(key) for one in running for key in one.budgets}
    choice = choose(state, view(state), priority, running, proposed, allowed)
    return choice if choice is not None and all(_fits_without(one, view, choice) for one in others) else None


def choose(
    node: Kubelet,
    pod: PodView,
    priority: int,
    running: Sequence[Running],
    proposed: Collection[str],
    allowed: Mapping[str, int],
) -> Choice | None:
    """Whom to evict from `node` so that its kubelet admits `pod`; None if evicting less important pods does not help.

    `node` has every pod that is assigned to it booked, and is not changed. `running` are the pods on it that may be
    evicted, those that are no less important than `priority` left aside. `proposed` are the uids kube-scheduler
    proposes: for reasons of its own, so that they always stay victims. `allowed` maps the key of a budget to the
    evictions that are left of it; one that is missing has none.

    An empty choice says that the pod fits as it is. Every answer was confirmed by the model.
    """
    roster = Roster(pod.uid, priority, running, frozenset(proposed), allowed)
    trials = Trials(node, pod, roster, MAX_TRIALS)
    if trials.holds(roster.proposed):
        return roster.choice(roster.proposed)
    found = {roster.proposed | victims for victims in Search(node, trials, roster).sets()}
    for victims in sorted(found, key=lambda one: (roster.harm(one), one)):
        if trials.holds(victims):
            return roster.choice(victims)
    return None


def _fits_without(state: Kubelet, view: Callable[[Kubelet], PodView], choice: Choice) -> bool:
    for uid in choice.victims:
        state.remove(uid)
    return trial(state, view(state)).admission.admitted
