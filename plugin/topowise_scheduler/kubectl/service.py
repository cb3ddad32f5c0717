"""A running topowise-scheduler, asked over HTTP at its /explain."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from topowise.errors import SourceError
from topowise_scheduler.explain.explanation import NodeExplanation

_TIMEOUT_S: Final = 10


class _Reply(msgspec.Struct, frozen=True, rename="camel"):
    error: str = ""
    next_step: str = ""
    nodes: list[NodeExplanation] = []


def explain(url: str, pod: str, manifest: Any, names: Sequence[str]) -> tuple[list[NodeExplanation], str]:
    """The explanations of the service for a pod of the cluster ("namespace/name"), or for a manifest, and the next
    step, "" for a pod that fits and from a service of an earlier version."""
    query = [("view", "waiting"), *[("node", name) for name in names]]
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
        answer = msgspec.json.decode(received, type=list[NodeExplanation] | _Reply)
    except msgspec.DecodeError as exc:
        raise SourceError(url, f"sent an invalid answer: {exc}") from exc
    if isinstance(answer, list):
        return answer, ""
    if answer.error:
        raise SourceError(url, answer.error)
    return answer.nodes, answer.next_step
