"""The predicted placement of a pod is an annotation of its Binding."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from scheduling import NoApi, Service, counts, exact, kubelet, pod
from topowise_scheduler.report.predicted_annotation import ANNOTATION
from topowise_scheduler.serve.extender.binding import Binder


class Recording(NoApi):
    """An API server that binds whatever it is asked to."""

    def __init__(self) -> None:
        self.bindings: list[dict[str, Any]] = []

    async def request(self, _method: str, _path: str, *, body: bytes = b"", **_: Any) -> bytes:
        self.bindings.append(json.loads(body))
        return b""


async def bound(service: Service, document: dict[str, Any], **options: Any) -> Any:
    """The annotation of the Binding, decoded; None without one."""
    api = Recording()
    binder = Binder(api, service.ledger, service.records, lambda: None, **options)
    service.ledger.remember(service.records.decode(msgspec.json.encode(document)))
    args = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}
    reply = await binder.bind(json.dumps(args).encode())
    assert json.loads(reply.body) == {"Error": ""}
    text = api.bindings[0]["metadata"]["annotations"].get(ANNOTATION)
    return None if text is None else json.loads(text)


def service() -> Service:
    started = Service()
    started.report(exact(kubelet()))
    return started


async def test_numa_nodes_and_cpus_of_each_container() -> None:
    started = service()
    started.put(pod("other", "3", node="n1"))
    # The three free CPUs of the first NUMA node are taken.
    assert await bound(started, pod("p", "2")) == {"c": {"numa": [1], "cpus": "4-5"}}


async def test_invented_ids_are_not_in_the_annotation() -> None:
    started = Service()
    started.report(counts("n1", ("0", "8"), included=()))
    assert await bound(started, pod("p", "2")) == {"c": {"numa": [1]}}


async def test_no_annotation_for_the_shared_pool_or_an_unreported_node() -> None:
    shared = pod("p", "2")
    del shared["spec"]["containers"][0]["resources"]["limits"]
    assert await bound(service(), shared) is None
    unreported = Service()
    unreported.put_node("n1")
    assert await bound(unreported, pod("p", "2")) is None
