"""The victims on a node so that its kubelet can align a pod of higher priority.

kube-scheduler's dry run uses its in-tree filters only. It does not see that its victims may free resources on different
NUMA nodes. For alignment alone it evicts no pods up to 1.37 and proposes no victims from 1.38 on. Here the kubelet
model decides: `choose` keeps kube-scheduler's victims and adds the least harmful pods without which the kubelet would
refuse. Everything is a function of values.

- roster.py: the pods in kube-scheduler's order, and the harm of a set of pods;
- shares.py: the pods' shares of the requested resources;
- cover.py: tries sets on the kubelet model, and searches a least harmful one within limits;
- search.py: the fewest violated budgets, then the least harm; every answer is confirmed.

Upstream: pkg/scheduler/framework/preemption, pkg/scheduler/framework/plugins/defaultpreemption (1.36).
"""

from topowise_scheduler.overlay.preemption.roster import Choice, Running
from topowise_scheduler.overlay.preemption.search import choose, choose_on

__all__ = ["Choice", "Running", "choose", "choose_on"]
