"""Which pods to evict from one node so that a more important pod fits, NUMA node by NUMA node.

kube-scheduler's dry run asks its in-tree filters only, so it does not see that what it evicts leaves holes on different
NUMA nodes, and for alignment alone it evicts nobody up to 1.37 and proposes nobody from 1.38 on. Here the exact kubelet
model is asked instead: `choose` keeps what kube-scheduler proposes and adds the least harmful pods without which the
kubelet would refuse. Everything is a function of values.

roster.py has the pods in kube-scheduler's order and the harm of a set of them, trials.py asks the model, shares.py says
who holds what the pod wants, cover.py finds a least harmful set within limits, search.py puts budgets first, victims.py
confirms the answer, budgets.py knows which PodDisruptionBudget selects a pod.

Upstream: pkg/scheduler/framework/preemption, pkg/scheduler/framework/plugins/defaultpreemption (1.36).
"""

from topowise_scheduler.preemption.budgets import Budget, Budgets, decode_budget
from topowise_scheduler.preemption.roster import Choice, Running
from topowise_scheduler.preemption.victims import choose, choose_for_all

__all__ = ["Budget", "Budgets", "Choice", "Running", "choose", "choose_for_all", "decode_budget"]
