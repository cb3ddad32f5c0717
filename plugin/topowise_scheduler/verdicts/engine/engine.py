"""The verdicts of thousands of kubelets on a pod.

Invariants: every verdict equals the verdict of `Kubelet.admit_view` of that node. A row belongs to the same node until
`drop`. A row's version grows with every `put`, so no cached verdict outlives the state it was computed from. Where
amounts do not decide, the kubelet model of the node decides, and `fallbacks` counts that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import repeat
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

# np.unique imports it at its first call, which takes 20 ms. Imported here, no scheduling request waits for that.
import numpy.ma
from numpy.typing import NDArray

from topowise.attributes import POLICIES
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.trial import are_identical, constant_parts, trial
from topowise_scheduler.report.shape import PodForm, PodRequests
from topowise_scheduler.verdicts.engine import batch_admission
from topowise_scheduler.verdicts.engine.candidates import (
    BY_COUNTS,
    SHARED,
    SPLIT,
    Candidates,
    candidates_of,
    in_one_cache,
)
from topowise_scheduler.verdicts.engine.node_groups import Columns, NodeGroup
from topowise_scheduler.verdicts.engine.node_vector import Key, NodeVector, Traits, hardware_of, vector_of
from topowise_scheduler.verdicts.engine.verdict_cache import (
    ANY_DEVICES,
    BY_CPUS,
    EXACT,
    NOT_COMPUTED,
    CachedVerdicts,
    VerdictCache,
)
from topowise_scheduler.verdicts.engine.verdicts import CAUSES, NUMBER_OF, REASONS, SHORT, Outcome

_NO, _YES, _UNCERTAIN = 0, 1, 2
_SHARED: frozenset[Key] = frozenset()
# The bits of an int64 without its sign; no machine has more NUMA nodes.
_ALL_ZONES = (1 << 63) - 1
# Placements that the model computes before scores are given, a millisecond at most. Later calls compute the rest.
_MOST_LOCATED = 8
# Tied nodes whose L3 caches the model confirms in a call, about a millisecond. Later calls confirm the rest.
_MOST_CONFIRMED = 32
# Containers of a pod that are decided without a pause: each takes half a millisecond, even for few nodes.
_AT_ONCE = 4
_FEW_CHANGES = 64
# For a pod with more containers, changed nodes are decided in steps too, unless nodes change all the time.
_FEW_CONTAINERS = 64
_MOST_ROUNDS = 4


class _Node(NamedTuple):
    """`sources` are the objects that its hardware and traits were read from (node_identity.constant_parts), `column` is
    its column in the group."""

    name: str
    kubelet: Kubelet
    sources: tuple[object, ...]
    group: int
    column: int


class Ratings(NamedTuple):
    """`at` are indices into the requested rows, `raw`, `ranks` and `in_cache` the ratings of each."""

    at: NDArray[np.intp]
    raw: NDArray[np.int64]
    ranks: NDArray[np.int64]
    in_cache: NDArray[np.int8]


class Rater(Protocol):
    """Rates each candidate by that node alone."""

    def rate(self, candidates: Candidates) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
        """(nodes,) raw scores, ranks, and whether an L3 cache has enough CPUs (`in_one_cache`)."""


class _RowsByName:
    """Rows by name in a dict whose keys are adjacent in memory.

    A look-up reads the stored key, and keys from all over the heap miss the CPU cache: for 5,000 names that takes
    longer than all else. So the dict is sometimes copied with new strings. `changes` counts the names that were added
    or removed, without names with a slash (possible placements), which change all the time.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._copied = 0
        self._row_of: dict[str, int] = {}

    def rows(self, names: Sequence[str], row_of: dict[str, int]) -> NDArray[np.int32]:
        if self.changes - self._copied > 64 + len(row_of) // 8:
            self._copied = self.changes
            self._row_of = {name.encode().decode(): row for name, row in row_of.items() if "/" not in name}
        # After a change the copy is outdated.
        current = row_of if self.changes != self._copied else self._row_of
        return np.fromiter(map(current.get, names, repeat(-1)), dtype=np.int32, count=len(names))


