"""Thousands of nodes, and what their kubelets would do with a pod.

Invariants: every answer is the one `Kubelet.admit_view` of that node would give; a row belongs to one node until that
is dropped; and a row's version grows with every `put`, so that no cached verdict outlives the state it is of. What
counts do not tell is asked of the model of the one node, and counted in `fallbacks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from itertools import repeat
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

# np.unique loads it at its first call, and that takes twenty milliseconds; better before anybody waits for an answer.
import numpy.ma
from numpy.typing import NDArray

from topowise.attributes import POLICIES
from topowise_scheduler.engine import batch_admission
from topowise_scheduler.engine.candidates import Candidates, candidates_of
from topowise_scheduler.engine.node_groups import Columns, NodeGroup
from topowise_scheduler.engine.node_vector import Key, NodeVector, Traits, hardware_of, vector_of
from topowise_scheduler.engine.verdict_cache import (
    ANY_DEVICES,
    BY_CPUS,
    EXACT,
    NOT_LOOKED_FOR,
    CachedVerdicts,
    VerdictCache,
)
from topowise_scheduler.engine.verdicts import CAUSES, NUMBER_OF, OUT_OF, REASONS, SHORT, Judgement, Outcome
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.node_identity import are_identical, constant_parts
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.shape import PodForm, PodRequests

_NO, _YES, _UNCERTAIN = 0, 1, 2
_SHARED: frozenset[Key] = frozenset()
# As many as a mask of 64 bits has; no machine has more.
_MOST_ZONES = (1 << 63) - 1
# Of so many nodes the model is asked where a pod lies before scores are given: a millisecond at most. The next
# questions about such pods ask of others.
_MOST_LOCATED = 8
_EVERY = 1 << 31
# Containers of a pod that is judged at once: each takes half a millisecond, however few the nodes are.
_AT_ONCE = 4
_FEW_CHANGES = 64
# Of a pod of more containers the changed nodes are judged in steps as well, unless nodes change all the time.
_FEW_CONTAINERS = 64
_MOST_ROUNDS = 4


class _Node(NamedTuple):
    """`sources` are those of its hardware and traits (counts.sources), `column` is its own in the group."""

    name: str
    kubelet: Kubelet
    sources: tuple[object, ...]
    group: int
    column: int


class Ratings(NamedTuple):
    """`at` are indices of the nodes that were asked about, `raw`, `ranks` and `in_cache` what was said of each."""

    at: NDArray[np.intp]
    raw: NDArray[np.int64]
    ranks: NDArray[np.int64]
    in_cache: NDArray[np.int8]


class Rater(Protocol):
    """Says of each candidate something that follows from that node alone."""

    def rate(self, candidates: Candidates) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
        """(nodes,) raw scores, ranks, and whether CPUs will lie in one cache."""


class _RowsByName:
    """Rows by name in a dict whose keys and values lie together in memory.

    Names come from all over the heap, and looking one up touches the key that was put in: for 5,000 names these cache
    misses cost more than everything else. So the dict is copied now and then, with new strings made one after another;
    `changes` counts what comes and goes of names without a slash; those with one come and go all the time.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._copied = 0
        self._row_of: dict[str, int] = {}

    def rows(self, names: Sequence[str], row_of: dict[str, int]) -> NDArray[np.int32]:
        if self.changes - self._copied > 64 + len(row_of) // 8:
            self._copied = self.changes
            self._row_of = {name.encode().decode(): row for name, row in row_of.items() if "/" not in name}
        # What changed since the copy is looked up where it is right.
        found = row_of if self.changes != self._copied else self._row_of
        return np.fromiter(map(found.get, names, repeat(-1)), dtype=np.int32, count=len(names))


