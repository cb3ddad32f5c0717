"""The JSON of Volcano's extender plug-in, as Go writes and reads it (argument.go, read at ed72c7c).

TaskInfo and NodeInfo have no JSON tags, so keys are Go field names, and the embedded TransactionContext lies flat in
TaskInfo. A NodeInfo carries every pod of its node, hundreds of kilobytes, and comes once per task and node: only what
is used is named here, and the decoder passes over the rest without building anything. Pods and tasks stay bytes.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Code(IntEnum):
    """What a predicate says (api.Success and so on, pkg/scheduler/api/types.go)."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    """Not now; the preempt action may look for victims here."""
    UNRESOLVABLE = 3
    """Evicting does not help; the preempt and the reclaim action leave the node out."""


class Vote(IntEnum):
    """What a plug-in says to evictions (pkg/scheduler/plugins/util/util.go)."""

    REJECT = -1
    ABSTAIN = 0
    PERMIT = 1


class Status(IntEnum):
    """Those of a task that mean something here (TaskStatus, pkg/scheduler/api/types.go)."""

    PIPELINED = 4
    """Assigned to a node that others have to leave first."""
    RELEASING = 64
    """To be evicted, or being deleted."""


class Task(msgspec.Struct, frozen=True):
    """TaskInfo. The pod is a v1.Pod."""

    Pod: msgspec.Raw
    UID: str = ""
    NodeName: str = ""
    Status: int = 0


class Node(msgspec.Struct, frozen=True, gc=False):
    """NodeInfo."""

    Name: str


class PredicateRequest(msgspec.Struct, frozen=True):
    """Asked once per task and node, by sixteen workers at a time."""

    task: Task
    node: Node


class PredicateResponse(msgspec.Struct, frozen=True, gc=False):
    """An empty status is success, whatever the code."""

    status: str = ""
    code: int = Code.SUCCESS


class PrioritizeRequest(msgspec.Struct, frozen=True):
    """The nodes that are left, if there are several."""

    task: Task
    nodes: list[Node] | None = None


class PrioritizeResponse(msgspec.Struct, frozen=True):
    """Scores are added to those of Volcano's plug-ins as they are. With a message the task stays where it is."""

    nodeScore: dict[str, float]
    errorMessage: str = ""


class Evictee(msgspec.Struct, frozen=True, gc=False):
    """TaskInfo of a pod that might be evicted."""

    UID: str = ""
    NodeName: str = ""


class EvictionRequest(msgspec.Struct, frozen=True):
    """PreemptableRequest and ReclaimableRequest. Evictees go back as they came."""

    evictor: Task
    evictees: list[msgspec.Raw] | None = None


class EvictionResponse(msgspec.Struct, frozen=True):
    """PreemptableResponse and ReclaimableResponse."""

    status: int
    victims: list[msgspec.Raw]


class EventRequest(msgspec.Struct, frozen=True):
    """EventHandlerRequest: a task was given to a node, or taken from it."""

    task: Task


class EventResponse(msgspec.Struct, frozen=True, gc=False):
    """With a message Volcano takes the task off the node again."""

    errorMessage: str = ""


decode_predicate = msgspec.json.Decoder(PredicateRequest).decode
decode_prioritize = msgspec.json.Decoder(PrioritizeRequest).decode
decode_eviction = msgspec.json.Decoder(EvictionRequest).decode
decode_evictee = msgspec.json.Decoder(Evictee).decode
decode_event = msgspec.json.Decoder(EventRequest).decode
encode = msgspec.json.Encoder().encode