class Engine:
    """The decisions of `Kubelet`, for all nodes in a few milliseconds.

    `fallbacks` counts decisions of the kubelet model by cause (verdicts.CAUSES), and as "empty" the refusals for which
    only the model can say whether the pod would fit without other pods. `cache_hits` and `cache_misses` count cached
    and computed verdicts. `policies` (rows,) is the Topology Manager policy of each row, an index of
    topowise.attributes.POLICIES. An engine is not thread-safe.
    """

    reasons: ClassVar[tuple[str, ...]] = REASONS
    """The kubelet's reasons by their number in `verdicts`; "OutOf" lacks the name of the resource."""

    def __init__(self) -> None:
        self.fallbacks: Counter[str] = Counter()
        self.cache_hits = 0
        self.cache_misses = 0
        self.policies: NDArray[np.int8] = np.zeros(16, dtype=np.int8)
        self._row_of: dict[str, int] = {}
        self._rows_by_name = _RowsByName()
        self._nodes: list[_Node | None] = []
        self._free: list[int] = []
        # By number; the next new group reuses the number of a group without nodes.
        self._groups: dict[int, NodeGroup] = {}
        self._group_of: dict[tuple[Traits, frozenset[Key]], int] = {}
        self._free_groups: list[int] = []
        # Versions of rows start at 1, because 0 marks an outdated verdict.
        self._version = 0
        # Counts added and removed nodes and changes of hardware, after which columns belong to other nodes.
        self._moves = 0
        self._versions: NDArray[np.int64] = np.zeros(16, dtype=np.int64)
        # (2, rows): the group of each row, and the column in that group.
        self._where: NDArray[np.int32] = np.zeros((2, 16), dtype=np.int32)
        self.cache = VerdictCache()

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def membership(self) -> int:
        """Counts added and removed nodes: while it is unchanged, `rows` of names are unchanged."""
        return self._rows_by_name.changes

    def put(self, name: str, kubelet: Kubelet) -> None:
        """Adds or updates a node. The engine refers to the kubelet: it must not change until the node's next `put`."""
        vector, node_sources = vector_of(kubelet), constant_parts(kubelet)
        row = self._row_of.get(name, -1)
        node = self._nodes[row] if row >= 0 else None
        if node is not None and are_identical(node.sources, node_sources):
            self._groups[node.group].replace(node.column, None, vector)
            self._nodes[row] = node._replace(kubelet=kubelet)
        else:
            row = self._enter(name, row, kubelet, vector, node_sources)
        self._version += 1
        self._versions[row] = self._version

    def drop(self, name: str) -> None:
        """Removes a node; an unknown name is ignored."""
        row = self._row_of.pop(name, -1)
        node = self._nodes[row] if row >= 0 else None
        if node is None:
            return
        self._rows_by_name.changes += "/" not in name
        self._leave(node)
        self._nodes[row] = None
        self._free.append(row)

    def rows(self, names: Sequence[str]) -> NDArray[np.int32]:
        """The rows of these nodes, -1 for an unknown name. A row belongs to the same node until `drop`.

        Names with a slash (possible placements; no Node has such a name) are only known to `row`.
        """
        return self._rows_by_name.rows(names, self._row_of)

    def row(self, name: str) -> int:
        """The row of a node, -1 for an unknown name."""
        return self._row_of.get(name, -1)

    def version(self, row: int) -> int:
        """The version of a row (`versions`)."""
        return int(self._versions[row])

    def versions(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """A number for each row that changes with every `put` of its node."""
        return self._versions[rows]

    def names(self, rows: NDArray[np.int32]) -> list[str]:
        """The names of nodes; "" for a row without a node."""
        nodes = [self._nodes[row] if row >= 0 else None for row in rows.tolist()]
        return ["" if node is None else node.name for node in nodes]

    def verdicts(self, pod: PodRequests, rows: NDArray[np.int32]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """Outcome and reason of rows that all have a node."""
        cached = self._current(pod, rows)
        return cached.outcome[rows], cached.reason[rows]

    def rated(self, pod: PodRequests, rows: NDArray[np.int32], rater: Rater) -> Ratings:
        """The ratings of the nodes on which the pod fits; all rows must have a node.

        A node is rated once for each of its states: until the node changes, an equal rater gives the same ratings.
        """
        cached = self._current(pod, rows)
        cached.set_strategy(rater)
        at = np.flatnonzero(cached.outcome[rows] == Outcome.FITS)
        fitting = rows[at]
        _exhaust(self._locating(cached, pod, fitting))
        new = fitting[~cached.rated[fitting]]
        if len(new):
            for indices, candidates in self._candidates(cached, pod, new):
                group_rows = _stretch(new[indices])
                cached.raw[group_rows], cached.ranks[group_rows], cached.in_cache[group_rows] = rater.rate(candidates)
            cached.rated[_stretch(new)] = True
        return Ratings(at, cached.raw[fitting], cached.ranks[fitting], cached.in_cache[fitting])

    def confirm_caches(self, pod: PodRequests, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Returns whether CPUs will share an L3 cache (rows,), of rated rows; the model confirms the counts."""
        cached = self.cache.of(pod, len(self._versions))
        for row in rows[cached.in_cache[rows] == BY_COUNTS][:_MOST_CONFIRMED].tolist():
            form = pod.form(self._groups[int(self._where[0, row])].traits)
            zones = cached.zones[:, row].tolist()
            wanted = [
                (mask, request.cpus)
                for mask, request, container in zip(zones, form.shape.containers, form.view.containers, strict=True)
                if request.cpus and container.declared != "init"
            ]
            cached.in_cache[row] = SHARED if in_one_cache(self._kubelet(row), wanted) else SPLIT
        return cached.in_cache[rows] > SPLIT

    def _current(self, pod: PodRequests, rows: NDArray[np.int32]) -> CachedVerdicts:
        """The cached verdicts on a pod, up to date for these rows."""
        cached = self.cache.of(pod, len(self._versions))
        stale = rows[cached.versions[rows] != self._versions[rows]]
        self.cache_misses += len(stale)
        self.cache_hits += len(rows) - len(stale)
        if len(stale):
            _exhaust(self._renewing(cached, pod, stale))
        return cached

    def steps(self, pod: PodRequests, rows: NDArray[np.int32]) -> Iterator[None]:
        """Computes what `verdicts` and `rated` need of these nodes, in steps of a millisecond or two.

        There are no steps for a pod of a few containers, which is decided fast, and none right after the last call.
        """
        if len(pod.needs.containers) <= _AT_ONCE:
            return
        cached = self.cache.of(pod, len(self._versions))
        known = rows[rows >= 0]
        stale = known[cached.versions[known] != self._versions[known]]
        is_patient = len(pod.needs.containers) > _FEW_CONTAINERS and cached.rounds < _MOST_ROUNDS
        if not len(stale) or (self._version - cached.prepared < _FEW_CHANGES and not is_patient):
            cached.rounds = 0
            return
        cached.rounds += 1
        yield from self._renewing(cached, pod, stale)
        yield from self._locating(cached, pod, known[cached.outcome[known] == Outcome.FITS])
        cached.prepared = self._version

    def _candidates(
        self, cached: CachedVerdicts, pod: PodRequests, rows: NDArray[np.int32]
    ) -> Iterator[tuple[NDArray[np.intp], Candidates]]:
        """The candidates of rows on which the pod fits and is located, grouped by traits, with their index in `rows`.

        For unlocated nodes, and where a kubelet takes any devices, `placed` has all possible zones.
        """
        numbers = self._where[0, rows]
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            group, indices = self._groups[number], np.flatnonzero(numbers == number)
            in_group = rows[indices]
            shape, columns, at = pod.form(group.traits).shape, self._where[1, in_group], _stretch(in_group)
            zones, aligned = cached.zones[:, at], cached.aligned[:, at]
            yield indices, candidates_of(group, shape, pod.needs, columns, in_group, zones, aligned)

    def _enter(
        self, name: str, row: int, kubelet: Kubelet, vector: NodeVector, node_sources: tuple[object, ...]
    ) -> int:
        """Writes a node that is new or has other hardware or settings; returns its row."""
        node = self._nodes[row] if row >= 0 else None
        owner = None if node is not None else self._owner(name, node_sources)
        self._moves += 1
        if owner is not None:
            number, row = owner.group, self._new_row(name)
            column = self._groups[number].append_like(owner.column, row, vector)
        else:
            number, hardware = self._group(Traits.of(kubelet), vector.keys()), hardware_of(kubelet)
            if node is not None and node.group == number:
                column = node.column
                self._groups[number].replace(column, hardware, vector)
            else:
                if node is not None:
                    self._leave(node)
                else:
                    row = self._new_row(name)
                column = self._groups[number].append(row, hardware, vector)
        self._where[:, row] = number, column
        self._nodes[row] = _Node(name, kubelet, node_sources, number, column)
        self.policies[row] = POLICIES.index(self._groups[number].traits.policy)
        return row

    def _owner(self, name: str, node_sources: tuple[object, ...]) -> _Node | None:
        """The node of a possible placement ("node/key"), which has the same hardware and settings."""
        row = self._row_of.get(name.partition("/")[0], -1)
        node = self._nodes[row] if row >= 0 else None
        return node if node is not None and are_identical(node.sources, node_sources) else None

    def _group(self, traits: Traits, sections: Collection[Key]) -> int:
        """The number of the shared group of these traits, or of a group for nodes with exactly these sections.

        A section takes space for every node of its group. A separate group keeps the cost of a node's unusual resources
        away from the other nodes.
        """
        shared = self._group_of.get((traits, _SHARED))
        if (NodeGroup(traits) if shared is None else self._groups[shared]).has_room_for(sections):
            return self._numbered(traits, _SHARED)
        return self._numbered(traits, frozenset(sections))

    def _numbered(self, traits: Traits, sections: frozenset[Key]) -> int:
        number = self._group_of.get((traits, sections))
        if number is None:
            number = self._free_groups.pop() if self._free_groups else len(self._groups)
            self._group_of[traits, sections] = number
            self._groups[number] = NodeGroup(traits, sections)
        return number

    def _new_row(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._nodes)
            self._nodes.append(None)
            if row >= len(self._versions):
                self._versions = np.concatenate([self._versions, np.zeros_like(self._versions)])
                self.policies = np.concatenate([self.policies, np.zeros_like(self.policies)])
                self._where = np.concatenate([self._where, np.zeros_like(self._where)], axis=1)
        self._row_of[name] = row
        self._rows_by_name.changes += "/" not in name
        return row

    def _leave(self, node: _Node) -> None:
        self._moves += 1
        group = self._groups[node.group]
        moved = group.remove(node.column)
        if not group.count:
            del self._groups[node.group], self._group_of[group.traits, group.sections]
            self._free_groups.append(node.group)
        other = self._nodes[moved] if moved >= 0 else None
        if other is not None:
            self._nodes[moved] = other._replace(column=node.column)
            self._where[1, moved] = node.column

    def _renewing(self, cached: CachedVerdicts, pod: PodRequests, rows: NDArray[np.int32]) -> Iterator[None]:
        """Computes the verdicts of these rows. Nodes may change between steps; their verdicts stay outdated."""
        numbers, moves = self._where[0, rows], self._moves
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            group = self._groups[number]
            in_group = rows[numbers == number]
            columns: Columns = self._where[1, in_group].astype(np.intp)
            if len(in_group) == group.count:
                # A slice gives views of the arrays, an index array copies.
                columns, in_group = slice(0, group.count), group.rows[: group.count]
            yield from self._judging_group(cached, number, pod.form(group.traits), columns, in_group)
            if self._moves != moves:
                # `numbers` and `columns` may belong to other nodes now.
                return

    def _judging_group(
        self, cached: CachedVerdicts, number: int, form: PodForm, columns: Columns, rows: NDArray[np.int32]
    ) -> Iterator[None]:
        group, at, moves = self._groups[number], _stretch(rows), self._moves
        versions, cause, kinds = self._versions[rows], group.cause[columns].copy(), group.hardware[columns].copy()
        refused, possible = np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.int8)
        decisions = None
        if not cause.all():
            decisions, placements = yield from batch_admission.admitting(form.shape, group.view(columns), group.traits)
            cause = np.where(cause > 0, cause, decisions.cause)
            refused = np.flatnonzero(~decisions.undecided & (cause == 0))
        if self._moves != moves:
            return
        if len(refused):
            possible = yield from self._ever_possible(cached, number, form, kinds[refused])
        # From here on there is no step. A row that changed meanwhile gets an outdated verdict with version 0, even if
        # another caller has computed the current verdict, because version 0 only costs a further computation.
        if self._moves != moves:
            return
        if decisions is not None:
            cached.outcome[at] = Outcome.FITS
            cached.reason[at] = decisions.reason
            cached.zones[:, at] = placements.zones
            cached.aligned[:, at] = placements.aligned
            cached.located[at] = placements.computed * np.int8(EXACT)
        if len(refused):
            cached.outcome[rows[refused]] = np.where(possible == _YES, Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE)
            for index in refused[possible == _UNCERTAIN].tolist():
                row = int(rows[index])
                self.fallbacks["empty"] += 1
                cached.outcome[row] = self._if_empty(self._kubelet(row), form)
        for index in np.flatnonzero(cause).tolist():
            self._decide_by_model(cached, int(rows[index]), form, CAUSES[cause[index]])
        cached.versions[at] = np.where(self._versions[rows] == versions, versions, 0)
        # A new verdict can have a new placement.
        cached.rated[at] = False

    def _ever_possible(
        self, cached: CachedVerdicts, number: int, form: PodForm, kinds: NDArray[np.int32]
    ) -> Generator[None, None, NDArray[np.int8]]:
        """Whether the pod fits on empty nodes of these kinds of hardware: _YES, _NO or _UNCERTAIN."""
        group = self._groups[number]
        versions, verdicts = cached.of_kinds(number, group.kinds.count)
        stale = np.unique(kinds)
        stale = stale[versions[stale] != group.kinds.versions[stale]]
        if len(stale):
            moves = self._moves
            decisions, _ = yield from batch_admission.admitting(form.shape, group.empty_view(stale), group.traits)
            if self._moves == moves:
                # The arrays may have grown between the steps.
                versions, verdicts = cached.of_kinds(number, group.kinds.count)
                verdicts[stale] = np.where(decisions.cause != 0, _UNCERTAIN, decisions.undecided)
                versions[stale] = group.kinds.versions[stale]
        return verdicts[kinds]

    def _locating(self, cached: CachedVerdicts, pod: PodRequests, fitting: NDArray[np.int32]) -> Iterator[None]:
        """Completes the placements on nodes on which the pod fits; the model computes a few of them.

        An aligned node ranks above every unaligned node, so with an aligned node bounds suffice for the rest.
        """
        rows = fitting[cached.located[fitting] == NOT_COMPUTED]
        numbers = self._where[0, rows]
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            group, in_group = self._groups[number], rows[numbers == number]
            columns, shape = self._where[1, in_group].astype(np.intp), pod.form(group.traits).shape
            moves, versions = self._moves, self._versions[in_group]
            _, placements = yield from batch_admission.admitting(shape, group.view(columns), group.traits, locate=True)
            if self._moves != moves or (self._versions[in_group] != versions).any():
                # The next call starts again with the current nodes.
                return
            cached.zones[:, in_group] = placements.zones
            known_cpus, known_devices = placements.known_cpus, placements.known_devices
            by_ids = np.where(known_cpus, np.int8(ANY_DEVICES), np.int8(BY_CPUS))
            cached.located[in_group] = np.where(known_cpus & known_devices, np.int8(EXACT), by_ids)
        cached.rated[rows] = False
        left = fitting[cached.located[fitting] < ANY_DEVICES]
        # Ranks put aligned nodes first, so unaligned nodes need no exact zones.
        if len(left) and cached.aligned[:, fitting].all(axis=0).any():
            return
        for row in left[:_MOST_LOCATED].tolist():
            form = pod.form(self._groups[int(self._where[0, row])].traits)
            self.fallbacks["placement"] += 1
            tried = trial(self._kubelet(row), form.view)
            if tried.admission.admitted:
                self._keep_placement(cached, row, tried.after, form)

    def _keep_placement(self, cached: CachedVerdicts, row: int, kubelet: Kubelet, form: PodForm) -> None:
        """Stores the placement that the model has computed."""
        by_name = allocated_nodes(kubelet, form.view.uid)
        allocations = [by_name[container.name] for container in form.view.containers]
        cached.zones[:, row] = [allocation.mask & _ALL_ZONES for allocation in allocations]
        cached.aligned[:, row] = [
            number not in form.shape.unpinned
            and (allocation.preferred or not request.can_be_aligned(pinned=form.shape.pinned))
            for number, (allocation, request) in enumerate(zip(allocations, form.shape.containers, strict=True))
        ]
        cached.located[row], cached.rated[row] = EXACT, False

    def _kubelet(self, row: int) -> Kubelet:
        node = self._nodes[row]
        assert node is not None
        return node.kubelet

    def _decide_by_model(self, cached: CachedVerdicts, row: int, form: PodForm, cause: str) -> None:
        """Stores the verdict of the kubelet model."""
        self.fallbacks[cause] += 1
        kubelet, view = self._kubelet(row), form.view
        decision, after = trial(kubelet, view)
        cached.reason[row] = 0
        if decision.admitted:
            cached.outcome[row] = Outcome.FITS
            self._keep_placement(cached, row, after, form)
            return
        cached.reason[row] = SHORT if decision.shortages else NUMBER_OF[decision.reason]
        cached.outcome[row] = self._if_empty(kubelet, form)

    def _if_empty(self, kubelet: Kubelet, form: PodForm) -> Outcome:
        """Whether a refused pod would fit on the empty node, by the kubelet model."""
        fits = trial(kubelet.emptied(), form.view).admission.admitted
        return Outcome.UNSCHEDULABLE if fits else Outcome.UNRESOLVABLE


def _exhaust(steps: Iterable[None]) -> None:
    """Takes all steps at once."""
    deque(steps, maxlen=0)


def _stretch(rows: NDArray[np.int32]) -> slice | NDArray[np.int32]:
    """The rows as a slice if they are consecutive, as they mostly are: many times faster to write."""
    if len(rows) > 1 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (rows[1:] > rows[:-1]).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
