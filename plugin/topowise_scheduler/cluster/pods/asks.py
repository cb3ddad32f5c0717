"""What a pod that waits asks of kube-scheduler's own filters, as far as it is looked at ahead of kube-scheduler.

Invariant: a pod that asks for anything that is not looked at here says so in `left_alone`, and so does one of which
kube-scheduler itself looks at one node alone. What nobody knows of is not looked at.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise_scheduler import kube_scheduler
from topowise_scheduler.kube_scheduler import Affinity, Spec, Taint

# Volumes that are wherever the pod is; "name" is a volume's own.
_ANYWHERE: Final = frozenset(
    ("name", "configMap", "downwardAPI", "emptyDir", "gitRepo", "hostPath", "image", "nfs", "projected", "secret")
)
_PREFERRED: Final = "PreferNoSchedule"
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Asks(msgspec.Struct, frozen=True, gc=False):
    """Shared by pods that ask for the same, which `key` tells. `spec` has what selects nodes, and nothing else.

    `left_alone` says why kube-scheduler has to decide alone, "" if not; `prefers`: the pod declares preferences.
    `never_preempts`: kube-scheduler evicts nobody for it, so no nomination of it is by preemption.
    """

    spec: Spec
    key: bytes
    left_alone: str
    prefers: bool
    never_preempts: bool

    def keeps_off(self, node: kube_scheduler.Node, *, with_preferences: bool) -> bool:
        """Whether the node is none for such a pod, whatever room it has; or only reluctantly, `with_preferences`."""
        if kube_scheduler.kept_off(node, self.spec) is not None:
            return True
        return with_preferences and any(self._avoids(taint) for taint in node.taints)

    def _avoids(self, taint: Taint) -> bool:
        return taint.effect == _PREFERRED and not any(one.covers(taint) for one in self.spec.tolerations or ())


def asks(spec: Spec) -> Asks:
    """What such a pod asks for."""
    required = spec.affinity and spec.affinity.nodeAffinity
    kept = Spec(
        nodeSelector=spec.nodeSelector,
        affinity=Affinity(nodeAffinity=msgspec.structs.replace(required, **_NO_PREFERENCES)) if required else None,
        tolerations=spec.tolerations,
        schedulerName=spec.schedulerName,
    )
    why, prefers, never = _left_alone(spec), _prefers(spec), spec.preemptionPolicy == "Never"
    return Asks(kept, _encode([kept, why, prefers, never]), why, prefers, never)


_NO_PREFERENCES: Final = {"preferredDuringSchedulingIgnoredDuringExecution": None}


def _left_alone(spec: Spec) -> str:
    unexamined = kube_scheduler.unexamined(spec)
    if unexamined:
        return unexamined[0]
    if any(key not in _ANYWHERE for volume in spec.volumes or () for key, given in volume.items() if given is not None):
        return "volumes"
    if spec.schedulingGroup or spec.workloadRef:
        return "gangs"
    if spec.affinity and _names_nodes(spec.affinity):
        # Such as of a DaemonSet: kube-scheduler looks at these nodes alone.
        return "nodes by name"
    return ""


def _names_nodes(affinity: Affinity) -> bool:
    nodes = affinity.nodeAffinity
    required = None if nodes is None else nodes.requiredDuringSchedulingIgnoredDuringExecution
    return required is not None and any(term.matchFields for term in required.nodeSelectorTerms or ())


def _prefers(spec: Spec) -> bool:
    affinity = spec.affinity or Affinity()
    kinds = (affinity.nodeAffinity, affinity.podAffinity, affinity.podAntiAffinity)
    if any(one is not None and one.preferredDuringSchedulingIgnoredDuringExecution for one in kinds):
        return True
    return any(one.whenUnsatisfiable == "ScheduleAnyway" for one in spec.topologySpreadConstraints or ())
