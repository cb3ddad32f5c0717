"""An emulation of kube-scheduler 1.36, as an extender, an API server and the pods of a cluster see it.

The emulation schedules pods serially on a snapshot with assumed pods, calls the extender, and binds in the background
while the next cycles run. It retries refused pods after an event that may have made them schedulable, and writes their
status. Its in-tree plug-ins are the filters that decide by the Node object (`fit`), LeastAllocated, scheduling gates
and preemption. Affinity between pods, topology spread, volumes and ports are left out, and so are all other scores.
Sources: pkg/scheduler of Kubernetes 1.36, file by file in the modules here.
"""

from sandbox.kubescheduler.cache import Attempt, Refused
from sandbox.kubescheduler.extender import Extender, ExtenderError
from sandbox.kubescheduler.scheduler import KubeScheduler

__all__ = ["Attempt", "Extender", "ExtenderError", "KubeScheduler", "Refused"]
