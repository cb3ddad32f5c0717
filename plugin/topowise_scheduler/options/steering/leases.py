"""Requests to the marker plug-ins of nodes, and their answers: a Lease for each node (topowise.steering).

Invariant: no Binding of a pod with a marker is posted while the markers of its node have, or may get, the label of
another request: the kubelet would place the pod by that label. For the same reason no request is sent while a bound pod
with a marker waits for its admission. Requests of other replicas count too, because the state of a node is read from
its Lease alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Set
from math import inf
from typing import Final, TypeVar

import msgspec

from topowise import steering
from topowise.errors import ApiError, ParseError
from topowise.kube import paths
from topowise.kube.api import APPLY_PATCH, Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime.log import OncePerChange, kv
from topowise.steering import Request, Status

log = logging.getLogger(__name__)

_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces"
LABELS: Final = {"topowise.io/steering": "node"}
"""The labels of all Leases of steering; the watch selects by them."""
_WRITER: Final = "topowise-scheduler"
# The plug-in counts a request's seconds from the event; a watch brings the event within this time.
_MARGIN_S: Final = 5.0
_WRITE_S: Final = 1.0
# Seconds for the answer of the node's marker plug-in, and for the end of the request before. A kubelet takes the label
# within milliseconds. The bind of a pod with a marker may wait for both, and for two such binds to the node before it.
_WAIT_S: Final = 2.0
# Seconds after which the label ends if its kubelet has not admitted the pod: a kubelet admits within a second, and five
# times this long while it is busy. Twice the wait at least, or the label would end before the kubelet has the pod.
_EXPIRY_S: Final = 10.0
_MOST_PENDING: Final = 64
# An admission brings no event of a Lease.
_POLL_S: Final = 0.05
_LABELLED: Final = "the markers of {} are labelled for another pod"
Document = TypeVar("Document", Request, Status)


class _Lease(msgspec.Struct, frozen=True):
    class Metadata(msgspec.Struct, frozen=True):
        name: str = ""
        uid: str = ""
        resourceVersion: str = ""
        annotations: dict[str, str] | None = None
        ownerReferences: list[dict[str, str | bool]] = []

    metadata: Metadata


_decode = msgspec.json.Decoder(_Lease).decode


class _Node(msgspec.Struct):
    """The Lease of a node. `pending` has the end of each request that may still get a label, in the order of the
    requests (seconds, monotonic). `seen` is the last request of the watch, and the Lease `has_request` as long as it is
    not withdrawn. `uid` is the pod of the request `own`. The plug-in of a node that gave no answer is asked again after
    `silent_until`, or after a late answer. `allocated` are
    the pods whose markers are allocated, until the API server shows their admission. `given_up` is a request that is to
    be taken back, until the watch shows that it is gone."""

    version: str = ""
    owners: list[dict[str, str | bool]] = []
    seen: str = ""
    has_request: bool = False
    status: Status | None = None
    pending: dict[str, float] = {}
    own: str = ""
    uid: str = ""
    silent_until: float = -inf
    allocated: set[str] = set()
    given_up: str = ""
    is_taking_back: bool = False

    def note_status(self, status: Status) -> None:
        """Takes an answer. The plug-in has one request at a time, so the requests before it are over."""
        self.status = status
        if status.id in self.pending:
            self.silent_until = -inf
            ids = list(self.pending)
            last = ids.index(status.id) + (status.state != "labelled")
            for request_id in ids[:last]:
                del self.pending[request_id]

    def expect(self, request_id: str, ends: float) -> None:
        """A request was, or may have been, written."""
        self.pending.setdefault(request_id, ends)
        if len(self.pending) > _MOST_PENDING:
            del self.pending[next(iter(self.pending))]

    def is_at_rest(self, now: float) -> bool:
        """Returns whether the markers have no label and get none: of a silent plug-in, once no request is left."""
        is_withdrawn = now < self.silent_until and not self.has_request
        return is_withdrawn or all(now >= ends for ends in self.pending.values())


class NodeSteering:
    """Sends requests, one at a time for each node. `wait` bounds each wait for an answer, `lost` receives UID and node
    of a pod whose label may have ended before its admission. `unadmitted` returns the UIDs of the pods with a marker
    that are bound to a node, and whose admission the API server does not show yet. `clock` gives seconds, monotonic."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        *,
        wait: float = _WAIT_S,
        expiry: float = _EXPIRY_S,
        lost: Callable[[str, str], None],
        unadmitted: Callable[[str], Set[str]],
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._collection = paths.path(_LEASES, namespace, "leases")
        self.wait = wait
        self._expiry = expiry
        self._lost = lost
        self._unadmitted = unadmitted
        self._clock = clock
        self._nodes: dict[str, _Node] = {}
        self._changed = asyncio.Event()
        self._failure = OncePerChange(clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self.results: Counter[str] = Counter()
        """Requests by result: the pod got the label (allocated), the label ended too early (lost), the bind failed
        (withdrawn), the plug-in refused, the plug-in gave no answer (unanswered), the request was not written (failed).
        """
        self.observe: Callable[[float], object] = lambda seconds: None
        """Receives the time from each request to its label, in seconds."""
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in LABELS.items())}
        self.source: Reflector[_Lease] = Reflector(api, self._collection, _decode, self, query=query)
        """The watch of all Leases of steering."""

    # The watch

    def replace(self, items: list[_Lease]) -> None:
        """Implements Consumer."""
        listed = {item.metadata.name for item in items}
        for name in [name for name in self._nodes if steering.lease_name(name) not in listed]:
            self._forget(name)
        for item in items:
            self.apply("MODIFIED", item)

    def apply(self, event: EventType, item: _Lease) -> None:
        """Implements Consumer."""
        name = item.metadata.name.removeprefix(steering.LEASE_PREFIX)
        if name == item.metadata.name:
            return
        if event == "DELETED":
            self._forget(name)
        else:
            self._note(name, item.metadata)
        self._changed.set()
        self._changed = asyncio.Event()

    def _forget(self, name: str) -> None:
        """There is no Lease of the node, or none yet. Its last requests stay: the kubelet may have the label."""
        if (node := self._nodes.pop(name, None)) is not None and not node.is_at_rest(self._clock()):
            self._nodes[name] = _Node(pending=node.pending, own=node.own, uid=node.uid, silent_until=node.silent_until)

    def _note(self, name: str, metadata: _Lease.Metadata) -> None:
        node, annotations = self._nodes.setdefault(name, _Node()), metadata.annotations or {}
        node.version, node.owners = metadata.resourceVersion, metadata.ownerReferences
        node.has_request = bool(annotations.get(steering.REQUEST))
        request = self._read(steering.decode_request, annotations.get(steering.REQUEST), name)
        if request is not None and request.id != node.seen:
            node.seen = request.id
            # Another replica's request, or a request of before this process; own requests are known already.
            node.expect(request.id, self._clock() + request.seconds + _MARGIN_S)
        if node.given_up and (request is None or request.id != node.given_up):
            node.given_up = ""
        status = self._read(steering.decode_status, annotations.get(steering.STATUS), name)
        if status is not None:
            self._note_status(name, node, status)
        if node.given_up in node.pending and not node.is_taking_back:
            task = asyncio.get_running_loop().create_task(self._take_back(name, node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _note_status(self, name: str, node: _Node, status: Status) -> None:
        node.note_status(status)
        if status.state != "labelled" and status.id == node.own:
            if status.reason == steering.ALLOCATED:
                node.allocated.add(node.uid)
                self.results["allocated"] += 1
                node.own = node.uid = ""
            elif status.state == "released":
                self._lose(name, node, status.reason)

    def _read(self, decode: Callable[[str], Document], text: str | None, name: str) -> Document | None:
        try:
            return None if not text else decode(text)
        except ParseError as exc:
            # A writer may change the text all the time.
            if self._failure.is_change(name):
                log.warning("The Lease of steering cannot be read", extra=kv(node=name, why=exc))
            return None

    def _lose(self, name: str, node: _Node, problem: str) -> None:
        """The label for a pod of this replica has ended, and the kubelet has not allocated all markers of the pod."""
        uid, node.own, node.uid = node.uid, "", ""
        log.warning("The label of a pod ended before its kubelet took it", extra=kv(node=name, why=problem))
        self.results["lost"] += 1
        self._lost(uid, name)

    # Requests

    async def rest(self, name: str) -> str:
        """Waits until the markers of a node have no label. Returns why they have one still, "" if they have none."""
        is_over = await self._until(lambda: self._is_at_rest(name))
        return "" if is_over else _LABELLED.format(name)

    def _is_at_rest(self, name: str) -> bool:
        return name not in self._nodes or self._nodes[name].is_at_rest(self._clock())

    async def admission(self, name: str) -> str:
        """Waits until the kubelet of a node has admitted the bound pods with a marker: a label would move them. Returns
        why not all are admitted, "" if they are."""

        def are_admitted() -> bool:
            unadmitted, node = self._unadmitted(name), self._nodes.get(name)
            if node is None:
                return not unadmitted
            node.allocated &= unadmitted
            return node.allocated == unadmitted

        return "" if await self._until(are_admitted) else f"the kubelet of {name} has yet to admit a pod with a marker"

    def silence(self, name: str) -> str:
        """Returns that the plug-in of a node has left the last request unanswered, "" if it has not: no pod waits for
        such a plug-in. It is asked again when that request would have ended."""
        is_silent = name in self._nodes and self._clock() < self._nodes[name].silent_until
        return f"the marker plug-in of {name} does not answer" if is_silent else ""

    async def request(self, name: str, uid: str, numa: int, containers: int) -> str:
        """Labels the markers of a node for a pod. Returns "" once the kubelet has the label, otherwise why not."""
        if not self._is_at_rest(name):
            # Another replica has sent a request since `rest`, and the watch has shown it: a write would replace it.
            return _LABELLED.format(name)
        node = self._nodes.setdefault(name, _Node())
        sent = self._clock()
        request = Request(secrets.token_hex(8), numa, min(containers, steering.MOST_CONTAINERS), self._expiry)
        ends = sent + self._expiry + _MARGIN_S
        # Before the write: its event may come before its answer, and without an answer it may have been written.
        node.own, node.uid, node.has_request = request.id, uid, True
        node.expect(request.id, ends)
        asyncio.get_running_loop().call_later(ends - sent, self._expire, name, request.id)
        try:
            await self._write(name, node, request)
        except ApiError as exc:
            self.results["failed"] += 1
            if 0 < exc.status < 500:
                node.pending.pop(request.id, None)
            return f"the steering request cannot be written: {exc}"

        def answer() -> Status | None:
            status = self._nodes[name].status if name in self._nodes else None
            return status if status is not None and status.id == request.id else None

        await self._until(lambda: answer() is not None)
        status, node = answer(), self._nodes.get(name, node)
        if status is None:
            self.results["unanswered"] += 1
            node.silent_until = ends
            return f"the marker plug-in of {name} has not answered within {self.wait:g} s"
        if status.state != "labelled":
            self.results["refused"] += node.own == request.id
            return f"the marker plug-in of {name} has refused: {status.reason}"
        self.observe(self._clock() - sent)
        return ""

    async def withdraw(self, name: str, uid: str) -> None:
        """Takes the request for a pod back, if there is one. Without the API server it ends by its time."""
        node = self._nodes.get(name)
        if node is None or node.uid != uid:
            return
        own, node.own, node.uid = node.own, "", ""
        if own not in node.pending:
            return
        self.results["withdrawn"] += node.status is not None and node.status.id == own
        node.given_up = own
        # A write without an answer may still come, and another replica may have replaced the request.
        if node.seen == own:
            await self._take_back(name, node)

    async def _take_back(self, name: str, node: _Node) -> None:
        """Removes a request from the Lease. After a failure the next event of the Lease leads to the next attempt."""
        node.is_taking_back = True
        try:
            await self._write(name, node, None)
        except ApiError as exc:
            log.warning("Cannot withdraw a steering request, trying again", extra=kv(node=name, why=exc))
        else:
            node.given_up = ""
        finally:
            node.is_taking_back = False

    def _expire(self, name: str, request_id: str) -> None:
        node = self._nodes.get(name)
        if node is not None and node.own == request_id:
            self._lose(name, node, "the marker plug-in has not reported the end")
        if node is not None and not node.version:
            self._forget(name)

    async def _until(self, is_true: Callable[[], bool]) -> bool:
        """Returns whether this becomes true within the time for an answer."""
        ends = asyncio.get_running_loop().time() + self.wait
        while not is_true():
            left = ends - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _POLL_S)):
                    await self._changed.wait()
        return True

    async def _write(self, name: str, node: _Node, request: Request | None) -> None:
        if not node.owners:
            # The garbage collector deletes the Lease with its Node.
            meta = _decode(await self._api.request("GET", paths.path("/api/v1/nodes", name), timeout=_WRITE_S))
            node.owners = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": meta.metadata.uid}]
        metadata: dict[str, object] = {
            "name": steering.lease_name(name),
            "namespace": self._namespace,
            "labels": LABELS,
            "ownerReferences": node.owners,
            "annotations": {} if request is None else {steering.REQUEST: steering.encode(request)},
        }
        if node.version:
            # Of two replicas that write at the same time, one gets a conflict.
            metadata["resourceVersion"] = node.version
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        await self._api.request(
            "PATCH",
            paths.path(self._collection, steering.lease_name(name)),
            query={"fieldManager": _WRITER, "force": "true"},
            body=msgspec.json.encode(body),
            content_type=APPLY_PATCH,
            timeout=_WRITE_S,
        )
