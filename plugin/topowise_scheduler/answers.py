"""The answers themselves, whatever protocol asked: one pod, some nodes, a verdict and a score for each.

A view over the ledger without I/O. The last pod's verdicts are kept, because kube-scheduler asks to filter and right
afterwards to score the nodes that passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topowise import pods
from topowise_scheduler import explain
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.engine import fit, score
from topowise_scheduler.engine.verdict import FITS_ANYWHERE, Verdict
from topowise_scheduler.strategies import least_allocated

_MAX_STRANGERS = 1000


class Answers:
    """What callers are told. Raises ParseError for a pod whose quantities cannot be read."""

    def __init__(self, ledger: Ledger, weights: Mapping[str, int]) -> None:
        self._ledger = ledger
        self._weights = weights
        self._kept_for: tuple[str, str, int] = ("", "", -1)
        self._kept: dict[str, Verdict] = {}
        self._strangers: set[str] = set()
        self._new_strangers: list[str] = []

    def verdicts(self, pod: pods.Pod, names: Iterable[str]) -> dict[str, Verdict]:
        """By name, in order. A node nobody has reported fits: we know nothing against it."""
        needs = pods.needs(pod)
        kept = self._memory(pod)
        told = {}
        for name in names:
            verdict = kept.get(name)
            if verdict is None:
                node = self._ledger.topology_of(name)
                verdict = kept[name] = FITS_ANYWHERE if node is None else fit.judge(node, needs)
                if node is None and name not in self._ledger.known:
                    self._meet(name)
            told[name] = verdict
        return told

    def take_strangers(self) -> list[str]:
        """Names that were asked about and that the cluster does not have, each once; for the log, after the answer."""
        taken, self._new_strangers = self._new_strangers, []
        return taken

    def scores(self, pod: pods.Pod, names: Iterable[str]) -> dict[str, int]:
        """By name, in order, 0..10; a node the pod does not fit on has 0."""
        verdicts = self.verdicts(pod, names)
        raw = []
        for name, verdict in verdicts.items():
            node = self._ledger.topology_of(name)
            raw.append(0 if node is None else least_allocated.score(node, verdict, self._weights))
        return dict(zip(verdicts, score.spread(raw), strict=True))

    def explanations(self, pod: pods.Pod, names: Iterable[str]) -> dict[str, str]:
        """By name, in order: a sentence each."""
        needs = pods.needs(pod)
        return {
            name: explain.in_words(name, self._ledger.topology_of(name), needs, verdict)
            for name, verdict in self.verdicts(pod, names).items()
        }

    def _meet(self, name: str) -> None:
        # Bounded: whoever makes up names must not make us remember all of them.
        if name not in self._strangers and len(self._strangers) < _MAX_STRANGERS:
            self._strangers.add(name)
            self._new_strangers.append(name)

    def _memory(self, pod: pods.Pod) -> dict[str, Verdict]:
        # A pod without uid is a question about a pod that does not exist yet; its name proves nothing.
        meta = pod.metadata
        key = (meta.uid, meta.resourceVersion, self._ledger.revision)
        if key != self._kept_for or not meta.uid:
            self._kept_for, self._kept = key, {}
        return self._kept
