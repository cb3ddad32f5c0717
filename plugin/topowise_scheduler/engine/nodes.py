"""Thousands of nodes, and what their kubelets would do with a pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.attributes import POLICIES
from topowise.pods import Needs
from topowise_scheduler.engine import model, trial
from topowise_scheduler.engine.counts import Column, Standing, basis, is_same, read, standing
from topowise_scheduler.engine.decisions import CAUSES, REASONS
from topowise_scheduler.engine.judgement import Judgement, Outcome
from topowise_scheduler.engine.remembered import Memory, Remembered
from topowise_scheduler.engine.room import Room
from topowise_scheduler.engine.rooms import room_of
from topowise_scheduler.engine.shape import Shape
from topowise_scheduler.engine.sheet import Columns
from topowise_scheduler.engine.table import Table
from topowise_scheduler.engine.traits import Traits
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView, view

# No pod has this uid.
_UID = "\0"

_NO, _YES, _UNSURE = 0, 1, 2


class _Seen(NamedTuple):
    """A pod as the kubelets of one combination of feature gates see it."""

    view: PodView
    shape: Shape


class _Node(NamedTuple):
    """`basis` is that of what stays of its counts (counts.basis)."""

    name: str
    kubelet: Kubelet
    basis: tuple[object, ...]
    table: int
    column: int


class _Lookup:
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

    `fallbacks` counts by cause (decisions.CAUSES) how many decisions were asked of the one-node model, and as "empty"
    how often only it knew whether a refused pod would fit without the others. `cache_hits` and `cache_misses` count
    verdicts that were known, and that were not. `policies` (rows,) is the Topology Manager policy of each row, a place
    in topowise.attributes.POLICIES. An engine is used by one thread.
    """

    reasons: ClassVar[tuple[str, ...]] = REASONS
    """The reasons of the kubelet by their number in a judgement; "OutOf" lacks the resource (Judgement.reason_of)."""

    def __init__(self) -> None:
        self.fallbacks: Counter[str] = Counter()
        self.cache_hits = 0
        self.cache_misses = 0
        self.policies: NDArray[np.int8] = np.zeros(16, dtype=np.int8)
        self._row_of: dict[str, int] = {}
        self._found = _Lookup()
        self._nodes: list[_Node | None] = []
        self._free: list[int] = []
        self._tables: list[Table] = []
        self._table_of: dict[Traits, int] = {}
        self._version = 0
        self._versions: NDArray[np.int64] = np.zeros(16, dtype=np.int64)
        self._places: NDArray[np.int32] = np.zeros((2, 16), dtype=np.int32)
        self._memory = Memory()
        self._all: NDArray[np.int32] | None = None
        # Of the node written last: its worlds, which come after it, have the same.
        self._stays: tuple[tuple[object, ...], Standing, Traits] | None = None

    def __len__(self) -> int:
        return len(self._row_of)

    def put(self, name: str, kubelet: Kubelet) -> None:
        """A node, new or changed. The kubelet is kept: it must not change until the next put of the node."""
        now, its_basis = read(kubelet), basis(kubelet)
        row = self._row_of.get(name, -1)
        node = self._nodes[row] if row >= 0 else None
        if node is not None and is_same(node.basis, its_basis):
            self._tables[node.table].replace(node.column, None, now)
            self._nodes[row] = node._replace(kubelet=kubelet)
        else:
            row = self._place(name, row, kubelet, now, its_basis)
        self._version += 1
        self._versions[row] = self._version

    def _place(self, name: str, row: int, kubelet: Kubelet, now: Column, its_basis: tuple[object, ...]) -> int:
        """Write a node that is new or has other hardware or settings; its row."""
        if self._stays is None or not is_same(self._stays[0], its_basis):
            self._stays = its_basis, standing(kubelet), Traits.of(kubelet)
        _, stays, traits = self._stays
        table = self._table_of.get(traits)
        if table is None:
            table = self._table_of[traits] = len(self._tables)
            self._tables.append(Table(traits))
        node = self._nodes[row] if row >= 0 else None
        if node is not None and node.table == table:
            column = node.column
            self._tables[table].replace(column, stays, now)
        else:
            if node is not None:
                self._leave(node)
            else:
                row = self._new_row(name)
            column = self._tables[table].append(row, stays, now)
            self._places[:, row] = table, column
        self._nodes[row] = _Node(name, kubelet, its_basis, table, column)
        self.policies[row] = POLICIES.index(traits.policy)
        return row

    def drop(self, name: str) -> None:
        """The node is gone; an unknown one is no news."""
        row = self._row_of.pop(name, -1)
        node = self._nodes[row] if row >= 0 else None
        if node is None:
            return
        self._found.changes += "/" not in name
        self._leave(node)
        self._nodes[row] = None
        self._free.append(row)
        self._all = None

    def rows(self, names: Sequence[str]) -> NDArray[np.int32]:
        """The rows of these nodes, -1 for one that is not known. A row is its node's until that is dropped.

        A name with a slash, which no Node has, is only found by `row`.
        """
        return self._found.rows(names, self._row_of)

    def row(self, name: str) -> int:
        """The row of a node, -1 if it is not known."""
        return self._row_of.get(name, -1)

    def names(self, rows: NDArray[np.int32]) -> list[str]:
        """The names of nodes; "" for a row without one."""
        found = [self._nodes[row] if row >= 0 else None for row in rows.tolist()]
        return ["" if node is None else node.name for node in found]

    def judge(self, needs: Needs, rows: NDArray[np.int32] | None = None, ungated: Needs | None = None) -> Judgement:
        """What the kubelets of these nodes, or of all, would do with a pod.

        `ungated` is what the pod needs where the gate PodLevelResources is off; without it, `needs` too.
        """
        seen = self._look(needs, ungated)
        shapes = tuple([one.shape for one in seen])
        known = self._memory.of(shapes, len(self._versions))
        at: slice | NDArray[np.intp]
        if rows is None:
            rows = self._all_rows()
            at = rows.astype(np.intp) if self._free else slice(0, len(rows))
        else:
            at = rows.astype(np.intp)
            if len(at) and at.min() < 0:
                return self._partly(needs, rows, ungated)
        stale = rows[known.seen[at] != self._versions[at]]
        self.cache_misses += len(stale)
        self.cache_hits += len(rows) - len(stale)
        if len(stale):
            self._renew(known, seen, stale)
        return Judgement(
            rows=rows,
            outcome=known.outcome[at].copy(),
            reason=known.reason[at].copy(),
            short=known.short[at].copy(),
            masks=known.masks[:, at].copy(),
            resources=known.resources,
        )

    def rooms(
        self, needs: Needs, rows: NDArray[np.int32] | None = None, ungated: Needs | None = None
    ) -> Iterator[tuple[NDArray[np.intp], Room]]:
        """What the nodes have on which the pod fits, in rooms, each with the places of its nodes in `rows`.

        Nodes of one room have the same traits, so there may be several rooms with as many zones.
        """
        judgement = self.judge(needs, rows, ungated)
        seen = self._look(needs, ungated)
        fits = np.flatnonzero(judgement.outcome == Outcome.FITS)
        tables = self._places[0, judgement.rows[fits]]
        for number in np.flatnonzero(np.bincount(tables)).tolist():
            table = self._tables[number]
            places = fits[tables == number]
            mine = judgement.rows[places]
            shape = self._seen_by(table.traits, seen).shape
            yield places, room_of(table, shape, needs, self._places[1, mine], mine, judgement.masks[:, places])

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
                self._places = np.concatenate([self._places, np.zeros_like(self._places)], axis=1)
        self._row_of[name] = row
        self._found.changes += "/" not in name
        self._all = None
        return row

    def _leave(self, node: _Node) -> None:
        moved = self._tables[node.table].remove(node.column)
        other = self._nodes[moved] if moved >= 0 else None
        if other is not None:
            self._nodes[moved] = other._replace(column=node.column)
            self._places[1, moved] = node.column

    def _look(self, needs: Needs, ungated: Needs | None) -> tuple[_Seen, ...]:
        """The pod under each combination of gates: usual, managers of pod-level resources, neither."""
        plain = _seen(needs)
        if needs.pod_level is None and ungated is None:
            return (plain,)
        return plain, _seen(needs, managers=True), plain if ungated is None else _seen(ungated)

    def _seen_by(self, traits: Traits, seen: tuple[_Seen, ...]) -> _Seen:
        if len(seen) == 1:
            return seen[0]
        if not traits.pod_level_resources:
            return seen[2]
        return seen[1] if traits.pod_level_managers else seen[0]

    def _partly(self, needs: Needs, rows: NDArray[np.int32], ungated: Needs | None) -> Judgement:
        """Some rows are of no node."""
        known = np.flatnonzero(rows >= 0)
        found = self.judge(needs, rows[known], ungated)
        outcome, reason = np.zeros(len(rows), dtype=np.int8), np.zeros(len(rows), dtype=np.int8)
        short = np.full(len(rows), -1, dtype=np.int16)
        masks = np.zeros((len(found.masks), len(rows)), dtype=np.int32)
        outcome[known], reason[known], short[known], masks[:, known] = (
            found.outcome, found.reason, found.short, found.masks
        )  # fmt: skip
        return Judgement(rows, outcome, reason, short, masks, found.resources)

    def _renew(self, known: Remembered, seen: tuple[_Seen, ...], rows: NDArray[np.int32]) -> None:
        """Judge these rows anew."""
        numbers = self._places[0, rows]
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            table = self._tables[number]
            mine = rows[numbers == number]
            columns: Columns = self._places[1, mine].astype(np.intp)
            if len(mine) == table.count:
                columns, mine = slice(0, table.count), table.rows[: table.count]
            self._judge_table(known, number, self._seen_by(table.traits, seen), columns, mine)
        known.seen[rows] = self._versions[rows]

    def _judge_table(
        self, known: Remembered, number: int, seen: _Seen, columns: Columns, rows: NDArray[np.int32]
    ) -> None:
        table = self._tables[number]
        odd = table.odd[columns]
        if odd.all():
            cause = odd
            refused = np.zeros(0, dtype=np.intp)
        else:
            verdicts = trial.judge(seen.shape, table.sheet(columns), table.traits)
            cause = np.where(odd > 0, odd, verdicts.cause)
            known.outcome[rows] = Outcome.FITS
            known.reason[rows] = verdicts.reason
            known.short[rows] = known.places(seen.shape)[verdicts.short]
            known.masks[:, rows] = verdicts.masks
            refused = np.flatnonzero(~verdicts.fits & (cause == 0))
        if len(refused):
            kinds = table.kind[columns][refused]
            possible = self._possible(known, number, seen, kinds)
            known.outcome[rows[refused]] = np.where(possible == _YES, Outcome.UNSCHEDULABLE, Outcome.UNRESOLVABLE)
            for place in refused[possible == _UNSURE].tolist():
                row = int(rows[place])
                self.fallbacks["empty"] += 1
                known.outcome[row] = self._if_empty(row, seen)
        for place in np.flatnonzero(cause).tolist():
            self._ask(known, int(rows[place]), seen, CAUSES[cause[place]])

    def _possible(self, known: Remembered, number: int, seen: _Seen, kinds: NDArray[np.int32]) -> NDArray[np.int8]:
        """For nodes of these kinds, whether the pod fits with nothing held: _YES, _NO or _UNSURE."""
        table = self._tables[number]
        versions, verdicts = known.of_kinds(number, table.kinds.count)
        stale = np.unique(kinds)
        stale = stale[versions[stale] != table.kinds.versions[stale]]
        if len(stale):
            found = trial.judge(seen.shape, table.empty_sheet(stale), table.traits)
            verdicts[stale] = np.where(found.cause != 0, _UNSURE, found.fits)
            versions[stale] = table.kinds.versions[stale]
        return verdicts[kinds]

    def _ask(self, known: Remembered, row: int, seen: _Seen, cause: str) -> None:
        """Let the model of the one node decide."""
        node = self._nodes[row]
        assert node is not None
        self.fallbacks[cause] += 1
        answer = model.ask(node.kubelet, seen.view)
        known.reason[row] = answer.reason
        known.short[row] = known.resources.index(answer.resource) if answer.resource else -1
        if answer.fits:
            known.outcome[row] = Outcome.FITS
            known.masks[:, row] = answer.masks
        else:
            known.outcome[row] = self._if_empty(row, seen)

    def _if_empty(self, row: int, seen: _Seen) -> Outcome:
        """What the refusal of a pod means, by the model."""
        node = self._nodes[row]
        assert node is not None
        fits = model.ask(model.emptied(node.kubelet), seen.view).fits
        return Outcome.UNSCHEDULABLE if fits else Outcome.UNRESOLVABLE


def _seen(needs: Needs, *, managers: bool = False) -> _Seen:
    found = view(_UID, needs, pod_level_resource_managers=managers)
    return _Seen(found, Shape.of(found))
