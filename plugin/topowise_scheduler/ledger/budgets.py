"""The PodDisruptionBudgets (policy/v1) that a pod's eviction counts against.

kube-scheduler up to 1.36 ignores budgets with an empty selector, as in policy/v1beta1, and pods without labels.
kubernetes#141785 changes that to the semantics of policy/v1 and of the eviction API, which are used here.

Upstream: filterPodsWithPDBViolation (plugins/defaultpreemption/default_preemption.go), LabelSelectorAsSelector
(apimachinery/pkg/apis/meta/v1/helpers.go), Requirement.Matches (apimachinery/pkg/labels/selector.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from topowise_scheduler.verdicts.kube_scheduler import LabelSelector


class BudgetMetadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""


class BudgetSpec(msgspec.Struct, frozen=True, gc=False):
    selector: LabelSelector | None = None


class BudgetStatus(msgspec.Struct, frozen=True, gc=False):
    """`disruptedPods` maps the names of pods whose eviction the API server has granted to the time of the grant."""

    disruptionsAllowed: int = 0
    disruptedPods: dict[str, str | None] | None = None


class Budget(msgspec.Struct, frozen=True, gc=False):
    """A PodDisruptionBudget."""

    metadata: BudgetMetadata
    spec: BudgetSpec | None = None
    status: BudgetStatus | None = None

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def allowed(self) -> int:
        """The remaining evictions; 0 before the disruption controller has set the status."""
        return 0 if self.status is None else self.status.disruptionsAllowed

    def counts(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether evicting the pod of this name in the budget's namespace uses up an eviction."""
        if self.spec is None or self.spec.selector is None or not self.spec.selector.matches(labels):
            return False
        return self.status is None or name not in (self.status.disruptedPods or ())


decode_budget = msgspec.json.Decoder(Budget).decode


class Budgets:
    """All PodDisruptionBudgets, indexed by selector: a pod is compared with few of them.

    Invariant: a budget is in a single bucket, by a label that every selected pod has, or by its namespace if the
    selector has no label.
    """

    def __init__(self, items: Iterable[Budget] = ()) -> None:
        self._by_key: dict[str, Budget] = {}
        self._buckets: dict[tuple[str, ...], dict[str, Budget]] = {}
        for item in items:
            self.apply("ADDED", item)

    def __len__(self) -> int:
        return len(self._by_key)

    def replace(self, items: Iterable[Budget]) -> Iterator[None]:
        """Replaces all budgets, in steps; until the last step the old budgets are valid."""
        fresh = Budgets()
        for item in items:
            fresh.apply("ADDED", item)
            yield
        self._by_key, self._buckets = fresh._by_key, fresh._buckets

    def apply(self, event: str, item: Budget) -> None:
        """Applies a watch event to a budget."""
        old = self._by_key.pop(item.key, None)
        if old is not None:
            bucket = self._buckets[_bucket(old)]
            del bucket[item.key]
            if not bucket:
                del self._buckets[_bucket(old)]
        if event != "DELETED":
            self._by_key[item.key] = item
            self._buckets.setdefault(_bucket(item), {})[item.key] = item

    def matching(self, name: str, namespace: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The keys of the budgets that an eviction of this pod counts against (`Running.budgets`)."""
        keys = [(namespace,), *((namespace, *label) for label in labels.items())]
        candidates = chain.from_iterable(self._buckets.get(key, {}).values() for key in keys)
        return tuple(sorted(budget.key for budget in candidates if budget.counts(name, labels)))

    def allowed(self, key: str) -> int:
        """The remaining evictions of a budget."""
        return self._by_key[key].allowed


def _bucket(budget: Budget) -> tuple[str, ...]:
    selector = None if budget.spec is None else budget.spec.selector
    label = next(iter(sorted((selector.matchLabels or {}).items())), ()) if selector is not None else ()
    return (budget.metadata.namespace, *label)
