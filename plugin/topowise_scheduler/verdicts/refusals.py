"""The texts of refusals, which kube-scheduler writes into the pod's status.

A changed text requeues the pod, so a text with a changing number causes an endless loop (measured: 1,081 calls in 45
s). So the texts are constant, and `explain` shows the missing amounts. They share a prefix that identifies our waiting
pods after a restart.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "NUMA: "

NOT_NOW: Final = PREFIX + "no room that the kubelet could align"
NEVER: Final = PREFIX + "node too small for the kubelet to align the pod"
NOT_ALLOCATABLE: Final = PREFIX + "kubelet could not allocate CPUs, memory or devices"
NEVER_ALLOCATABLE: Final = PREFIX + "node can never allocate the CPUs, memory or devices"
NOT_WHOLE_CORES: Final = PREFIX + "kubelet gives whole physical cores only"
NO_SHARED_POOL: Final = PREFIX + "pod leaves no CPUs or memory for its shared containers"
WOULD_HANG: Final = PREFIX + "kubelet would search forever for CPUs of the pod"
WOULD_PANIC: Final = PREFIX + "kubelet would panic while it admits the pod"
TOO_SLOW: Final = PREFIX + "kubelet would take too long to admit the pod"
SIDECARS: Final = PREFIX + "kubelet does not take pods with sidecars"
LACKS_GATE: Final = PREFIX + "kubelet does not take pods with pod-level resources"
OUT_OF: Final = PREFIX + "node allocatable is used up"
NEVER_ENOUGH: Final = PREFIX + "node allocatable is too small"
QUARANTINED: Final = PREFIX + "kubelet refused such a pod, waiting for a new report of the node"
UNCONFIRMED: Final = PREFIX + "kubelet is restarting, waiting for a report that it confirms"
NEW_NODE: Final = PREFIX + "node is new, waiting for the first report of its exporter"
RESERVED_ELSEWHERE: Final = PREFIX + "another node is reserved for the pod, with the pods of its job"
EXPORTER_DOWN: Final = (
    PREFIX + "no exporter is Ready on the node and its report lacks pods, waiting for a new report of the node"
)
UNCERTAIN: Final = (
    PREFIX + "pod does not fit every possible placement of the newest pods, waiting for a new report of the node"
)
WEAKER_POLICY: Final = PREFIX + "Topology Manager policy is weaker than the pod asks for"
OTHER_POLICY: Final = PREFIX + "Topology Manager policy differs from the policy that the pod asks for"
NOT_NEAR: Final = PREFIX + "devices would be farther apart than the pod requires"
NOT_SURELY_NEAR: Final = PREFIX + "devices might be farther apart than the pod requires"
STEERING_IS_OFF: Final = PREFIX + "pod requires a NUMA node, but steering is not enabled in topowise-scheduler"
NOT_STEERED_BY_POLICY: Final = PREFIX + "pod requires a NUMA node, but the Topology Manager policy of the node is none"
NOT_STEERED_BY_BINDER: Final = (
    PREFIX + "pod requires a NUMA node, but a scheduler binds it that sends no steering requests"
)
NO_MARKERS: Final = PREFIX + "pod requires a NUMA node, but not each of its containers requests topowise.io/numa"
NODE_HAS_NO_MARKERS: Final = PREFIX + "pod requires a NUMA node, but the node offers no topowise.io/numa"
TOO_FEW_MARKERS: Final = PREFIX + "node has too few free topowise.io/numa"
NO_SUCH_NUMA_NODE: Final = PREFIX + "node does not report the NUMA node that the pod requires"
NUMA_NODE_FULL: Final = PREFIX + "NUMA node that the pod requires has no room"
NO_COMMON_NUMA_NODE: Final = PREFIX + "no NUMA node of the node meets all requirements of the pod"
NO_POD_BESIDE: Final = PREFIX + "no pod on the node is beside which topowise.io/numa-affinity requires the pod"
NONE_APART: Final = PREFIX + "each NUMA node has a pod from which topowise.io/numa-affinity keeps the pod apart"
PODS_NOT_LOCATED: Final = (
    PREFIX + "pods of topowise.io/numa-affinity have no known NUMA node, waiting for a new report of the node"
)
OF_STEERING: Final = frozenset((TOO_FEW_MARKERS, NUMA_NODE_FULL, NO_COMMON_NUMA_NODE, NO_POD_BESIDE, NONE_APART))
"""Refusals that end with other pods of the node."""
CLAIMS_ARE_OFF: Final = (
    PREFIX + "pod requires CPUs and memory near its claimed devices, but claims are not enabled in topowise-scheduler"
)
CLAIMS_APART: Final = PREFIX + "CPUs and memory would not be on the NUMA node of the pod's claimed devices"
CLAIMS_MISPREDICTED: Final = (
    PREFIX + "pod's claim got other devices than predicted, waiting for kube-scheduler to allocate it again"
)
DEVICES_RESERVED: Final = PREFIX + "devices of the node are reserved for a nominated pod of a higher priority"
OF_CLAIMS: Final = frozenset((CLAIMS_APART, CLAIMS_MISPREDICTED, DEVICES_RESERVED))
"""Refusals that end with other pods or claims of the node."""
TOO_LARGE: Final = PREFIX + "pod has too many containers or resource amounts"
PLACES_UNKNOWN: Final = PREFIX + "node does not report how near its devices are, which the pod requires"
OF_DEVICES: Final = frozenset((NOT_NEAR, NOT_SURELY_NEAR, PLACES_UNKNOWN))
"""Refusals of a node that other pods on the node may end, although evictions are not planned for that."""

_NOW: Final = {
    "TopologyAffinityError": NOT_NOW,
    "UnexpectedAdmissionError": NOT_ALLOCATABLE,
    "SMTAlignmentError": NOT_WHOLE_CORES,
    "EmptyPodSharedPoolError": NO_SHARED_POOL,
    "KubeletWouldHang": WOULD_HANG,
    "KubeletWouldPanic": WOULD_PANIC,
    "InitContainerRestartPolicyForbidden": SIDECARS,
    "PodLevelResourcesNotSupported": LACKS_GATE,
}
_EVER: Final = {**_NOW, "TopologyAffinityError": NEVER, "UnexpectedAdmissionError": NEVER_ALLOCATABLE}


def of(reason: str, *, ever: bool) -> str:
    """Returns the refusal for a kubelet's reason ("" if the pod fits); `ever`: even an empty node would refuse it."""
    if not reason:
        return ""
    if reason.startswith("OutOf"):
        return NEVER_ENOUGH if ever else OUT_OF
    return (_EVER if ever else _NOW)[reason]
