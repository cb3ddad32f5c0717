"""The texts of refusals, for all answers, events, screens and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from topowise_scheduler.explain.text import most_frequent_first
from topowise_scheduler.verdicts.refusals import OF_KUBELET, PREFIX, Reason, Refusal

if TYPE_CHECKING:
    from topowise_scheduler.ledger.ledger import Ledger
    from topowise_scheduler.options.device_affinity import outcomes

_WITH_PREFIX: Final[Mapping[Refusal, str]] = {
    Refusal.NOT_NOW: "no room that the kubelet could align",
    Refusal.NEVER: "node too small for the kubelet to align the pod",
    Refusal.NOT_ALLOCATABLE: "kubelet could not allocate CPUs, memory or devices",
    Refusal.NEVER_ALLOCATABLE: "node can never allocate the CPUs, memory or devices",
    Refusal.NOT_WHOLE_CORES: "kubelet gives whole physical cores only",
    Refusal.NO_SHARED_POOL: "pod leaves no CPUs or memory for its shared containers",
    Refusal.WOULD_HANG: "kubelet would search forever for CPUs of the pod",
    Refusal.WOULD_PANIC: "kubelet would panic while it admits the pod",
    Refusal.TOO_SLOW: "kubelet would take too long to admit the pod",
    Refusal.SIDECARS: "kubelet does not take pods with sidecars",
    Refusal.LACKS_GATE: "kubelet does not take pods with pod-level resources",
    Refusal.OUT_OF: "node allocatable is used up",
    Refusal.NEVER_ENOUGH: "node allocatable is too small",
    Refusal.QUARANTINED: "kubelet refused such a pod, waiting for a new report of the node",
    Refusal.UNCONFIRMED: "kubelet is restarting, waiting for a report that it confirms",
    Refusal.NEW_NODE: "node is new, waiting for the first report of its exporter",
    Refusal.RESERVED_ELSEWHERE: "another node is reserved for the pod, with the pods of its job",
    Refusal.EXPORTER_DOWN: (
        "no exporter is Ready on the node and its report lacks pods, waiting for a new report of the node"
    ),
    Refusal.UNCERTAIN: (
        "pod does not fit every possible placement of the newest pods, waiting for a new report of the node"
    ),
    Refusal.WEAKER_POLICY: "Topology Manager policy is weaker than the pod asks for",
    Refusal.OTHER_POLICY: "Topology Manager policy differs from the policy that the pod asks for",
    Refusal.NOT_NEAR: "devices would be farther apart than the pod requires",
    Refusal.NOT_SURELY_NEAR: "devices might be farther apart than the pod requires",
    Refusal.STEERING_IS_OFF: "pod requires a NUMA node, but steering is not enabled in topowise-scheduler",
    Refusal.NOT_STEERED_BY_POLICY: "pod requires a NUMA node, but the Topology Manager policy of the node is none",
    Refusal.NOT_STEERED_BY_BINDER: "pod requires a NUMA node, but a scheduler binds it that sends no steering requests",
    Refusal.NO_MARKERS: "pod requires a NUMA node, but not each of its containers requests topowise.io/numa",
    Refusal.NODE_HAS_NO_MARKERS: "pod requires a NUMA node, but the node offers no topowise.io/numa",
    Refusal.TOO_FEW_MARKERS: "node has too few free topowise.io/numa",
    Refusal.NO_SUCH_NUMA_NODE: "node does not report the NUMA node that the pod requires",
    Refusal.NUMA_NODE_FULL: "NUMA node that the pod requires has no room",
    Refusal.NO_COMMON_NUMA_NODE: "no NUMA node of the node meets all requirements of the pod",
    Refusal.NO_POD_BESIDE: "no pod on the node is beside which topowise.io/numa-affinity requires the pod",
    Refusal.NONE_APART: "each NUMA node has a pod from which topowise.io/numa-affinity keeps the pod apart",
    Refusal.PODS_NOT_LOCATED: (
        "pods of topowise.io/numa-affinity have no known NUMA node, waiting for a new report of the node"
    ),
    Refusal.CLAIMS_ARE_OFF: (
        "pod requires CPUs and memory near its claimed devices, but claims are not enabled in topowise-scheduler"
    ),
    Refusal.CLAIMS_APART: "CPUs and memory would not be on the NUMA node of the pod's claimed devices",
    Refusal.CLAIMS_WERE_APART: (
        "kube-scheduler allocated devices apart from CPUs and memory to the pod there a short while ago"
    ),
    Refusal.DEVICES_RESERVED: "devices of the node are reserved for a nominated pod of a higher priority",
    Refusal.TOO_LARGE: "pod has too many containers or resource amounts",
    Refusal.PLACES_UNKNOWN: "node does not report how near its devices are, which the pod requires",
}
_WITHOUT_PREFIX: Final[Mapping[Refusal, str]] = {
    Refusal.BEFORE_OTHERS: "a pod that is on its way there would be refused if this pod came first",
    Refusal.BEFORE_EXPECTED: "it would be refused if it came before pods that are only expected there",
    Refusal.OTHER_ORDER: "a pod that is on its way there would be refused if they came in another order",
    Refusal.IS_BOUND: "it is bound already",
    Refusal.NOT_REPORTED: "the node is not reported any more",
    Refusal.NOT_SEEN: "no watch has brought the pod yet, if there is one",
    Refusal.NO_REPORT: "not reported",
    Refusal.TAKEN_BEFORE: "taken by the pods before it",
    Refusal.UNREADABLE: "annotations of the pod cannot be read",
    # The node fits: a pod that fails elsewhere does not wait for NUMA placement.
    Refusal.BETTER_NODE: "node would fit, but topowise named a better node",
}
TEXTS: Final[Mapping[int, str]] = {
    0: "",
    **{int(refusal): PREFIX + words for refusal, words in _WITH_PREFIX.items()},
    **{int(refusal): words for refusal, words in _WITHOUT_PREFIX.items()},
}
"""By the number of the refusal, with "" for a node that is not refused (0)."""
# By the outcome of a term of device affinity, and by the kind of the reason against it.
_AFFINITY: Final[Mapping[str, str]] = {
    "sure": "every choice of the kubelet meets it",
    "possible": "it depends on the devices that the kubelet takes: {}",
    "impossible": "no choice of the kubelet meets it: {}",
    "unknown": "{}",
}
_AGAINST: Final[Mapping[str, str]] = {
    "nothing": "",
    "unlisted": "not all of its devices are known",
    "no paths": "no report has the PCI paths of the node's devices",
    "no path": "no report has the PCI path of {}",
    "refused": "the kubelet refuses the pod",
    "not examined": "not all choices can be examined",
    "unconfirmed": "no report has confirmed the placement of its newest pods",
    "apart": "{} and {} are {distance} apart",
    "two apart": "two of {} at {} are {distance} apart",
}


def text(reason: Reason | None) -> str:
    """Returns the text in answers, "" for a node that is not refused."""
    return reason if isinstance(reason, str) else TEXTS[reason or 0]


def bare(reason: Reason) -> str:
    """Returns the text without the prefix; a reason that is a text stays."""
    return TEXTS[reason].removeprefix(PREFIX) if isinstance(reason, Refusal) else reason


def value(reason: Reason | None) -> str:
    """Returns what is the same for all nodes of a reason: a refusal's name, or words as they are; "" for None."""
    return reason.name if isinstance(reason, Refusal) else reason or ""


