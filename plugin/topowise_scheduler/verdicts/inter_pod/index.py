"""The pods of the cluster, for questions about constraints between pods.

Pods are counted by kind and node. A question needs the number of pods on each node that satisfy a predicate
(filters.py). Such a `_Tally` is made at its first use, at the cost of the kinds of pods, and then follows each pod that
comes or goes: further questions of pods of one shape cost a few operations on arrays of nodes.

Invariant: the answers are those of an index that was built anew from the same pods and nodes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from topowise.bounded import Bounded
from topowise_scheduler.verdicts.inter_pod import filters
from topowise_scheduler.verdicts.inter_pod.constraints import (
    AnyPod,
    NamespaceLabels,
    PodKind,
    Request,
    Term,
    Unexamined,
    kind_of,
    needed_label,
    request_of,
)
from topowise_scheduler.verdicts.inter_pod.filters import (
    Counts,
    NodeVerdicts,
    PortUsers,
    Predicate,
    SpreadPods,
    TermOwners,
)
from topowise_scheduler.verdicts.inter_pod.node_rows import NodeRows, NodeSource

_MAX_TALLY_BYTES: Final = 32 << 20
_MAX_REQUEST_BYTES: Final = 8 << 20
# Each event of a pod looks at every tally.
MOST_TALLIES: Final = 256
_KIND_BYTES: Final = 64
_EVERY_NAMESPACE: Final = ""
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def no_namespaces(_: str) -> Mapping[str, str] | None:
    """Labels of namespaces are not known."""
    return None


class _Tally:
    """How many pods of some kinds are on the node of each row."""

    __slots__ = ("counts", "kinds")

    def __init__(self, kinds: set[PodKind], capacity: int) -> None:
        self.kinds = kinds
        self.counts = np.zeros(capacity, np.int32)
        for kind in kinds:
            for row, pods in kind.rows.items():
                self.counts[row] += pods

    def fit(self, capacity: int) -> None:
        """Makes room for more rows."""
        if len(self.counts) < capacity:
            self.counts = np.concatenate((self.counts, np.zeros(capacity - len(self.counts), np.int32)))


class _Terms:
    """The anti-affinity terms of pods, and which kinds of pods have them. A pod is compared with few of them.

    Invariant: a term is in a bucket for each namespace that it names, and in one for all namespaces if it selects
    namespaces by label. Its bucket has a label that every selected pod has, if there is such a label.
    """

    def __init__(self) -> None:
        self.owners: dict[Term, set[PodKind]] = {}
        self._buckets: defaultdict[tuple[str, ...], dict[Term, None]] = defaultdict(dict)

    def add(self, kind: PodKind) -> None:
        for term in kind.anti_affinity:
            owners = self.owners.setdefault(term, set())
            if not owners:
                for bucket in _buckets(term):
                    self._buckets[bucket][term] = None
            owners.add(kind)

    def remove(self, kind: PodKind) -> None:
        for term in set(kind.anti_affinity):
            owners = self.owners[term]
            owners.discard(kind)
            if not owners:
                del self.owners[term]
                for bucket in _buckets(term):
                    del self._buckets[bucket][term]
                    if not self._buckets[bucket]:
                        del self._buckets[bucket]

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> list[Term]:
        """Returns the terms that select such a pod of this namespace, or of a namespace that their namespaceSelector
        may select."""
        if not self.owners:
            return []
        keys = chain.from_iterable(
            ((name,), *((name, *label) for label in labels.items())) for name in (namespace, _EVERY_NAMESPACE)
        )
        terms = dict.fromkeys(chain.from_iterable(self._buckets[key] for key in keys if key in self._buckets))
        return [term for term in terms if term.selects(labels)]


def _buckets(term: Term) -> Iterator[tuple[str, ...]]:
    if term.selector is None:
        return
    label = needed_label(term.selector) or ()
    for namespace in term.namespaces:
        yield namespace, *label
    if term.namespace_selector is not None:
        yield _EVERY_NAMESPACE, *label


class _KnownPod(NamedTuple):
    """`node`: where the pod is assigned or placed, "" for a pod that is neither. `request`: of a pending pod."""

    kind: PodKind
    node: str
    request: Request | None


class InterPodIndex:
    """All pods that kube-scheduler counts: assigned pods that have not ended, and pending pods that were placed.

    Only a service that places pods has an index. The watch of pods feeds it (ledger/watch.py): `put` takes each pod
    that Records.decode decodes, `drop` the UID of each deletion, and `retain` all UIDs at the end of a list. The
    controller calls `place` once it has booked a pending pod, before the API server shows the node, and `withdraw` if
    the pod is not bound after all. `nodes` are the Node objects of the ledger; they are read at each question.

    `labels_of` returns the labels of a namespace; without it a term with a namespaceSelector for other labels than the
    name of the namespace is unexamined. `has_default_spreads`: kube-scheduler is configured with default constraints of
    DoNotSchedule, whose selectors it takes from Services and workloads, so pods without own constraints are unexamined.
    Not thread-safe.
    """

    def __init__(
        self, nodes: NodeSource, labels_of: NamespaceLabels = no_namespaces, *, has_default_spreads: bool = False
    ) -> None:
        self.rows = NodeRows(nodes)
        self.labels_of = labels_of
        self.changes = 0
        """How often a pod was counted, or counted no more: a pod that was refused may be accepted since."""
        self._has_default_spreads = has_default_spreads
        self._pods: dict[str, _KnownPod] = {}
        # Weak: dropped with the last pod of the kind.
        self._kinds: WeakValueDictionary[bytes, PodKind] = WeakValueDictionary()
        # Kinds of pods that are on a node, by namespace, and those with host ports.
        self._counted: defaultdict[str, set[PodKind]] = defaultdict(set)
        self._with_ports: set[PodKind] = set()
        self._terms = _Terms()
        self._tallies: Bounded[Predicate, _Tally] = Bounded(
            _MAX_TALLY_BYTES, lambda _, tally: 4 * self.rows.capacity + _KIND_BYTES * len(tally.kinds), MOST_TALLIES
        )
        self._requests: Bounded[bytes, Request] = Bounded(_MAX_REQUEST_BYTES, lambda key, _: 4 * len(key))

    def __len__(self) -> int:
        return len(self._pods)

    # Pods

    def put(self, pod: AnyPod) -> None:
        """A pod came or changed. A pod that has ended counts no more."""
        uid, node = pod.metadata.uid, sys.intern(pod.spec.nodeName)
        if pod.is_terminal:
            self.drop(uid)
            return
        before = self._pods.get(uid)
        kind = kind_of(pod)
        kind = self._kinds.setdefault(kind.key, kind)
        request = None
        if not node:
            # A placed pod stays where it is until the API server shows its node.
            node = "" if before is None or before.request is None else before.node
            request = self.request(pod)
            request = self._shared(request)
        self._book(uid, _KnownPod(kind, node, request))

    def drop(self, uid: str) -> None:
        """A pod was deleted."""
        before = self._pods.pop(uid, None)
        if before is not None:
            self._count(before, -1)

    def retain(self, uids: AbstractSet[str]) -> None:
        """Drops all other pods. A list that breaks off has put pods that no event deletes."""
        for uid in self._pods.keys() - uids:
            self.drop(uid)

    def place(self, uid: str, node: str) -> None:
        """Counts a pending pod on a node. An assigned or unknown pod stays as it is."""
        pod = self._pods.get(uid)
        if pod is not None and pod.request is not None:
            self._book(uid, pod._replace(node=node))

    def withdraw(self, uid: str) -> None:
        """Counts a pending pod on no node again."""
        self.place(uid, "")

    def namespaces_changed(self) -> None:
        """The labels of a namespace have changed."""
        self._tallies.clear()

    # Questions

    def request_of(self, uid: str) -> Request | None:
        """Returns what a pending pod requires, None for any other pod."""
        pod = self._pods.get(uid)
        return None if pod is None else pod.request

    def is_constrained(self, uid: str) -> bool:
        """Returns whether a pending pod itself requires anything of other pods."""
        request = self.request_of(uid)
        return request is not None and request.is_constrained

    def request(self, pod: AnyPod) -> Request:
        """Returns what any pod requires. Its spread constraints count by its node affinity: without what was added to
        name its node."""
        return request_of(pod, knows_namespaces=self.labels_of is not no_namespaces)

    def verdicts(self, request: Request, names: Sequence[str], *, as_only: bool = False) -> NodeVerdicts:
        """Returns which of these nodes kube-scheduler's plug-ins would accept for a pod that is not counted: a placed
        pod is to be withdrawn, or removed in a trial, first. A tuple that is passed again saves the search for its
        rows.

        `as_only`: as kube-scheduler sees them once the pod's required node affinity names these nodes only. The skew
        always passes then, and `minDomains` may never be reached.
        """
        return filters.verdicts(self, request, names, as_only=as_only)

    def unexamined(self, request: Request) -> tuple[Unexamined, ...]:
        """Returns the requirements on nodes that are not examined, also those of existing pods about this pod."""
        found = list(request.unexamined)
        terms = [
            term
            for term in self._terms.selecting(request.namespace, request.labels)
            if term.reaches(request.namespace, self.labels_of) is None
        ]
        if terms:
            found.append(Unexamined("pod affinity", tuple(dict.fromkeys(term.topology_key for term in terms))))
        if self._has_default_spreads and not request.declares_spreads:
            found.append(Unexamined("topology spread"))
        return tuple(found)

    def known(self, uid: str) -> _KnownPod | None:
        """Returns a pod as it is counted, None for an unknown pod."""
        return self._pods.get(uid)

    def trial(self) -> Trial:
        """Returns a view on which pods can be placed and removed without a change of the index."""
        return Trial(self)

    def counts(self, predicate: Predicate) -> Counts:
        """Returns the number of such pods on the node of each row."""
        tally = self._tallies.get(predicate)
        if tally is None:
            kinds = {kind for kind in self._candidates(predicate) if predicate.matches(kind, self.labels_of)}
            tally = _Tally(kinds, self.rows.capacity)
            self._tallies.put(predicate, tally)
        tally.fit(self.rows.capacity)
        return tally.counts

    def terms_against(self, request: Request) -> list[Term]:
        """Returns the anti-affinity terms of pods that select the pod of a request."""
        terms = self._terms.selecting(request.namespace, request.labels)
        return [term for term in terms if term.reaches(request.namespace, self.labels_of)]

    # Counts

    def _candidates(self, predicate: Predicate) -> Collection[PodKind]:
        """Returns the kinds that may satisfy a predicate."""
        if isinstance(predicate, TermOwners):
            return {kind for term in predicate.terms for kind in self._terms.owners.get(term, ())}
        if isinstance(predicate, PortUsers):
            return self._with_ports
        namespaces: tuple[str, ...]
        if isinstance(predicate, SpreadPods):
            namespaces, selector = (predicate.namespace,), predicate.spread.selector
        else:
            term = predicate.terms[0]
            namespaces, selector = term.namespaces, term.selector
            if term.namespace_selector is not None:
                namespaces = tuple(self._counted)
        kinds = chain.from_iterable(self._counted.get(namespace, ()) for namespace in namespaces)
        label = needed_label(selector)
        return list(kinds) if label is None else [kind for kind in kinds if kind.labels.get(label[0]) == label[1]]

    def _shared(self, request: Request) -> Request:
        return self._requests.once(_encode(request), lambda: request)

    def _book(self, uid: str, pod: _KnownPod) -> None:
        before = self._pods.get(uid)
        self._pods[uid] = pod
        # Most events change the status alone.
        if before is not None and before.kind is pod.kind and before.node == pod.node:
            return
        if before is not None:
            self._count(before, -1)
        self._count(pod, 1)

    def _count(self, pod: _KnownPod, by: int) -> None:
        """Counts a pod on its node, or no more (-1)."""
        kind = pod.kind
        if not pod.node:
            return
        self.changes += 1
        if by > 0 and not kind.rows:
            self._add_kind(kind)
        row = self.rows.enter(pod.node) if by > 0 else self.rows.leave(pod.node)
        pods = kind.rows.pop(row, 0) + by
        if pods:
            kind.rows[row] = pods
        for tally in self._tallies.values():
            if kind in tally.kinds:
                tally.fit(self.rows.capacity)
                tally.counts[row] += by
        if not kind.rows:
            self._remove_kind(kind)

    def _add_kind(self, kind: PodKind) -> None:
        self._counted[kind.namespace].add(kind)
        self._terms.add(kind)
        if kind.ports:
            self._with_ports.add(kind)
        for predicate, tally in self._tallies.items():
            if predicate.matches(kind, self.labels_of):
                tally.kinds.add(kind)

    def _remove_kind(self, kind: PodKind) -> None:
        kinds = self._counted[kind.namespace]
        kinds.discard(kind)
        if not kinds:
            del self._counted[kind.namespace]
        self._terms.remove(kind)
        self._with_ports.discard(kind)
        for tally in self._tallies.values():
            tally.kinds.discard(kind)


class Trial:
    """The pods of an index and some more, or some less, to try a sequence of placements: a batch or a gang.

    A trial is for the time between two events of the watch. It costs what was placed; the index does not change.
    """

    def __init__(self, index: InterPodIndex) -> None:
        self.rows = index.rows
        self.labels_of = index.labels_of
        self._index = index
        self._changes: list[tuple[PodKind, int, int]] = []
        self._terms = _Terms()
        # The changes by the predicates of questions, by row.
        self._differences: dict[Predicate, dict[int, int]] = {}

    def place(self, request: Request, node: str) -> None:
        """Counts another pod of a request on a node."""
        self._change(PodKind(request.namespace, request.labels, request.ports, request.anti_affinity), node, 1)

    def take_back(self, request: Request, node: str) -> None:
        """Undoes `place`."""
        self._change(PodKind(request.namespace, request.labels, request.ports, request.anti_affinity), node, -1)

    def remove(self, uid: str) -> None:
        """Counts a pod of the index no more, as if it had ended."""
        if (pod := self._index.known(uid)) is not None and pod.node:
            self._change(pod.kind, pod.node, -1)

    def verdicts(self, request: Request, names: Sequence[str], *, as_only: bool = False) -> NodeVerdicts:
        """As InterPodIndex.verdicts."""
        return filters.verdicts(self, request, names, as_only=as_only)

    def counts(self, predicate: Predicate) -> Counts:
        """Returns the number of such pods on the node of each row."""
        differences = self._differences.get(predicate)
        if differences is None:
            differences = self._differences[predicate] = {}
            for kind, row, by in self._changes:
                self._add(predicate, differences, kind, row, by)
        counts = self._index.counts(predicate)
        if not differences:
            return counts
        counts = counts.copy()
        counts[list(differences)] += np.fromiter(differences.values(), np.int32, len(differences))
        return counts

    def terms_against(self, request: Request) -> list[Term]:
        """Returns the anti-affinity terms of pods that select the pod of a request."""
        placed = self._terms.selecting(request.namespace, request.labels)
        placed = [term for term in placed if term.reaches(request.namespace, self.labels_of)]
        return list(dict.fromkeys((*self._index.terms_against(request), *placed)))

    def _change(self, kind: PodKind, node: str, by: int) -> None:
        row = self.rows.row(node)
        if row is None:
            return
        self._changes.append((kind, row, by))
        self._terms.add(kind)
        for predicate, differences in self._differences.items():
            self._add(predicate, differences, kind, row, by)

    def _add(self, predicate: Predicate, differences: dict[int, int], kind: PodKind, row: int, by: int) -> None:
        if predicate.matches(kind, self.labels_of):
            differences[row] = differences.get(row, 0) + by
