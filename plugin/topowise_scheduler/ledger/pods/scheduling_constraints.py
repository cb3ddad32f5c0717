"""What the spec of a pending pod requires of nodes in kube-scheduler's own filters, as far as the nominator checks it.

Invariant: `unsupported` names every requirement that is not checked here. It also names a requirement by which
kube-scheduler itself looks at one node only. Requirements of fields that this version does not know are not detected.
"""

from __future__ import annotations

import msgspec

from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import PREFER_NO_SCHEDULE, Affinity, Spec, Taint

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class SchedulingConstraints(msgspec.Struct, frozen=True, gc=False):
    """Pods with equal constraints share one object, found by `key`. `spec` has only what selects nodes.

    `unsupported`: why kube-scheduler has to decide about the pod alone, "" if it need not.
    `unexamined`: the requirements on nodes that this service does not check.
    `has_preferences`: the pod declares preferences about nodes.
    `never_preempts`: kube-scheduler evicts no pod for it, so none of its nominations results from preemption.
    """

    spec: Spec
    key: bytes
    unsupported: str
    has_preferences: bool
    never_preempts: bool
    unexamined: tuple[str, ...] = ()

    def excludes(self, node: kube_scheduler.Node, *, with_preferences: bool) -> bool:
        """Returns whether these constraints exclude the node, or also prefer to avoid it (`with_preferences`)."""
        if kube_scheduler.exclusion_of(node, self.spec) is not None:
            return True
        return with_preferences and any(self._avoids(taint) for taint in node.taints)

    def _avoids(self, taint: Taint) -> bool:
        tolerations = self.spec.tolerations or ()
        return taint.effect == PREFER_NO_SCHEDULE and not any(toleration.covers(taint) for toleration in tolerations)


def constraints_of(spec: Spec) -> SchedulingConstraints:
    """Returns the constraints that a pod of this spec has."""
    node_affinity = spec.affinity and spec.affinity.nodeAffinity
    # Preferences only order nodes, so the key says whether there are preferences, and not which.
    required = None
    if node_affinity:
        required = msgspec.structs.replace(node_affinity, preferredDuringSchedulingIgnoredDuringExecution=None)
    selecting = Spec(
        nodeSelector=spec.nodeSelector,
        affinity=Affinity(nodeAffinity=required) if required else None,
        tolerations=spec.tolerations,
        schedulerName=spec.schedulerName,
        nodeName=spec.nodeName,
    )
    unsupported, prefers, never_preempts = _unsupported(spec), _has_preferences(spec), spec.preemptionPolicy == "Never"
    unexamined = kube_scheduler.unexamined(spec)
    key = _encode([selecting, unsupported, prefers, never_preempts, unexamined])
    return SchedulingConstraints(selecting, key, unsupported, prefers, never_preempts, unexamined)


def _unsupported(spec: Spec) -> str:
    unexamined = kube_scheduler.unexamined(spec)
    if unexamined:
        return unexamined[0]
    if kube_scheduler.dependent_volumes(spec.volumes or ()):
        return "volumes"
    if spec.schedulingGroup or spec.workloadRef:
        return "gangs"
    if spec.affinity and _selects_by_name(spec.affinity):
        # kube-scheduler evaluates only these nodes, so a nomination saves nothing. Pods of a DaemonSet are such pods.
        return "nodes by name"
    return ""


def _selects_by_name(affinity: Affinity) -> bool:
    nodes = affinity.nodeAffinity
    required = None if nodes is None else nodes.requiredDuringSchedulingIgnoredDuringExecution
    return required is not None and any(term.matchFields for term in required.nodeSelectorTerms or ())


def _has_preferences(spec: Spec) -> bool:
    affinity = spec.affinity or Affinity()
    terms = (affinity.nodeAffinity, affinity.podAffinity, affinity.podAntiAffinity)
    if any(term is not None and term.preferredDuringSchedulingIgnoredDuringExecution for term in terms):
        return True
    return any(constraint.whenUnsatisfiable == "ScheduleAnyway" for constraint in spec.topologySpreadConstraints or ())
