"""A client of the API server, and watches that record when each object arrived."""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar


class LabError(Exception):
    """The thing, what was expected of it, and what to do about it."""


Json = dict[str, Any]
Found = TypeVar("Found")

PODS: Final = "/api/v1/namespaces/default/pods"
NODES: Final = "/api/v1/nodes"
_TIMEOUT_S: Final = 30.0
# A watch that is silent for longer is asked for anew.
_WATCH_S: Final = 600
# Changes that a watch remembers.
_KEPT: Final = 10_000


class Api:
    """A user of the API server at a URL."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        # Self-signed, on loopback.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        self._open = urllib.request.build_opener(*handlers).open

    def stream(self, method: str, path: str, body: Any = None, kind: str = "", timeout: float = _TIMEOUT_S) -> Any:
        """Opens a request, and returns the open answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | {"Content-Type": kind or "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        return self._open(request, timeout=timeout)

    def call(self, method: str, path: str, body: Any = None, kind: str = "") -> Json:
        """Returns the decoded answer. Raises urllib.error.HTTPError."""
        with self.stream(method, path, body, kind) as answer:
            whole: Json = json.load(answer)
        return whole

    def find(self, path: str) -> Json | None:
        """Returns the object, None if it does not exist (or is not served yet)."""
        try:
            return self.call("GET", path)
        except urllib.error.HTTPError as exc:
            if exc.code in (404, 503):
                return None
            raise

    def items(self, path: str) -> list[Json]:
        """Returns the items of a list."""
        listed: list[Json] = self.call("GET", path)["items"]
        return listed

    def create(self, path: str, body: Json) -> Json:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Json) -> Json:
        """Applies a merge patch."""
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str, grace: int = 0) -> None:
        """Also if it is gone already."""
        try:
            self.call("DELETE", path, {"gracePeriodSeconds": grace})
        except urllib.error.HTTPError as exc:
            if exc.code != 404:
                raise


def wait(condition: Callable[[], Found | None], seconds: float, event: str, every: float = 0.25) -> Found:
    """Waits until `condition` returns a value, and returns the value. Raises LabError."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise LabError(f"{event}: timed out after {seconds:.0f} s")
        time.sleep(every)


def until_still(pending: Callable[[], list[str]], still: float, seconds: float) -> list[str]:
    """Waits until nothing is pending, or the same for `still` seconds, and returns what is pending."""
    start = since = time.monotonic()
    last = pending()
    while last and time.monotonic() < min(start + seconds, since + still):
        time.sleep(0.1)
        if (now := pending()) != last:
            since, last = time.monotonic(), now
    return last


class Watch(threading.Thread):
    """Keeps the objects of a collection by name, and of the last changes when each came (by this machine's clock)."""

    def __init__(self, api: Api, path: str) -> None:
        super().__init__(daemon=True, name=f"watch {path}")
        self._api, self._path = api, path
        self._changed = threading.Condition()
        self._ended = False
        self.objects: dict[str, Json] = {}
        self._log: deque[tuple[float, str, Json]] = deque(maxlen=_KEPT)
        self.start()

    def run(self) -> None:
        while not self._ended:
            try:
                self._follow(self._list())
            except (OSError, ValueError):
                time.sleep(0.5)

    def end(self) -> None:
        """Ends the watch with its next event, without waiting for it."""
        self._ended = True

    def since(self, when: float) -> list[tuple[float, str, Json]]:
        """Changes that came then or later: when, whose, to what."""
        with self._changed:
            return [entry for entry in self._log if entry[0] >= when]

    def _list(self) -> str:
        listed = self._api.call("GET", self._path)
        with self._changed:
            self.objects = {item["metadata"]["name"]: item for item in listed["items"]}
            self._changed.notify_all()
        version: str = listed["metadata"]["resourceVersion"]
        return version

    def _follow(self, version: str) -> None:
        query = f"?watch=1&resourceVersion={version}&timeoutSeconds={_WATCH_S}"
        with self._api.stream("GET", self._path + query, timeout=_WATCH_S + 30) as lines:
            for line in lines:
                event = json.loads(line)
                if self._ended or event["type"] == "ERROR":
                    return
                self._take(time.time(), event["type"], event["object"])

    def _take(self, now: float, kind: str, item: Json) -> None:
        name = item["metadata"]["name"]
        with self._changed:
            if kind == "DELETED":
                self.objects.pop(name, None)
            else:
                self.objects[name] = item
            self._log.append((now, name, item))
            self._changed.notify_all()

    def until(self, condition: Callable[[dict[str, Json]], Found | None], seconds: float) -> Found | None:
        """Returns the value of `condition` for the objects, None after the time limit."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                value = condition(self.objects)
                left = deadline - time.monotonic()
                if value or left <= 0:
                    return value
                self._changed.wait(min(left, 1.0))
