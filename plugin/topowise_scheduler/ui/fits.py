"""What fits: how many more pods like one in a manifest each node has room for, now, by the model of its kubelet.

Nodes do not depend on each other. It is worked on in slices, so that kube-scheduler's questions come between, and for
no longer than a bound: of nodes that were not filled by then it is only told that one more fits.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, Final

import msgspec

from topowise import documents, pods
from topowise.errors import ParseError
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kubectl import whereabouts

MOST: Final = 1000
_SLICE_S: Final = 0.001
_PAUSE_S: Final = 0.001
_TEMPLATE_FIELDS: Final = ("jobTemplate", "template")


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """One node: how many fit, at least so many if it was not tried to the end, and where the first would go."""

    node: str
    count: int
    is_least: bool
    first: str


class Fits(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes with room, the roomiest first, and how many of the others say no, by their words."""

    pod: str
    total: int
    is_least: bool
    asked: int
    nodes: tuple[Room, ...]
    reasons: dict[str, int]
    untried: int


def pod_of(body: bytes) -> pods.Pod:
    """The pod of a manifest, YAML or JSON; of a controller's, the pod it makes. Raises ParseError."""
    try:
        document = documents.load(body)
        for field in _TEMPLATE_FIELDS:
            if isinstance(document, dict) and isinstance(document.get("spec"), dict) and field in document["spec"]:
                document = _made_by(document, document["spec"][field])
        found = msgspec.convert(document, pods.Pod)
    except (msgspec.ValidationError, documents.DocumentError) as exc:
        raise ParseError(
            "manifest", " ".join(str(exc).split())[:300], "one Pod, or a controller with a template"
        ) from exc
    metadata = msgspec.structs.replace(found.metadata, uid="", namespace=found.metadata.namespace or "default")
    spec = msgspec.structs.replace(found.spec, nodeName="")
    return msgspec.structs.replace(found, metadata=metadata, spec=spec, status=None)


async def fits(answers: Answers, ledger: Ledger, pod: pods.Pod, *, within_s: float) -> Fits:
    """How many there is room for. Raises ParseError for quantities and annotations that cannot be read."""
    names = ledger.reported()
    asked = answers.question(pod, names, is_simulation=True)
    verdicts = answers.verdicts(asked)
    reasons: Counter[str] = Counter()
    rooms = []
    untried = 0
    begun = slice_begun = time.perf_counter()
    for at, name in enumerate(names):
        if verdicts.outcomes[at] != Outcome.FITS:
            reasons[verdicts.text(at)] += 1
            continue
        states = list(answers.states_for(asked, name))
        books = ledger.books(name)
        if not states or books is None or books.report is None:
            continue
        count, first, is_open = 0, "-", True
        while count < MOST and time.perf_counter() - begun < within_s:
            uid = f"\0fits/{count}"
            if not all(state.admit_view(asked.requests.view(uid, state.settings)).admitted for state in states):
                is_open = False
                break
            if not count:
                first = whereabouts.told(whereabouts.of(states[0], uid, is_exact=books.report.precision == "exact"))
            count += 1
            if time.perf_counter() - slice_begun > _SLICE_S:
                await asyncio.sleep(_PAUSE_S)
                slice_begun = time.perf_counter()
        untried += not count and is_open
        # The verdict was that one fits, whether there was time to count or not.
        if count or is_open:
            rooms.append(Room(name, max(1, count), is_open, first))
    return Fits(
        pod=f"{asked.record.namespace}/{asked.record.name}",
        total=sum(room.count for room in rooms),
        is_least=any(room.is_least for room in rooms),
        asked=len(names),
        nodes=tuple(sorted(rooms, key=lambda room: (-room.count, room.node))),
        reasons=dict(sorted(reasons.items(), key=lambda one: (-one[1], one[0]))),
        untried=untried,
    )


def _made_by(owner: dict[str, Any], template: Any) -> Any:
    """The template with the owner's name: templates have none."""
    if not isinstance(template, dict):
        return template
    named = {key: value for key, value in _mapping(owner.get("metadata")).items() if key in ("name", "namespace")}
    return {**template, "metadata": {**named, **_mapping(template.get("metadata"))}}


def _mapping(given: Any) -> dict[Any, Any]:
    return given if isinstance(given, dict) else {}
