"""The Filter steps of NodePorts, PodTopologySpread and InterPodAffinity for all nodes at once.

`counts` says how many pods that satisfy a predicate are on the node of each row; everything else is arithmetic on
arrays. The first refusal of a node counts, in the order of kube-scheduler's plug-ins, with its words. A node without a
Node object is refused too, because kube-scheduler does not have it.

Upstream: plugins/nodeports/node_ports.go, plugins/podtopologyspread/filtering.go, plugins/interpodaffinity/filtering.go
(1.36).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.inter_pod.constraints import HostPort, NamespaceLabels, PodKind, Request, Spread, Term
from topowise_scheduler.verdicts.inter_pod.node_rows import Domains, Mask, NodeRows, Rows
from topowise_scheduler.verdicts.kube_scheduler import NO_NODE, Objection

Counts: TypeAlias = NDArray[np.int32]
PORTS: Final = "node(s) didn't have free ports for the requested pod ports"
SPREAD: Final = "node(s) didn't match pod topology spread constraints"
LABEL: Final = f"{SPREAD} (missing required label)"
AFFINITY: Final = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
# The code of a name without a Node object.
_NO_NODE: Final = -1


class SpreadPods(msgspec.Struct, frozen=True):
    """Pods that a spread constraint counts (countPodsMatchSelector)."""

    namespace: str
    spread: Spread

    def matches(self, kind: PodKind, _: NamespaceLabels) -> bool:
        """Whether such pods are counted. An empty selector counts none, although it selects all."""
        selector = self.spread.selector
        if kind.leaving or kind.namespace != self.namespace or selector is None or not selector.matchExpressions:
            return False
        return selector.matches(kind.labels)


class TermPods(msgspec.Struct, frozen=True):
    """Pods that all of these terms select (podMatchesAllAffinityTerms)."""

    terms: tuple[Term, ...]

    def matches(self, kind: PodKind, labels_of: NamespaceLabels) -> bool:
        """Whether such pods are counted, also while they are being deleted."""
        return are_selecting(self.terms, kind.namespace, kind.labels, labels_of)


class TermOwners(msgspec.Struct, frozen=True):
    """Pods that have one of these anti-affinity terms, which have one topology key."""

    terms: tuple[Term, ...]

    def matches(self, kind: PodKind, _: NamespaceLabels) -> bool:
        """Whether such pods are counted."""
        return any(term in self.terms for term in kind.anti_affinity)


class PortUsers(msgspec.Struct, frozen=True):
    """Pods with a host port that conflicts with this."""

    port: HostPort

    def matches(self, kind: PodKind, _: NamespaceLabels) -> bool:
        """Whether such pods are counted."""
        return any(self.port.conflicts(port) for port in kind.ports)


Predicate: TypeAlias = SpreadPods | TermPods | TermOwners | PortUsers


class Pods(Protocol):
    """The pods that the filters see. All arrays are by row, at least as long as `rows`; they are not to be changed."""

    rows: NodeRows
    labels_of: NamespaceLabels

    def counts(self, predicate: Predicate) -> Counts:
        """Returns the number of such pods on the node of each row."""

    def terms_against(self, request: Request) -> Sequence[Term]:
        """Returns the anti-affinity terms of pods that select the pod of a request."""


class _Refusal(msgspec.Struct):
    """Nodes that a filter refuses, by row. `detail` returns what a row lacks."""

    rows: Mask
    kind: Literal["ports", "spread", "pod affinity"]
    words: str
    resolvable: bool
    """Whether evictions on the node can help (kube-scheduler's Unschedulable, not UnschedulableAndUnresolvable)."""
    detail: Callable[[int], str]


class NodeVerdicts:
    """Which of the named nodes pass; one entry a name, in their order.

    `codes`: 0 for a node that passes, equal numbers for nodes that the same filter refuses.
    """

    def __init__(
        self, names: Sequence[str], rows: Rows | None, refusals: Sequence[_Refusal], existing: Mask | None
    ) -> None:
        self.names = names
        self._rows = rows
        self._refusals = refusals
        self.codes = np.zeros(len(names), np.int16)
        if rows is None or existing is None:
            return
        by_row = np.zeros(len(existing), np.int16)
        # The first refusal is written last.
        for code in range(len(refusals), 0, -1):
            by_row[refusals[code - 1].rows] = code
        by_row[~existing] = _NO_NODE
        self.codes = by_row[rows]
        self.codes[rows < 0] = _NO_NODE

    @property
    def passes(self) -> Mask:
        """Whether each node passes."""
        passes: Mask = self.codes == 0
        return passes

    def allowed(self) -> list[str]:
        """Returns the names of the nodes that pass."""
        return [self.names[at] for at in np.flatnonzero(self.codes == 0).tolist()]

    def objection(self, at: int) -> Objection | None:
        """Returns why the node at a position is refused, None if it passes."""
        code = int(self.codes[at])
        if code <= 0 or self._rows is None:
            return NO_NODE if code else None
        refusal = self._refusals[code - 1]
        text = f"{refusal.words}: {refusal.detail(int(self._rows[at]))}"
        return Objection(refusal.kind, "not now" if refusal.resolvable else "excluded", refusal.words, text)

    def words(self) -> Counter[str]:
        """Returns the number of nodes by the words of their refusal."""
        codes = Counter(self.codes[self.codes != 0].tolist())
        words: Counter[str] = Counter()
        for code, nodes in codes.items():
            words[NO_NODE.words if code < 0 else self._refusals[code - 1].words] += nodes
        return words


def verdicts(pods: Pods, request: Request, names: Sequence[str], *, as_only: bool = False) -> NodeVerdicts:
    """Returns which nodes pass; for a pod that no constraint concerns all, without a look at the nodes. `as_only`: as
    kube-scheduler sees them once the pod's required node affinity names these nodes only."""
    terms_against = pods.terms_against(request)
    if not request.is_constrained and not terms_against:
        return NodeVerdicts(names, None, (), None)
    pods.rows.refresh()
    rows = pods.rows.resolve(names)
    existing = pods.rows.existing()
    only = None
    if as_only:
        only = np.zeros(pods.rows.capacity, np.bool_)
        only[rows[rows >= 0]] = True
    refusals = [
        *_port_refusals(pods, request.ports),
        *_spread_refusals(pods, request, existing, only),
        *_affinity_refusals(pods, request, terms_against, existing),
    ]
    return NodeVerdicts(names, rows, refusals, existing)


def are_selecting(terms: Iterable[Term], namespace: str, labels: Mapping[str, str], labels_of: NamespaceLabels) -> bool:
    """Returns whether each term selects a pod. A term about a namespace of unknown labels does not."""
    return all(term.reaches(namespace, labels_of) and term.selects(labels) for term in terms)


def _port_refusals(pods: Pods, ports: Sequence[HostPort]) -> list[_Refusal]:
    return [
        _Refusal(
            pods.counts(PortUsers(port)) > 0,
            "ports",
            PORTS,
            resolvable=True,
            detail=_always(f"{port.port}/{port.protocol}"),
        )
        for port in ports
    ]


def _always(text: str) -> Callable[[int], str]:
    return lambda _: text


def _spread_refusals(pods: Pods, request: Request, existing: Mask, only: Mask | None) -> list[_Refusal]:
    if not request.spreads:
        return []
    refusals = []
    columns = [pods.rows.domains(spread.topology_key) for spread in request.spreads]
    # A node counts only if it has the labels of all constraints.
    labelled = existing.copy()
    for domains in columns:
        labelled &= domains.of_row >= 0
    for spread, domains in zip(request.spreads, columns, strict=True):
        included = labelled
        if spread.honours_affinity:
            included = included & pods.rows.selected(request.node_spec)
            if only is not None:
                included &= only
        if spread.honours_taints:
            included = included & pods.rows.tolerated(request.node_spec)
        refusals += _spread(pods, request, spread, domains, included)
    return refusals


def _spread(pods: Pods, request: Request, spread: Spread, domains: Domains, included: Mask) -> list[_Refusal]:
    """The nodes without the label, and those whose domain would exceed the skew."""
    counts = pods.counts(SpreadPods(request.namespace, spread))
    of_row = domains.of_row
    of_included = of_row[included]
    in_domain = np.bincount(of_included, weights=counts[included], minlength=domains.size + 1).astype(np.int64)
    eligible = np.zeros(domains.size + 1, np.bool_)
    eligible[of_included] = True
    is_enough = int(np.count_nonzero(eligible)) >= spread.min_domains
    least = int(in_domain[eligible].min()) if is_enough and eligible.any() else 0
    own = int(spread.selects(request.labels))
    # The last entry is of the nodes without the label.
    matching = in_domain[of_row]
    rows = (of_row >= 0) & (matching + own - least > spread.max_skew)

    def detail(row: int) -> str:
        value = pods.rows.label(row, spread.topology_key)
        return (
            f"{spread.topology_key}={value} has {int(matching[row])} such pods, the fewest are {least}, "
            f"maxSkew is {spread.max_skew}"
        )

    return [
        _Refusal(of_row < 0, "spread", LABEL, resolvable=False, detail=_always(spread.topology_key)),
        _Refusal(rows, "spread", SPREAD, resolvable=True, detail=detail),
    ]


def _affinity_refusals(pods: Pods, request: Request, terms_against: Iterable[Term], existing: Mask) -> list[_Refusal]:
    by_key: defaultdict[str, list[Term]] = defaultdict(list)
    for term in terms_against:
        by_key[term.topology_key].append(term)
    return [
        *([_affinity(pods, request, existing)] if request.affinity else ()),
        *(
            _anti_affinity(pods, term.topology_key, TermPods((term,)), existing, ANTI_AFFINITY)
            for term in request.anti_affinity
        ),
        *(_anti_affinity(pods, key, TermOwners(tuple(terms)), existing, EXISTING) for key, terms in by_key.items()),
    ]


def _affinity(pods: Pods, request: Request, existing: Mask) -> _Refusal:
    """The nodes without a label, or without a pod that all terms select in the domain of each term."""
    counted = existing & (pods.counts(TermPods(request.affinity)) > 0)
    columns = [pods.rows.domains(term.topology_key) for term in request.affinity]
    labelled, beside = existing.copy(), existing.copy()
    is_first = True
    for domains in columns:
        labelled &= domains.of_row >= 0
        rows = _in_domains_of(domains, counted)
        beside &= rows
        is_first = is_first and not rows.any()
    # The first pod of a series that is to be together has no pod to be with.
    passes = beside & labelled
    if is_first and are_selecting(request.affinity, request.namespace, request.labels, pods.labels_of):
        passes = labelled
    keys = ", ".join(dict.fromkeys(term.topology_key for term in request.affinity))
    return _Refusal(~passes, "pod affinity", AFFINITY, resolvable=False, detail=_always(keys))


def _anti_affinity(pods: Pods, key: str, predicate: Predicate, existing: Mask, words: str) -> _Refusal:
    """The nodes in a domain with such a pod."""
    domains = pods.rows.domains(key)
    rows = _in_domains_of(domains, existing & (pods.counts(predicate) > 0))

    def detail(row: int) -> str:
        return f"{key}={pods.rows.label(row, key)}"

    return _Refusal(rows, "pod affinity", words, resolvable=True, detail=detail)


def _in_domains_of(domains: Domains, rows: Mask) -> Mask:
    """Returns which rows share a domain with one of these rows."""
    taken = np.zeros(domains.size + 1, np.bool_)
    taken[domains.of_row[rows]] = True
    # The last entry is of the nodes without the label.
    taken[-1] = False
    return taken[domains.of_row]
