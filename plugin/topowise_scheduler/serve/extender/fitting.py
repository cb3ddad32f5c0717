"""POST /fit-together: do these pods fit at once; JSON or YAML of `FitTogether` (fit_together/)."""

from __future__ import annotations

from typing import Any

import msgspec

from topowise import documents
from topowise.text import escaped_json_bytes
from topowise_scheduler.explain.refusal_texts import not_together
from topowise_scheduler.overlay.fit_together import FitTogether, FitTogetherService, GroupPlacement
from topowise_scheduler.serve.extender.replies import BadRequestError, NotReady, Reply, check_ready


async def fit_together(fitting: FitTogetherService, not_ready: NotReady, body: bytes) -> Reply:
    """The placements, or why the pods do not fit. Raises BadRequestError and ParseError."""
    check_ready(not_ready)
    try:
        request = msgspec.convert(documents.load(body), FitTogether)
    except (msgspec.ValidationError, documents.DocumentError) as exc:
        raise BadRequestError(f"request is no FitTogether: {exc}") from exc
    if request.release:
        return Reply(msgspec.json.encode({"released": fitting.release(request.release)}))
    return Reply(escaped_json_bytes(msgspec.json.encode(_document(*await fitting.fit(request)))))


def _document(result: GroupPlacement, reservation: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "fits": result.fits,
        "placements": [
            {
                "pod": f"{placed.record.namespace}/{placed.record.name}",
                "node": placed.node,
                "containers": {name: place.as_json() for name, place in placed.containers.items()},
            }
            for placed in result.placements
        ],
    }
    if not result.fits:
        document["why"] = not_together(result.refused, result.refusing)
    if result.not_examined:
        document["notExamined"] = list(result.not_examined)
    if reservation:
        document["reservation"] = reservation
    return document
