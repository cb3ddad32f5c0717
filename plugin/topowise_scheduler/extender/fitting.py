"""POST /fit-together: do these pods fit at once; JSON or YAML of `FitTogether` (fit_together.py)."""

from __future__ import annotations

from typing import Any

import msgspec

from topowise import documents
from topowise.text import escaped_json_bytes
from topowise_scheduler.extender.replies import BadRequestError, NotReady, Reply
from topowise_scheduler.fit_together import Fitting, FitTogether
from topowise_scheduler.view.together import Together


class FittingVerb:
    """Raises BadRequestError and ParseError."""

    def __init__(self, fitting: Fitting, not_ready: NotReady) -> None:
        self._fitting = fitting
        self._not_ready = not_ready

    async def answer(self, body: bytes) -> Reply:
        """The placements, or what is against them."""
        problem = self._not_ready()
        if problem is not None:
            raise BadRequestError(f"not ready: {problem}")
        try:
            asked = msgspec.convert(documents.load(body), FitTogether)
        except (msgspec.ValidationError, documents.DocumentError) as exc:
            raise BadRequestError(f"request is no FitTogether: {exc}") from exc
        if asked.release:
            return Reply(msgspec.json.encode({"released": self._fitting.release(asked.release)}))
        return Reply(escaped_json_bytes(msgspec.json.encode(_document(*await self._fitting.fit(asked)))))


def refuse(problem: str) -> Reply:
    """An object with the error alone."""
    return Reply(msgspec.json.encode({"error": problem}), problem=problem)


def _document(found: Together, reservation: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "fits": found.fits,
        "placements": [
            {
                "pod": f"{one.record.namespace}/{one.record.name}",
                "node": one.node,
                "containers": {name: place.as_json() for name, place in one.containers.items()},
            }
            for one in found.placements
        ],
    }
    if found.why:
        document["why"] = found.why
    if reservation:
        document["reservation"] = reservation
    return document
