"""Namespaces whose pods other pods attract or repel, by affinity terms that kube-scheduler scores.

InterPodAffinity scores a new pod by the preferred terms and the required affinity terms of existing pods.

Invariant: the namespaces are those of the terms of all known pods. Label selectors of terms are not read, so a pod may
count as attracted although no term selects it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from topowise import pods

EVERY_NAMESPACE: Final = ""
"""Stands for a term that selects namespaces by label."""


def attracted_namespaces(pod: pods.Pod) -> tuple[str, ...]:
    """Returns the namespaces of the pod's terms that kube-scheduler scores for other pods, sorted."""
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    namespaces: set[str] = set()
    for is_scored, group in ((True, affinity.podAffinity), (False, affinity.podAntiAffinity)):
        if group is None:
            continue
        required = group.requiredDuringSchedulingIgnoredDuringExecution or ()
        preferred = group.preferredDuringSchedulingIgnoredDuringExecution or ()
        for term in (*(required if is_scored else ()), *(weighted.podAffinityTerm for weighted in preferred)):
            if term.namespaceSelector is not None:
                namespaces.add(EVERY_NAMESPACE)
            # GetNamespacesFromPodAffinityTerm (pkg/scheduler/framework/types.go)
            own = () if term.namespaces or term.namespaceSelector is not None else (pod.metadata.namespace,)
            namespaces.update(term.namespaces or own)
    return tuple(sorted(namespaces))


class AttractingPods:
    """Pods with such terms. Not thread-safe."""

    def __init__(self) -> None:
        self._by_uid: dict[str, tuple[str, ...]] = {}
        self._count: Counter[str] = Counter()

    def put(self, uid: str, namespaces: tuple[str, ...]) -> None:
        """Sets the namespaces of a pod's terms; a pod without namespaces is forgotten."""
        before = self._by_uid.pop(uid, ())
        if namespaces:
            self._by_uid[uid] = namespaces
        if before != namespaces:
            self._count.update(namespaces)
            self._count.subtract(before)

    def reach(self, namespace: str) -> bool:
        """Returns whether a term may select pods of the namespace."""
        return self._count[namespace] > 0 or self._count[EVERY_NAMESPACE] > 0
