"""A running topowise-scheduler, asked over HTTP at its /explain."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from topowise.errors import SourceError
from topowise_scheduler.presentation.explain.explanation import NodeExplanation

_TIMEOUT_S: Final = 10


class _Refusal(msgspec.Struct, frozen=True):
    error: str


def explain(url: str, pod: str, manifest: Any, names: Sequence[str]) -> list[NodeExplanation]:
    """The explanations of the service for a pod of the cluster ("namespace/name"), or for a manifest."""
    query = [("node", name) for name in names]
    if manifest is None:
        query.insert(0, ("pod", pod))
    address = f"{url.rstrip('/')}/explain?{urllib.parse.urlencode(query)}"
    body = None if manifest is None else msgspec.json.encode(manifest)
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise SourceError(url, "is not an address, expected http://HOST:PORT such as http://127.0.0.1:8081")
    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            received = response.read()
    except (OSError, ValueError) as exc:
        why = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        raise SourceError(url, f"cannot be asked: {why}; is it forwarded (kubectl port-forward)?") from exc
    try:
        answer = msgspec.json.decode(received, type=list[NodeExplanation] | _Refusal)
    except msgspec.DecodeError as exc:
        raise SourceError(url, f"sent an invalid answer: {exc}") from exc
    if isinstance(answer, _Refusal):
        raise SourceError(url, answer.error)
    return answer
