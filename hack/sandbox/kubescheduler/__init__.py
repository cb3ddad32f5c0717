"""kube-scheduler 1.36 as an extender, an API server and the pods of a cluster experience it.

It schedules one pod at a time on a snapshot with assumed pods, asks the extender, binds in the background while the
next pods are decided, keeps refused pods until an event may have made them schedulable, and writes what it found into
their status. In-tree, it knows node resources (filter and LeastAllocated) and preemption; affinity, taints, volumes and
ports are left out. Sources: pkg/scheduler of Kubernetes 1.36, file by file in the modules here.
"""

from sandbox.kubescheduler.attempt import Attempt, Refused
from sandbox.kubescheduler.extender import Extender, ExtenderError
from sandbox.kubescheduler.scheduler import KubeScheduler

__all__ = ["Attempt", "Extender", "ExtenderError", "KubeScheduler", "Refused"]
