"""The extension points of an option, a feature that is off by default or that few pods ask for.

They have the names of kube-scheduler's framework. Filter: which nodes take a pod. Score: which of them are better.
Reserve: what is expected of a pod on its way to a node. PreBind: what has to be done before its Binding. Nothing else
knows an option: gates.py, answers.py, reservations.py, the overlay and the bind ask each enabled option, in the order
in which options/registry.py lists them.

Invariant: an option is asked about pods with a demand on an option (pods/demands.py) alone, unless it concerns every
pod. So no code of an option that is off runs for a pod that does not ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.pods.pod_states import PodStates
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.verdicts.engine import Ratings
from topowise_scheduler.verdicts.kube_scheduler import Objection
from topowise_scheduler.verdicts.refusals import Refusal
from topowise_scheduler.verdicts.strategies import Rated


class Cluster(NamedTuple):
    """What an option may read of the ledger."""

    node_states: NodeStates
    ignored: IgnoredPods
    pods: PodStates


class ChangedNode(Protocol):
    """A node that pods were placed on in an overlay: its possible states, and the UIDs of these pods."""

    @property
    def states(self) -> Sequence[Kubelet]:
        """The states, the most probable first."""

    @property
    def placed(self) -> Collection[str]:
        """The UIDs; which devices these pods get is not known."""


class CopiedNode(NamedTuple):
    """A node of an overlay: its possible states, and the UIDs of pods that have left. `taken` returns what pods
    that were placed on any node of the overlay take (`Expected`). `is_new`: the cluster does not have the node yet, but
    one like it."""

    states: Sequence[Kubelet]
    removed: Collection[str]
    taken: Callable[[], Sequence[Any]]
    is_new: bool = False


class Expected(NamedTuple):
    """A pod as the kubelet of a copied node is expected to get it, and what it takes of the option there (`takes`).

    `is_certain` is False if that is not known. `refusal`: why the pod does not come to the node, None if it does.
    """

    record: PodRecord
    takes: Sequence[Any] = ()
    is_certain: bool = True
    refusal: Refusal | str | None = None


class Option:
    """An option without any effect; each option overrides what it has."""

    concerns_every_pod = False
    """Whether the option is asked about pods without a demand on an option too."""
    limits_work = False
    """Whether a question is asked within `asking`. At most one option does, and it concerns every pod."""

    @property
    def news(self) -> int:
        """Returns how often something has come that may let a pod onto a node, beside changes of nodes."""
        return 0

    # Filter

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        return None

    def standing(self, record: PodRecord, name: str, leaving: Collection[str]) -> Refusal | None:
        """Returns the refusal of a node, once the pods `leaving` have left, that no other change of its pods ends."""
        return None

    def refusal_in(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], guessed: Collection[str] = ()
    ) -> Refusal | None:
        """Returns why a node in these states does not take the pod, None if it does. `guessed` are pods in the states
        whose devices are not known, beside the pods of the ledger."""
        return None

    def refusal_of_new(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], guessed: Collection[str]
    ) -> Refusal | None:
        """Returns why a new node in these states, that is otherwise like this node, or like none (""), does not take
        the pod. `guessed`: see `refusal_in`."""
        return None

    def asking(self, nodes: int, *, is_simulation: bool) -> AbstractContextManager[Callable[[Sequence[str]], bool]]:
        """Entered for the time of a question about so many nodes. Yields what receives the nodes that fit, and returns
        whether the options have to be asked again: an option may leave nodes out at first, to limit its work."""
        raise NotImplementedError

    def shortage(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Objection | None:
        """Returns kube-scheduler's own objection to a node that lacks what only the option knows of, once the pods
        `leaving` have left. `filter` is not asked about such a node."""
        return None

    def examined(self) -> Collection[str]:
        """Returns what kube-scheduler's own checks here leave out (`kube_scheduler.unexamined`), and the option has."""
        return ()

    def knows(self, record: PodRecord, name: str) -> bool:
        """Returns whether what `examined` names is decided here for the pod on the node, not by kube-scheduler."""
        return True

    def depends_on_evictions(self, record: PodRecord) -> bool:
        """Returns whether evictions change what the option has for the pod."""
        return False

    def is_certain(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """Returns whether the option knows what the pod gets on the node once the pods `leaving` have left."""
        return True

    def may_be_refused(self, record: PodRecord, name: str) -> bool:
        """Returns whether the kubelet of a node on which the pod fits may refuse the pod by chance."""
        return False

    def digest(self, record: PodRecord) -> bytes:
        """Returns a key that is equal for pods of equal requests for which the option has the same answers, whatever
        the names are of what they refer to."""
        return b""

    def waits(self, record: PodRecord) -> bool:
        """Returns whether the pod needs something that does not exist yet, so that it cannot be placed on any node."""
        return False

    def minds_order(self, record: PodRecord, name: str) -> bool:
        """Returns whether it matters where the kubelet places the pod, so that no pod may overtake it on its way."""
        return False

    def until(self, record: PodRecord, name: str, refusal: Refusal) -> float | None:
        """Returns when a refusal of the option ends at the latest (seconds, monotonic), None if that is not known."""
        return None

    def expire(self, now: float) -> Iterable[str]:
        """Ends what is over. Returns the nodes that may take pods again."""
        return ()

    # Score

    def graded(self, question: Question, ratings: Ratings, changed: Mapping[str, ChangedNode]) -> Ratings:
        """Returns the ratings of nodes, with ranks that consider what the option says of each node by that node alone:
        comparable between calls, so a grade needs a greatest value (`ranks.refined`, `ranks.preceded`). `changed` are
        the nodes, by name, that are not as in the cluster."""
        return ratings

    def in_order(self, question: Question, rated: Rated, changed: Mapping[str, ChangedNode]) -> Rated:
        """Returns the nodes, with ranks that consider what the option says of all of them together."""
        return rated

    # Reserve

    def expected(self, record: PodRecord, name: str) -> PodRecord:
        """Returns the pod as the kubelet of a node on which it fits is expected to get it."""
        return record

    def expected_in(self, expected: Expected, name: str, node: CopiedNode) -> Expected:
        """Returns the same on a copied node, after the options before. `name`: of the node that a new node is like, ""
        for none."""
        return expected._replace(record=self.expected(expected.record, name))

    def reserve(self, record: PodRecord, name: str) -> None:
        """Takes note of a pod that is expected on a node."""

    def unreserve(self, record: PodRecord, name: str, now: float) -> None:
        """Takes note of a pod whose bind was refused."""

    # PreBind

    def needs_prebind(self, record: PodRecord, name: str) -> bool:
        """Returns whether the pod must not be bound to a node, on which it fits, without the step of this option."""
        return False


Options = Callable[[Cluster], Sequence[Option]]
"""Makes the enabled options of a cluster, in the order in which they are asked."""


def no_options(cluster: Cluster) -> Sequence[Option]:
    """Enables nothing."""
    return ()


class PreBind(Protocol):
    """The step of an option before the Binding of a pod, or before its gate is opened."""

    def reads_anew(self, record: PodRecord) -> bool:
        """Returns whether the step needs the newest version of the pod."""

    def wait_s(self, record: PodRecord) -> float:
        """Returns for how many seconds the step may wait for the node, 0 if it does not. Binds that may wait for a node
        run one after the other."""

    async def prebind(self, record: PodRecord, node: str, book: Callable[[PodRecord], str]) -> tuple[PodRecord, str]:
        """Returns the pod as it is to be bound, and why it must not be bound, "" if it may. `book` books a pod on the
        node, and returns why its kubelet would refuse it then. Raises ApiError."""

    async def unreserve(self, record: PodRecord, node: str) -> None:
        """The bind has failed after this step."""
