"""What a watch may do to its events without being wrong in the end: say them twice, again later, or break off."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from random import Random

from faults.proxy import MID_CHUNK, Cut


class Mischief:
    """An edit for a `Fault`: keeps the order of events, and repeats old events and bookmarks among them."""

    def __init__(self, seed: int, *, cuts: float = 0.02) -> None:
        """`cuts` is the share of lines at which the connection breaks."""
        self._random = Random(seed)
        self._cuts = cuts
        self._past: dict[str, deque[bytes]] = {}
        self.repeated = self.replayed = self.cut = 0

    def __call__(self, line: bytes) -> Iterable[bytes] | Cut:
        event = json.loads(line)
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            return (line,)
        if self._random.random() < self._cuts:
            self.cut += 1
            return MID_CHUNK
        past = self._past.setdefault(event["object"]["kind"], deque(maxlen=300))
        shown = [line]
        if self._random.random() < 0.3:
            self.repeated += 1
            shown.append(line)
        if past and self._random.random() < 0.5:
            self.replayed += 1
            shown.append(self._random.choice(past))
        if self._random.random() < 0.1:
            shown.append(_bookmark(event["object"]))
        past.append(line)
        return shown


def _bookmark(of: dict[str, object]) -> bytes:
    metadata = of["metadata"]
    assert isinstance(metadata, dict)
    mark = {
        "type": "BOOKMARK",
        "object": {
            "kind": of["kind"],
            "apiVersion": of["apiVersion"],
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
        },
    }
    return json.dumps(mark).encode()