def affinity(outcome: outcomes.Outcome, reason: outcomes.Reason) -> str:
    """Returns why a term of device affinity has this outcome on a node."""
    return _AFFINITY[outcome].format(against(reason))


def against(reason: outcomes.Reason) -> str:
    """Returns what is against a term of device affinity."""
    return _AGAINST[reason.kind].format(*reason.devices, distance=reason.distance or "an unknown distance")


def unschedulable(reasons: Mapping[Reason, int]) -> str:
    """ "0/3 nodes: 2 Insufficient cpu, 1 ...", as kube-scheduler writes it, from the number of nodes by reason."""
    by_text: Counter[str] = Counter()
    for reason, count in reasons.items():
        by_text[text(reason)] += count
    parts = [f"{count} {words}" for words, count in most_frequent_first(by_text)]
    return f"0/{by_text.total()} nodes: {', '.join(parts)}"


def not_together(refused: Mapping[Reason, int] | None, refusing: str) -> str:
    """Returns why not all pods of a group have a place (GroupPlacement), "" if they have."""
    if refused is None:
        return ""
    if not refusing:
        return unschedulable(refused)
    return f"{refusing} does not take the pod: {', '.join(map(_own_reason, refused))}"


_REASONS: Final = {refusal: reason for reason, refusal in OF_KUBELET.items()}


def at_bind(refusal: Refusal, ledger: Ledger, uid: str, node: str) -> str:
    """Returns the text for a pod that cannot be bound to, or reserved on, a node: with the kubelet's own reason."""
    if refusal is Refusal.IS_BOUND:
        return f"it is bound to {ledger.pods.of(uid).node} already"
    if refusal is Refusal.UNCONFIRMED:
        return f"the report of {node} is not confirmed by its kubelet ({', '.join(ledger.gates.unconfirmed.why(node))})"
    return _own_reason(refusal)


def _own_reason(refusal: Reason) -> str:
    """Returns the kubelet's reason, or else the text."""
    if isinstance(refusal, Refusal):
        return _REASONS.get(refusal) or TEXTS[refusal]
    return refusal
