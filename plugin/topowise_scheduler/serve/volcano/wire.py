"""The JSON of Volcano's extender plug-in, as Go writes and reads it (argument.go, read at ed72c7c).

TaskInfo and NodeInfo have no JSON tags, so keys are Go field names, and the fields of the embedded TransactionContext
are fields of TaskInfo. A NodeInfo has every pod of its node, hundreds of kilobytes, and is sent once per task and node.
Only the used fields are declared, so the decoder skips the rest. Pods and tasks stay bytes.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Code(IntEnum):
    """Result of a predicate (api.Success and so on, pkg/scheduler/api/types.go)."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    """Not now; the preempt action may choose victims here."""
    UNRESOLVABLE = 3
    """Evictions do not help; the preempt and reclaim actions skip the node."""


class Vote(IntEnum):
    """Vote of a plug-in on evictions (pkg/scheduler/plugins/util/util.go)."""

    REJECT = -1
    ABSTAIN = 0
    PERMIT = 1


class Status(IntEnum):
    """States of a task that matter here (TaskStatus, pkg/scheduler/api/types.go)."""

    PIPELINED = 4
    """Assigned to a node whose victims have to end first."""
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
    """The nodes that passed the predicates, if there are several."""

    task: Task
    nodes: list[Node] | None = None


class PrioritizeResponse(msgspec.Struct, frozen=True):
    """Volcano adds the scores to the scores of its plug-ins. With a message the task is not placed in the session."""

    nodeScore: dict[str, float]
    errorMessage: str = ""


class Evictee(msgspec.Struct, frozen=True, gc=False):
    """TaskInfo of a pod that might be evicted."""

    UID: str = ""
    NodeName: str = ""


class EvictionRequest(msgspec.Struct, frozen=True):
    """PreemptableRequest and ReclaimableRequest. Evictees are returned byte for byte."""

    evictor: Task
    evictees: list[msgspec.Raw] | None = None


class EvictionResponse(msgspec.Struct, frozen=True):
    """PreemptableResponse and ReclaimableResponse."""

    status: int
    victims: list[msgspec.Raw]


class EventRequest(msgspec.Struct, frozen=True):
    """EventHandlerRequest: a task was allocated to a node, or deallocated from it."""

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
