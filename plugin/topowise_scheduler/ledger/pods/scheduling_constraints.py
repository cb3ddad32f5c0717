"""What the spec of a pending pod requires of nodes in kube-scheduler's own filters, and prefers, as far as it is
checked here.

Invariant: `unexamined` names every requirement that is not checked here. Requirements of fields that this version does
not know are not detected.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.inter_pod import Request
from topowise_scheduler.verdicts.kube_scheduler import PREFER_NO_SCHEDULE, Affinity, Spec, Taint

# As much as a preferred term of the greatest weight.
_AVOIDED_TAINT: Final = 100
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class SchedulingConstraints(msgspec.Struct, frozen=True, gc=False):
    """Pods with equal constraints share one object, found by `key`. `spec` has only what selects nodes.

    `unexamined`: the requirements on nodes that are not checked here. `request`: what the pod requires of other pods,
    where the service examines it; of a pod in the index, the index has it.
    """

    spec: Spec
    key: bytes
    unexamined: tuple[str, ...] = ()
    request: Request | None = None

    def excludes(self, node: kube_scheduler.Node) -> bool:
        """Returns whether these constraints exclude the node."""
        return kube_scheduler.exclusion_of(node, self.spec) is not None

    def aversion(self, node: kube_scheduler.Node) -> int:
        """Returns by how much the pod's preferred node affinity and the node's taints speak against the node: the
        weights of the terms that it does not match."""
        affinity = self.spec.affinity and self.spec.affinity.nodeAffinity
        terms = () if not affinity else affinity.preferredDuringSchedulingIgnoredDuringExecution or ()
        against = sum([term.weight for term in terms if not kube_scheduler.prefers(term, node)]) if terms else 0
        if node.taints:
            against += _AVOIDED_TAINT * sum([self._avoids(taint) for taint in node.taints])
        return against

    def _avoids(self, taint: Taint) -> bool:
        tolerations = self.spec.tolerations or ()
        return taint.effect == PREFER_NO_SCHEDULE and not any(toleration.covers(taint) for toleration in tolerations)


def constraints_of(spec: Spec, between: Request | None = None) -> SchedulingConstraints:
    """Returns the constraints that a pod of this spec has. `between`: what it requires of other pods, if that is
    examined; pods that require different things have different keys."""
    node_affinity = spec.affinity and spec.affinity.nodeAffinity
    selecting = Spec(
        nodeSelector=spec.nodeSelector,
        affinity=Affinity(nodeAffinity=node_affinity) if node_affinity else None,
        tolerations=spec.tolerations,
        schedulerName=spec.schedulerName,
        nodeName=spec.nodeName,
    )
    unexamined = kube_scheduler.unexamined(spec)
    required = between if between is not None and between.is_constrained else None
    return SchedulingConstraints(selecting, _encode([selecting, unexamined, required]), unexamined)
