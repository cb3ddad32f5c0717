"""kube-scheduler's hard constraints between pods, as kube-scheduler itself evaluates them.

The plug-ins NodePorts, PodTopologySpread (DoNotSchedule) and InterPodAffinity (required terms, and the required
anti-affinity of existing pods), on arrays over all nodes. Who names one node in a pod's affinity has to evaluate them
before: with one node left, kube-scheduler counts the pods of this node alone, and the skew never exceeds its maximum.

ScheduleAnyway and preferred terms only order nodes. They are not evaluated; `SchedulingConstraints.has_preferences`
says whether a pod has any.

`objects` decodes pods, `constraints` has what a pod requires and what others see of it, `node_rows` the nodes as rows
of arrays, `filters` the plug-ins, and `index` the pods of the cluster.
"""

from topowise_scheduler.verdicts.inter_pod.constraints import Unexamined
from topowise_scheduler.verdicts.inter_pod.filters import NodeVerdicts
from topowise_scheduler.verdicts.inter_pod.index import InterPodIndex, Trial
from topowise_scheduler.verdicts.inter_pod.objects import Pod, decode

__all__ = ["InterPodIndex", "NodeVerdicts", "Pod", "Trial", "Unexamined", "decode"]
