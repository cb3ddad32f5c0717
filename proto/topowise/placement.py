"""The names that a placement writes to pods, and that admission policies check (charts/topowise/templates/scheduler).

A pod with the gate `GATE` waits until the leader has chosen its node. One patch then names the node and removes the
gate, and any kube-scheduler binds the pod.
"""

from __future__ import annotations

from typing import Final

GATE: Final = "topowise.io/placement"
"""Name of the scheduling gate. As a label of a pod or a namespace with the value `ENABLED` it asks for the gate."""
ENABLED: Final = "enabled"
PLACED_ON: Final = "topowise.io/placed-on"
"""Annotation of a pod whose gate this service has removed: the node that it has chosen, "" if kube-scheduler is to
choose it."""
GROUP: Final = "topowise.io/pod-group"
"""Label: pods of the namespace with the same value are placed together or not at all."""
GROUP_SIZE: Final = "topowise.io/pod-group-size"
"""Annotation beside `GROUP`: how many pods there are to be."""
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
"""Kueue's label of the same meaning (pod groups of plain pods)."""
KUEUE_GROUP_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"
"""Kueue's annotation of the same meaning."""
ALLOCATED_FOR: Final = "topowise.io/allocated-for"
"""Annotation of a ResourceClaim that this service has allocated: the UID of the pod."""
DECISION: Final = "topowise.io/placement-decision"
"""Annotation of the members of a group that were placed together: the same value for all of them."""