class Engine:
    """The decisions of `Kubelet`, for all nodes in a few milliseconds.

    `fallbacks` counts by cause (verdicts.CAUSES) how many decisions were asked of the one-node model, and as "empty"
    how often only it knew whether a refused pod would fit without the others. `cache_hits` and `cache_misses` count
    verdicts that were known, and that were not. `policies` (rows,) is the Topology Manager policy of each row, a number
    of topowise.attributes.POLICIES. An engine is used by one thread.
    """

    reasons: ClassVar[tuple[str, ...]] = REASONS
    """The reasons of the kubelet by their number in a judgement; "OutOf" lacks the resource (Judgement.reason_of)."""

    def __init__(self) -> None:
        self.fallbacks: Counter[str] = Counter()
        self.cache_hits = 0
        self.cache_misses = 0
        self.policies: NDArray[np.int8] = np.zeros(16, dtype=np.int8)
        self._row_of: dict[str, int] = {}
        self._rows_by_name = _RowsByName()
        self._nodes: list[_Node | None] = []
        self._free: list[int] = []
        # By number; the number of a group without nodes is taken for the next group.
        self._groups: dict[int, NodeGroup] = {}
        self._group_of: dict[tuple[Traits, frozenset[Key]], int] = {}
        self._free_groups: list[int] = []
        self._version = 0
        # Counts nodes that come, go or have other hardware: columns are then of other nodes.
        self._moves = 0
        self._versions: NDArray[np.int64] = np.zeros(16, dtype=np.int64)
        # (2, rows): the group of each row, and its column there.
        self._where: NDArray[np.int32] = np.zeros((2, 16), dtype=np.int32)
        self.cache = VerdictCache()
        self._all: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def membership(self) -> int:
        """Counts nodes that come and go: as long as it stays, so do `rows` of names."""
        return self._rows_by_name.changes

    def put(self, name: str, kubelet: Kubelet) -> None:
        """A node, new or changed. The kubelet is kept: it must not change until the next put of the node."""
        now, its_sources = vector_of(kubelet), sources(kubelet)
        row = self._row_of.get(name, -1)
        node = self._nodes[row] if row >= 0 else None
        if node is not None and are_identical(node.sources, its_sources):
            self._groups[node.group].replace(node.column, None, now)
            self._nodes[row] = node._replace(kubelet=kubelet)
        else:
            row = self._enter(name, row, kubelet, now, its_sources)
        self._version += 1
        self._versions[row] = self._version

    def drop(self, name: str) -> None:
        """The node is gone; an unknown one is no news."""
        row = self._row_of.pop(name, -1)
        node = self._nodes[row] if row >= 0 else None
        if node is None:
            return
        self._rows_by_name.changes += "/" not in name
        self._leave(node)
        self._nodes[row] = None
        self._free.append(row)
        self._all = None

    def rows(self, names: Sequence[str]) -> NDArray[np.int32]:
        """The rows of these nodes, -1 for one that is not known. A row is its node's until that is dropped.

        A name with a slash, which no Node has, is only found by `row`.
        """
        return self._rows_by_name.rows(names, self._row_of)

    def row(self, name: str) -> int:
        """The row of a node, -1 if it is not known."""
        return self._row_of.get(name, -1)

    def version(self, row: int) -> int:
        """One of `versions`."""
        return int(self._versions[row])

    def versions(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """A number for each row that is another one after its node has been written."""
        return self._versions[rows]

    def names(self, rows: NDArray[np.int32]) -> list[str]:
        """The names of nodes; "" for a row without one."""
        found = [self._nodes[row] if row >= 0 else None for row in rows.tolist()]
        return ["" if node is None else node.name for node in found]

    def judge(self, pod: PodRequests, rows: NDArray[np.int32] | None = None, *, located: bool = False) -> Judgement:
        """What the kubelets of these nodes, or of all, would do with a pod; `located` tells exactly where it would lie.

        A few placements depend on ids of CPUs or devices, so that the model is asked; a verdict needs none of them.
        """
        return self._judge(pod, rows, _EVERY if located else 0)

    def verdicts(self, pod: PodRequests, rows: NDArray[np.int32]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """Outcome and reason of a judgement alone, of rows that all have a node."""
        cached = self._current(pod, rows)
        return cached.outcome[rows], cached.reason[rows]

    def rated(self, pod: PodRequests, rows: NDArray[np.int32], rater: Rater) -> Ratings:
        """What is said of the nodes on which the pod fits (`candidates`); of rows that all have a node.

        A node is rated once for each of its states: until it changes, an equal rater would say the same.
        """
        cached = self._current(pod, rows)
        cached.be_rated_by(rater)
        at = np.flatnonzero(cached.outcome[rows] == Outcome.FITS)
        fitting = rows[at]
        self._locate(cached, pod, fitting, _MOST_LOCATED)
        new = fitting[~cached.rated[fitting]]
        if len(new):
            for indices, candidates in self._candidates(cached, pod, new):
                mine = _stretch(new[indices])
                cached.raw[mine], cached.ranks[mine], cached.in_cache[mine] = rater.rate(candidates)
            cached.rated[_stretch(new)] = True
        return Ratings(at, cached.raw[fitting], cached.ranks[fitting], cached.in_cache[fitting])

    def _current(self, pod: PodRequests, rows: NDArray[np.int32]) -> CachedVerdicts:
        """What is known of a pod, true for these rows."""
        cached = self.cache.of(pod, len(self._versions))
        stale = rows[cached.versions[rows] != self._versions[rows]]
        self.cache_misses += len(stale)
        self.cache_hits += len(rows) - len(stale)
        if len(stale):
            self._renew(cached, pod, stale)
        return cached

    def _judge(self, pod: PodRequests, rows: NDArray[np.int32] | None, asked: int) -> Judgement:
        """`asked`: of how many nodes the model may be asked where the pod lies; 0 also looks for that nowhere."""
        cached = self.cache.of(pod, len(self._versions))
        at: slice | NDArray[np.intp]
        if rows is None:
            rows = self._all_rows()
            at = rows.astype(np.intp) if self._free else slice(0, len(rows))
        else:
            at = rows.astype(np.intp)
            if len(at) and at.min() < 0:
                return self._partly(pod, rows, asked)
        stale = rows[cached.versions[at] != self._versions[at]]
        self.cache_misses += len(stale)
        self.cache_hits += len(rows) - len(stale)
        if len(stale):
            self._renew(cached, pod, stale)
        if asked:
            self._locate(cached, pod, rows[cached.outcome[at] == Outcome.FITS], asked)
        return Judgement(
            rows=rows,
            outcome=cached.outcome[at].copy(),
            reason=cached.reason[at].copy(),
            short=cached.short[at].copy(),
            zones=cached.zones[:, at].copy(),
            aligned=cached.aligned[:, at].copy(),
            resources=cached.resources,
        )

    def steps(self, pod: PodRequests, rows: NDArray[np.int32]) -> Iterator[None]:
        """What `judge` and `candidates` would do of these nodes anew, in steps of a millisecond or two.

        None for a pod of a few containers, which is one step, and none right after the last.
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
        yield from self._locating(cached, pod, known[cached.outcome[known] == Outcome.FITS], _MOST_LOCATED)
        cached.prepared = self._version

    def candidates(
        self, pod: PodRequests, rows: NDArray[np.int32] | None = None
    ) -> Iterator[tuple[NDArray[np.intp], Candidates]]:
        """The nodes on which the pod fits, those with the same traits together, each with its index in `rows`.

        Of a few nodes at a time the model is asked where the pod would lie (`fallbacks["placement"]`), and of
        none while there are nodes on which it is aligned. Where it is not asked, and where a kubelet takes any devices,
        the pod lies on all zones that are possible.
        """
        judgement = self._judge(pod, rows, _MOST_LOCATED)
        fits = np.flatnonzero(judgement.outcome == Outcome.FITS)
        cached = self.cache.of(pod, len(self._versions))
        for indices, found in self._candidates(cached, pod, judgement.rows[fits]):
            yield fits[indices], found

    def _candidates(
        self, cached: CachedVerdicts, pod: PodRequests, rows: NDArray[np.int32]
    ) -> Iterator[tuple[NDArray[np.intp], Candidates]]:
        """The same of rows on which the pod fits, and is located."""
        numbers = self._where[0, rows]
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            group, indices = self._groups[number], np.flatnonzero(numbers == number)
            mine = rows[indices]
            shape, columns, at = pod.form(group.traits).shape, self._where[1, mine], _stretch(mine)
            found = candidates_of(group, shape, pod.needs, columns, mine, cached.zones[:, at], cached.aligned[:, at])
            yield indices, found

    def _enter(self, name: str, row: int, kubelet: Kubelet, now: NodeVector, its_sources: tuple[object, ...]) -> int:
        """Write a node that is new or has other hardware or settings; its row."""
        node = self._nodes[row] if row >= 0 else None
        owner = None if node is not None else self._owner(name, its_sources)
        self._moves += 1
        if owner is not None:
            number, row = owner.group, self._new_row(name)
            column = self._groups[number].append_like(owner.column, row, now)
        else:
            number, hardware = self._group(Traits.of(kubelet), now.keys()), hardware_of(kubelet)
            if node is not None and node.group == number:
                column = node.column
                self._groups[number].replace(column, hardware, now)
            else:
                if node is not None:
                    self._leave(node)
                else:
                    row = self._new_row(name)
                column = self._groups[number].append(row, hardware, now)
        self._where[:, row] = number, column
        self._nodes[row] = _Node(name, kubelet, its_sources, number, column)
        self.policies[row] = POLICIES.index(self._groups[number].traits.policy)
        return row

    def _owner(self, name: str, its_sources: tuple[object, ...]) -> _Node | None:
        """The node of which this is another possible state: its hardware and settings need not be read again."""
        row = self._row_of.get(name.partition("/")[0], -1)
        node = self._nodes[row] if row >= 0 else None
        return node if node is not None and are_identical(node.sources, its_sources) else None

    def _group(self, traits: Traits, sections: Collection[Key]) -> int:
        """The group that nodes of these traits share, or one of the nodes with exactly these sections.

        Each section takes a place for every node of its group. So resources that a node makes up cost nobody else.
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

    def _all_rows(self) -> NDArray[np.int32]:
        if self._all is None:
            self._all = np.array(sorted(self._row_of.values()), dtype=np.int32)
            self._all.flags.writeable = False
        return self._all

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
        self._all = None
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

    def _partly(self, pod: PodRequests, rows: NDArray[np.int32], asked: int) -> Judgement:
        """Some rows are of no node."""
        known = np.flatnonzero(rows >= 0)
        found = self._judge(pod, rows[known], asked)
        outcome, reason = np.zeros(len(rows), dtype=np.int8), np.zeros(len(rows), dtype=np.int8)
        short = np.full(len(rows), -1, dtype=np.int16)
        zones = np.zeros((len(found.zones), len(rows)), dtype=np.int64)
        aligned = np.zeros((len(found.zones), len(rows)), dtype=np.bool_)
        outcome[known], reason[known], short[known], zones[:, known], aligned[:, known] = (
            found.outcome, found.reason, found.short, found.zones, found.aligned
        )  # fmt: skip
        return Judgement(rows, outcome, reason, short, zones, aligned, found.resources)

    def _renew(self, cached: CachedVerdicts, pod: PodRequests, rows: NDArray[np.int32]) -> None:
        """Judge these rows anew."""
        for _ in self._renewing(cached, pod, rows):
            pass

    def _renewing(self, cached: CachedVerdicts, pod: PodRequests, rows: NDArray[np.int32]) -> Iterator[None]:
        """In steps, between which nodes may change, come and go: rows of which that is so stay to be judged."""
        numbers, moves = self._where[0, rows], self._moves
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            group = self._groups[number]
            mine = rows[numbers == number]
            columns: Columns = self._where[1, mine].astype(np.intp)
            if len(mine) == group.count:
                columns, mine = slice(0, group.count), group.rows[: group.count]
            yield from self._judging_group(cached, number, pod.form(group.traits), columns, mine)
            if self._moves != moves:
                # Nothing of this is true any more.
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
        # From here on nothing comes in between. A row that has changed meanwhile gets what is not true any more, and
        # is marked as that: somebody else may have judged it right.
        if self._moves != moves:
            return
        if decisions is not None:
            cached.outcome[at] = Outcome.FITS
            cached.reason[at] = decisions.reason
            cached.short[at] = cached.numbers(form.shape)[decisions.short]
            cached.zones[:, at] = placements.zones
            cached.aligned[:, at] = placements.aligned
            cached.located[at] = placements.looked_for * np.int8(EXACT)
        if len(refused):
            cached.outcome[rows[refused]] = np.where(possible == _YES, Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE)
            for index in refused[possible == _UNCERTAIN].tolist():
                row = int(rows[index])
                self.fallbacks["empty"] += 1
                cached.outcome[row] = self._if_empty(self._kubelet(row), form)
        for index in np.flatnonzero(cause).tolist():
            self._ask_model(cached, int(rows[index]), form, CAUSES[cause[index]])
        cached.versions[at] = np.where(self._versions[rows] == versions, versions, 0)
        cached.rated[at] = False

    def _ever_possible(
        self, cached: CachedVerdicts, number: int, form: PodForm, kinds: NDArray[np.int32]
    ) -> Generator[None, None, NDArray[np.int8]]:
        """For nodes of these kinds of hardware, whether the pod fits with nothing held: _YES, _NO or _UNSURE."""
        group = self._groups[number]
        versions, verdicts = cached.of_kinds(number, group.kinds.count)
        stale = np.unique(kinds)
        stale = stale[versions[stale] != group.kinds.versions[stale]]
        if len(stale):
            moves = self._moves
            decisions, _ = yield from batch_admission.admitting(form.shape, group.empty_view(stale), group.traits)
            if self._moves == moves:
                # They may have grown meanwhile.
                versions, verdicts = cached.of_kinds(number, group.kinds.count)
                verdicts[stale] = np.where(decisions.cause != 0, _UNCERTAIN, decisions.undecided)
                versions[stale] = group.kinds.versions[stale]
        return verdicts[kinds]

    def _locate(self, cached: CachedVerdicts, pod: PodRequests, fitting: NDArray[np.int32], most: int) -> None:
        """Where the pod lies on nodes on which it fits; the model is asked of so many.

        Any aligned node is better than all others, so among those a bound will do then.
        """
        for _ in self._locating(cached, pod, fitting, most):
            pass

    def _locating(
        self, cached: CachedVerdicts, pod: PodRequests, fitting: NDArray[np.int32], most: int
    ) -> Iterator[None]:
        rows = fitting[cached.located[fitting] == NOT_LOOKED_FOR]
        numbers = self._where[0, rows]
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            group, mine = self._groups[number], rows[numbers == number]
            columns, shape = self._where[1, mine].astype(np.intp), pod.form(group.traits).shape
            moves, versions = self._moves, self._versions[mine]
            _, placements = yield from batch_admission.admitting(shape, group.view(columns), group.traits, locate=True)
            if self._moves != moves or (self._versions[mine] != versions).any():
                # It is looked for once more when it is asked for.
                return
            cached.zones[:, mine] = placements.zones
            by_ids = np.where(placements.known_cpus, np.int8(ANY_DEVICES), np.int8(BY_CPUS))
            cached.located[mine] = np.where(placements.known_cpus & placements.known_devices, np.int8(EXACT), by_ids)
        cached.rated[rows] = False
        left = fitting[cached.located[fitting] < (EXACT if most == _EVERY else ANY_DEVICES)]
        if len(left) and most != _EVERY and cached.aligned[:, fitting].all(axis=0).any():
            return
        for row in left[:most].tolist():
            form = pod.form(self._groups[int(self._where[0, row])].traits)
            self.fallbacks["placement"] += 1
            tried = trial(self._kubelet(row), form.view)
            if tried.admission.admitted:
                self._keep_placement(cached, row, tried.after, form)

    def _keep_placement(self, cached: CachedVerdicts, row: int, kubelet: Kubelet, form: PodForm) -> None:
        """Where the model has put the pod."""
        places = allocated_nodes(kubelet, form.view.uid)
        found = [places[container.name] for container in form.view.containers]
        cached.zones[:, row] = [one.mask & _MOST_ZONES for one in found]
        cached.aligned[:, row] = [
            one.preferred or not request.can_be_aligned(pinned=form.shape.pinned)
            for one, request in zip(found, form.shape.containers, strict=True)
        ]
        cached.located[row], cached.rated[row] = EXACT, False

    def _kubelet(self, row: int) -> Kubelet:
        node = self._nodes[row]
        assert node is not None
        return node.kubelet

    def _ask_model(self, cached: CachedVerdicts, row: int, form: PodForm, cause: str) -> None:
        """Let the model of the one node decide."""
        self.fallbacks[cause] += 1
        kubelet, view = self._kubelet(row), form.view
        decision, after = trial(kubelet, view)
        cached.reason[row], cached.short[row] = 0, -1
        if decision.admitted:
            cached.outcome[row] = Outcome.FITS
            self._keep_placement(cached, row, after, form)
            return
        if decision.shortages:
            cached.reason[row] = SHORT
            cached.short[row] = cached.resources.index(decision.reason.removeprefix(OUT_OF))
        else:
            cached.reason[row] = NUMBER_OF[decision.reason]
        cached.outcome[row] = self._if_empty(kubelet, form)

    def _if_empty(self, kubelet: Kubelet, form: PodForm) -> Outcome:
        """What the refusal of a pod means, by the model."""
        fits = trial(kubelet.emptied(), form.view).admission.admitted
        return Outcome.UNSCHEDULABLE if fits else Outcome.UNRESOLVABLE


def _stretch(rows: NDArray[np.int32]) -> slice | NDArray[np.int32]:
    """The same rows as a slice if they follow one another, as they mostly do: many times faster to write."""
    if len(rows) > 1 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (rows[1:] > rows[:-1]).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
