"""The victims on a node: kube-scheduler's proposal and the least harmful further pods that make the pod fit.

At most MAX_TRIALS admissions are tried, and a few more confirm the answer. A trial takes about 0.1 ms per container of
the pod; a full node of 110 pods and 8 NUMA nodes takes 60 to 240 trials. cover.py and search.py name the limits of the
search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.preemption.roster import Choice, Roster, Running
from topowise_scheduler.overlay.preemption.search import Search
from topowise_scheduler.overlay.preemption.trials import Accepts, Trials

MAX_TRIALS: Final = 256


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

    `accepts` (trials.py) is asked about sets without which the kubelet admits the pod.

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
